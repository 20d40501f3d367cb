package store_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/server/internal/failpoint"
	"github.com/berthd/berth/server/internal/store"
)

// The environment of a child: the test binary as a daemon that only commits.
const (
	childPath      = "BERTH_STORE_TEST_PATH"
	childFailpoint = "BERTH_STORE_TEST_FAILPOINT"
	childCommits   = "BERTH_STORE_TEST_COMMITS"
	childHistory   = "BERTH_STORE_TEST_HISTORY" // not empty: with a history
	childRemove    = "BERTH_STORE_TEST_REMOVE"  // the generation after which the file is removed
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		if err := child(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child opens the ledger and makes commits until it has the generation that the
// environment requests, printing each generation once it is acknowledged. Then it
// waits for the end of its standard input, with the lock held.
func child(path string) error {
	hook, err := failpoint.Parse(os.Getenv(childFailpoint), store.Failpoints()...)
	if err != nil {
		return err
	}
	commits, err := strconv.Atoi(os.Getenv(childCommits))
	if err != nil {
		return err
	}
	s, err := store.Open(path, store.Options{Failpoint: hook})
	if err != nil {
		return err
	}
	o := renewing()
	if os.Getenv(childHistory) != "" {
		o = recorded(o)
	}
	l, _, _, err := s.OpenLedger(context.Background(), o, noon)
	if err != nil {
		return err
	}
	fmt.Println("open", l.View().Generation())
	for l.View().Generation() < uint64(commits) {
		if os.Getenv(childRemove) == strconv.FormatUint(l.View().Generation(), 10) {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
		if err := step(l); err != nil {
			return err
		}
		fmt.Println("committed", l.View().Generation())
	}
	fmt.Println("done", l.View().Generation())
	_, _ = os.Stdin.Read(make([]byte, 1))
	return s.Close()
}

// step makes the commit that belongs to the ledger's generation, so that the
// generation alone defines what the ledger must hold: two pods come, one goes, and
// so on.
func step(l *ledger.Ledger) error {
	gen := int(l.View().Generation())
	d := ledger.NewDraft(l.View())
	if gen%3 == 2 {
		d.RemovePod(pod(gen - 1).UID())
	} else {
		p := pod(gen)
		d.PutPod(p)
		d.Bind(ledger.Binding{ID: "cri://" + p.UID(), Owner: ledger.Owner{Pod: p.UID(), Container: "main"}})
	}
	_, err := l.Commit(context.Background(), d)
	return err
}

// viewAt returns the view at a generation.
func viewAt(t *testing.T, generation uint64) *ledger.View {
	t.Helper()
	l, _ := ledgertest.Open(t, options(ledgertest.NewJournal()))
	for l.View().Generation() < generation {
		if err := step(l); err != nil {
			t.Fatal(err)
		}
	}
	return l.View()
}

// run is a child at work.
type run struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	stop  func()
	acked uint64 // the newest generation it spoke of
}

func start(t *testing.T, path, point string, commits int, environment ...string) *run {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(append(os.Environ(), environment...), childPath+"="+path, childFailpoint+"="+point,
		childCommits+"="+strconv.Itoa(commits))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &run{cmd: cmd, lines: bufio.NewScanner(out), stop: func() { in.Close() }}
}

// next reads the child's next line; false at its end.
func (r *run) next(t *testing.T) (said string, ok bool) {
	t.Helper()
	if !r.lines.Scan() {
		return "", false
	}
	said, number, _ := strings.Cut(r.lines.Text(), " ")
	generation, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		t.Fatalf("the child said %q", r.lines.Text())
	}
	r.acked = generation
	return said, true
}

// wait waits for the child's end and reports whether SIGKILL was its cause.
func (r *run) wait(t *testing.T) (killed bool) {
	t.Helper()
	err := r.cmd.Wait()
	status, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || err != nil && !status.Signaled() {
		t.Fatalf("child: %v", err)
	}
	return status.Signaled() && status.Signal() == syscall.SIGKILL
}

// survived opens what a killed child left and checks it: everything that was
// acknowledged is there, and at most the one commit that was under way, whole.
func survived(t *testing.T, path string, acked uint64) {
	t.Helper()
	s := mustOpen(t, path, store.Options{})
	defer s.Close()
	l, _ := ledgertest.Open(t, options(s))
	got := l.View().Generation()
	if got != acked && got != acked+1 {
		t.Errorf("generation %d, acknowledged were %d", got, acked)
	}
	ledgertest.SameView(t, l.View(), viewAt(t, got))
}

// finish lets a child retry without failpoints and checks the end.
func finish(t *testing.T, path string, commits int) {
	t.Helper()
	r := start(t, path, "", commits)
	for said, ok := "", true; ok && said != "done"; said, ok = r.next(t) {
	}
	r.stop()
	if r.wait(t) || r.acked != uint64(commits) {
		t.Errorf("retry came to generation %d, want %d", r.acked, commits)
	}
	survived(t, path, uint64(commits))
}

// Killed at every point, early and late: nothing acknowledged is lost, nothing
// is half there, and a retry comes to the same end.
func TestCrashAtFailpoints(t *testing.T) {
	t.Parallel()
	const commits = 10
	for _, point := range store.Failpoints() {
		for _, times := range []int{1, 2, 7} {
			if slices.Contains(salvagePoints, point) || slices.Contains(recreatePoints, point) || point == store.AfterCompact {
				continue // see TestCrashInSalvage, TestCrashInRecreate and TestCrashInCompaction
			}
			opening := point == store.BeforeOpen || point == store.AfterOpen
			if times > 1 && opening {
				continue // passed once in a life
			}
			t.Run(fmt.Sprintf("%s %d", point, times), func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "berth.db")
				r := start(t, path, fmt.Sprintf("%s:kill:%d", point, times), commits)
				for _, ok := r.next(t); ok; _, ok = r.next(t) {
				}
				if !r.wait(t) {
					t.Fatalf("the child was not killed at %s", point)
				}
				survived(t, path, r.acked)
				finish(t, path, commits)
			})
		}
	}
}

// salvagePoints are those that are passed where a file is damaged.
var salvagePoints = []string{store.BeforeSetAside, store.AfterSalvage, store.AfterReport, store.AfterKeep, store.AfterRename}

// recreatePoints are those that are passed where the file was removed.
var recreatePoints = []string{store.BeforeRecreate, store.AfterRecreate}

// Killed at any point of a salvage: the next start finds either the damaged file or the
// sound one, reports the damage until there is a commit, and keeps the damaged file, once.
func TestCrashInSalvage(t *testing.T) {
	t.Parallel()
	whole := fill(t, filepath.Join(t.TempDir(), "berth.db"), 4)
	damaged := bytes.ReplaceAll(whole, []byte(`"digest":"digest-pod-0002"`), []byte(`"digest":"digest-pod-0003"`))
	for _, point := range salvagePoints {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "berth.db")
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			r := start(t, path, point+":kill:1", 0)
			for _, ok := r.next(t); ok; _, ok = r.next(t) {
			}
			if !r.wait(t) {
				t.Fatalf("the child was not killed at %s", point)
			}
			for range 2 { // until there is a commit
				salvaged(t, path, damaged)
			}
			s := mustOpen(t, path, store.Options{})
			defer func() { s.Close() }()
			l, _, _, err := s.OpenLedger(t.Context(), options(nil), noon)
			if err == nil {
				_, err = l.SetRules(t.Context(), l.View().Rules())
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, path, store.Options{})
			if _, report, damage, err := s.OpenLedger(t.Context(), options(nil), noon); err != nil || damage != nil ||
				len(report.Damage)+len(report.Lost) > 0 {
				t.Errorf("start after a commit: %v, damage %v, report %+v", err, damage, report)
			}
		})
	}
}

// salvaged starts on a file of which pod-0002 was damaged.
func salvaged(t *testing.T, path string, damaged []byte) {
	t.Helper()
	s := mustOpen(t, path, store.Options{})
	defer s.Close()
	l, report, damage, err := s.OpenLedger(t.Context(), options(nil), noon)
	if err != nil || damage == nil {
		t.Fatalf("start: %v, damage %v", err, damage)
	}
	if _, here := l.View().Pod("pod-0002"); here || l.View().NumPods() != 2 || len(report.Lost) != 1 ||
		report.Lost[0].UID != "pod-0002" || len(report.Lost[0].Claims) != 3 {
		t.Errorf("%d pods, report %+v", l.View().NumPods(), report)
	}
	if b, ok := report.Lost[0].Bindings["cri://2"]; !ok || b.ID != "cri://2" {
		t.Errorf("bindings %v", report.Lost[0].Bindings)
	}
	if l.View().Uncertain() == "" {
		t.Error("a pod is lost, and the state is certain")
	}
	all, err := store.Damages(path)
	if err != nil || len(all) != 1 {
		t.Fatalf("reports: %+v, %v", all, err)
	}
	if data, err := os.ReadFile(all[0].SetAside); err != nil || !bytes.Equal(data, damaged) {
		t.Errorf("the damaged file has %d bytes, %v", len(data), err)
	}
	names, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(names) != 4 { // the file, the lock, the damaged file, its report
		t.Errorf("the directory has %v, %v", names, err)
	}
}

// Killed from outside at any moment, again and again on one file.
func TestCrashAnywhere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	random := rand.New(rand.NewPCG(20, 26))
	for range 12 {
		r := start(t, path, "", 1<<30)
		for range 1 + random.IntN(40) {
			if _, ok := r.next(t); !ok {
				t.Fatalf("the child ended by itself: %v", r.cmd.Wait())
			}
		}
		if err := r.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for _, ok := r.next(t); ok; _, ok = r.next(t) {
		}
		if !r.wait(t) {
			t.Fatal("the child was not killed")
		}
		survived(t, path, r.acked)
	}
}

// The second daemon is refused with the first one's pid; a killed one holds
// nothing.
func TestLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "berth.db")
	r := start(t, path, "", 1)
	for said, ok := "", true; said != "done"; said, ok = r.next(t) {
		if !ok {
			t.Fatal("the child ended")
		}
	}
	pid := r.cmd.Process.Pid
	refused(t, path, pid)
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !r.wait(t) {
		t.Fatal("the child was not killed")
	}
	s := mustOpen(t, path, store.Options{})
	refused(t, path, os.Getpid())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(filepath.Dir(path), "berthd.lock")); err != nil || len(text) != 0 {
		t.Errorf("after the end the lock file holds %q, %v", text, err)
	}
	mustOpen(t, path, store.Options{}).Close()
}
