package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/server/internal/host/claimfiles"
)

var programs = nodetest.NewPrograms(map[string]string{"berthd": "server/berthd"})

func TestMain(m *testing.M) {
	if socket := os.Getenv(watchVariable); socket != "" {
		if err := watch(context.Background(), socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if socket := os.Getenv(initialVariable); socket != "" {
		if err := readInitial(context.Background(), socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if who := os.Getenv(badUserEnv); who != "" {
		role, socket, _ := strings.Cut(who, " ")
		beBad(role, socket)
	}
	code := m.Run()
	programs.Remove()
	nodes.remove()
	os.Exit(code)
}

// node is a whole berthd in a process of its own, so that its processor time is not its
// callers', on a made-up machine and a tree of cgroups in memory.
type node struct {
	*running
	socket  string
	process *nodetest.Process
}

// folders are those of one berthd: the one on disk has the ledger, the one in memory the
// socket and the claim records.
type folders struct{ disk, run string }

func newFolders(t testing.TB) folders {
	t.Helper()
	disk, err := os.MkdirTemp("", "bench")
	if err != nil {
		t.Fatal(err)
	}
	run, err := runDir()
	if err != nil {
		t.Fatal(err)
	}
	return folders{disk, run}
}

func (f folders) remove() { _ = errors.Join(os.RemoveAll(f.disk), os.RemoveAll(f.run)) }

// start starts berthd in its folders, which may have a ledger and claim records, and waits
// until it answers. It returns how long that took.
func start(t testing.TB, f folders, args ...string) (*node, time.Duration) {
	t.Helper()
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir, sock := f.disk, f.run+"/b.sock"
	cmd := exec.Command(filepath.Join(built, "berthd"), append([]string{
		"--root-dir", dir, "--state-dir", dir + "/state", "--listen", sock, "--device-plugin-dir", dir + "/d",
		"--pod-resources-dir", dir + "/p", "--plugin-registry-dir", dir + "/r", "--log-level", "error",
		"--machine", "2s4n32c2t", "--cgroup-tree", "memory", "--cpu-manager-policy", "static", "--reserved-cpus", "0",
		"--topology-manager-policy", "restricted", "--max-pods", "0", "--kernel-tunables", "ignore", "--fail-swap-on=false",
	}, args...)...)
	// The card has one processor for the callers; berthd has what the machine has.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GOMAXPROCS=") })
	log := nodetest.Log(dir + "/log")
	begun := time.Now()
	n := &node{socket: sock, process: nodetest.Start(t, cmd, log)}
	t.Cleanup(func() { _ = n.process.End(syscall.SIGTERM) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = nodetest.Await(ctx, func() bool { _, err := os.Stat(sock); return err == nil })
	if err != nil {
		t.Fatalf("no socket: %v\n%s", err, log)
	}
	client, err := berth.Dial(ctx, sock, berth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	n.running = &running{Client: client, admission: client.Admission()}
	req := &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: oldPod(0).GetMetadata().GetUid()}}
	if _, err := n.Allocation().Get(ctx, req, grpc.WaitForReady(true)); err != nil && !berth.IsNotFound(err) {
		t.Fatalf("%v\n%s", err, log)
	}
	return n, time.Since(begun)
}

// used is the processor time that berthd has taken.
func (n *node) used(t testing.TB) time.Duration {
	t.Helper()
	return processTime(t, n.process.Cmd.Process.Pid)
}

// processTime is the processor time that a process has taken.
func processTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	// As clock_getcpuclockid does: all threads of a process.
	clock := int32(^pid<<3 | 2)
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// oldPod is one of the pods that are on a node already: every tenth is BestEffort, the
// others are Burstable.
func oldPod(i int) *typesv1.Pod {
	p := wirePod(fmt.Sprint("old-", i))
	requests := map[string]string{"cpu": "50m", "memory": "32Mi"}
	p.Spec.Containers[0].Resources = &typesv1.ResourceRequirements{Requests: requests}
	if i%10 == 0 {
		p.Spec.Containers[0].Resources = nil
	}
	return p
}

// nodes are folders of berthds that have a number of pods.
var nodes kept

type kept struct {
	mu      sync.Mutex
	folders map[int]folders
}

func (k *kept) remove() {
	for _, f := range k.folders {
		f.remove()
	}
}

// with starts a berthd that knows some pods, on a copy of folders that are made once, by
// admissions. The claim records are there, as at any start but a boot's.
func (k *kept) with(t testing.TB, pods int, args ...string) (*node, time.Duration) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	made, ok := k.folders[pods]
	if !ok {
		made = newFolders(t)
		if k.folders == nil {
			k.folders = make(map[int]folders)
		}
		k.folders[pods] = made
		n, _ := start(t, made)
		for i := range pods {
			if err := n.admitPod(t.Context(), oldPod(i), false); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.process.End(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	f := newFolders(t)
	t.Cleanup(f.remove)
	for from, to := range map[string]string{made.disk: f.disk, made.run: f.run} {
		// With the modes: berthd refuses claim records that others can reach.
		if text, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	if n := claimRecords(t, f); n != pods {
		t.Fatalf("%d claim records of %d pods", n, pods)
	}
	return start(t, f, args...)
}

// claimRecords counts the records that are kept in files, while no berthd runs.
func claimRecords(t testing.TB, f folders) int {
	t.Helper()
	dir := filepath.Join(f.run, "claims")
	boot, err := os.ReadFile(filepath.Join(dir, ".boot"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := claimfiles.Open(dir, string(boot))
	if err != nil {
		t.Fatal(err)
	}
	names, err := files.Names()
	if err := errors.Join(err, files.Close()); err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// pair admits a pod and removes it, and reports how long the admission took.
func (n *node) pair(ctx context.Context, pod *typesv1.Pod) (time.Duration, error) {
	begun := time.Now()
	err := n.admitPod(ctx, pod, false)
	took := time.Since(begun)
	return took, errors.Join(err, n.remove(ctx, pod.GetMetadata().GetUid()))
}

// batch is how many pairs one berthd gets before it is the other's turn.
const batch = 25

// BenchmarkManyPods compares a node with few pods and one with many, in turns: the
// processor time that berthd takes for an Admit and a Remove of a pod on shared CPUs and
// of one with 8 CPUs of its own, in turns, and how long the caller of Admit waits in the
// median.
func BenchmarkManyPods(b *testing.B) {
	const few, many = 100, 5000
	type side struct {
		*node
		used   time.Duration
		admits []time.Duration
	}
	var sides [2]*side
	pods := []*typesv1.Pod{oldPod(many), wirePod("own")}
	measure := func(b *testing.B, report func(few, many *side)) {
		for i, pods := range []int{few, many} {
			n, _ := nodes.with(b, pods)
			sides[i] = &side{node: n}
		}
		turn := func() {
			for _, s := range sides {
				before := s.node.used(b)
				for i := range batch {
					took, err := s.pair(b.Context(), pods[i%len(pods)])
					if err != nil {
						b.Fatal(err)
					}
					s.admits = append(s.admits, took)
				}
				s.used += s.node.used(b) - before
			}
		}
		turn() // what a start leaves to do
		for _, s := range sides {
			s.used, s.admits = 0, nil
		}
		for b.Loop() {
			turn()
		}
		for len(sides[0].admits) < leastRounds {
			turn()
		}
		report(sides[0], sides[1])
	}
	b.Run("processor time of an Admit and a Remove/5000/berth", func(b *testing.B) {
		measure(b, func(few, many *side) {
			b.ReportMetric(float64(many.used)/float64(len(many.admits)), "ns/op")
			b.ReportMetric(float64(few.used)/float64(len(few.admits)), "few-ns")
			b.ReportMetric(float64(many.used)/float64(few.used), "times")
		})
	})
	b.Run("Admit/5000/berth", func(b *testing.B) {
		measure(b, func(few, many *side) {
			b.ReportMetric(float64(median(many.admits)), "ns/op")
			b.ReportMetric(float64(median(few.admits)), "few-ns")
			b.ReportMetric(float64(median(many.admits))/float64(median(few.admits)), "times")
		})
	})
}

// BenchmarkRestart is how long it takes from the start of the process to the first
// answer where a node has many pods.
func BenchmarkRestart(b *testing.B) {
	b.Run("first answer/5000/berth", func(b *testing.B) {
		var took, used []time.Duration
		for b.Loop() {
			n, first := nodes.with(b, 5000)
			took, used = append(took, first), append(used, n.used(b))
			list, err := n.Allocation().List(b.Context(), &allocationv1.ListRequest{})
			if err != nil || len(list.GetPods()) != 5000 {
				b.Fatalf("%d pods, %v", len(list.GetPods()), err)
			}
			if err := n.process.End(syscall.SIGTERM); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(median(took)), "ns/op")
		b.ReportMetric(float64(median(used)), "processor-ns")
	})
}

// restBefore is how long berthd gets for what a start leaves to do, and restLong how long it is observed then.
const (
	restBefore = 15 * time.Second
	restLong   = 240 * time.Second // two passes of so many pods
)

// BenchmarkRest is the processor time that berthd takes in a second without any call, where a node has many pods.
func BenchmarkRest(b *testing.B) {
	b.Run("processor time in a second/5000/berth", func(b *testing.B) {
		n, _ := nodes.with(b, 5000)
		time.Sleep(restBefore)
		var used, rested time.Duration
		for b.Loop() {
			before, begun := n.used(b), time.Now()
			time.Sleep(restLong)
			used, rested = used+n.used(b)-before, rested+time.Since(begun)
		}
		b.ReportMetric(float64(used)/rested.Seconds(), "ns/op")
	})
}

// unread is a codec for messages of which only the number of bytes matters: what callers
// do with them is not berthd's work.
type unread struct{}

func (unread) Marshal(any) ([]byte, error) { return nil, nil }
func (unread) Unmarshal([]byte, any) error { return nil }
func (unread) Name() string                { return "proto" }

// watchVariable is the environment variable that has this program watch at a socket, and
// nothing else: the readers are no part of the callers' process, as on a node.
const watchVariable = "BERTH_BENCH_WATCH"

// watchers is how many streams there are.
const watchers = 190

// watch opens streams of all events, reports that they are open, and reads all of
// them until one fails.
func watch(ctx context.Context, socket string) error {
	failed := make(chan error, watchers)
	for range watchers {
		client, err := berth.Dial(ctx, socket, berth.Options{})
		if err != nil {
			return err
		}
		stream, err := client.Conn().NewStream(ctx, &grpc.StreamDesc{ServerStreams: true},
			allocationv1.AllocationService_Watch_FullMethodName, grpc.ForceCodec(unread{}))
		if err == nil {
			err = errors.Join(stream.SendMsg(nil), stream.CloseSend(), stream.RecvMsg(nil))
		}
		if err != nil {
			return err
		}
		go func() {
			var err error
			for err == nil {
				err = stream.RecvMsg(nil)
			}
			failed <- err
		}()
	}
	fmt.Println("open")
	return <-failed
}

// watched runs watch in a process of its own until stop is called.
func (n *node) watched(t testing.TB) (stop func()) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), watchVariable+"="+n.socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "open\n" {
		stop()
		t.Fatalf("the watchers say %q: %v", line, err)
	}
	return stop
}

// BenchmarkWatch is how long an Admit and a Remove take while many streams of another
// process get it, compared with commits without watchers, in turns.
func BenchmarkWatch(b *testing.B) {
	b.Run("Admit and Remove/190/berth", func(b *testing.B) {
		n, _ := nodes.with(b, 100)
		var took [2]time.Duration
		pods, pairs := []*typesv1.Pod{oldPod(100), wirePod("own")}, 0
		turn := func() {
			for i := range took {
				stop := func() {}
				if i == 1 {
					stop = n.watched(b)
				}
				begun := time.Now()
				for i := range leastRounds { // long enough for streams that pause

					if _, err := n.pair(b.Context(), pods[i%len(pods)]); err != nil {
						b.Fatal(err)
					}
				}
				took[i] += time.Since(begun)
				stop()
			}
			pairs += leastRounds
		}
		for b.Loop() {
			turn()
		}
		b.ReportMetric(float64(took[1])/float64(pairs), "ns/op")
		b.ReportMetric(float64(took[0])/float64(pairs), "alone-ns")
		b.ReportMetric(float64(took[1])/float64(took[0]), "times")
	})
}
