package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// badUserEnv has this program be a bad user: its value is a role, a space and a socket.
const badUserEnv = "BERTH_BENCH_BAD_USER"

// What one bad user has at a time.
const (
	badConnections = 64
	badCalls       = 32
)

// badUsers are the numbers of users by role; "none" has none.
var badUsers = map[string]int{"read": 64301, "agent": 64302, "provider": 64303, "admin": 64304, "none": 64305}

// beBad takes all that a user with a role may have of a berthd, until it is killed. It only
// gets only idle processors (SCHED_IDLE, which its threads inherit): what it
// takes of the machine by itself is not berthd's affair, what berthd does for it is.
func beBad(role, socket string) {
	for _, thread := range ownThreads() {
		if err := unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
			panic(err)
		}
	}
	role, frames := strings.CutSuffix(role, badFrames)
	uid := badUsers[role]
	if err := syscall.Setresgid(uid, uid, uid); err != nil {
		panic(err)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil {
		panic(err)
	}
	if frames {
		flood(socket)
	}
	var conns []*grpc.ClientConn
	for range badConnections {
		c, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			panic(err)
		}
		c.Connect()
		conns = append(conns, c)
	}
	fmt.Println("begins")
	var all sync.WaitGroup
	for i := range badCalls {
		all.Go(func() {
			for n := 0; ; n++ {
				bad(context.Background(), conns[(i+n*badCalls)%len(conns)], role, i, n)
			}
		})
	}
	all.Wait()
}

// badFrames is behind the role of a bad user who makes no calls.
const badFrames = "-frames"

// flood sends frames of HTTP/2 that no call needs on all connections, until it is killed.
func flood(socket string) {
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	settings := bytes.Repeat([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}, 4000)
	windows := bytes.Repeat([]byte{0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 4000)
	for i := range badConnections {
		go func() {
			for { // berthd may end a connection
				c, err := net.Dial("unix", socket)
				if err != nil {
					continue
				}
				go func() { _, _ = io.Copy(io.Discard, c) }()
				_, err = c.Write([]byte(preface))
				for err == nil {
					_, err = c.Write([][]byte{settings, windows}[i%2])
				}
				_ = c.Close()
			}
		}()
	}
	fmt.Println("begins")
	select {}
}

// ownThreads lists the threads of this process.
func ownThreads() (ids []int) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		if id, err := strconv.Atoi(e.Name()); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// crowded is a pod of many containers, and its annotations are as many as can be.
func crowded(uid string) *typesv1.Pod {
	p := wirePod(uid)
	p.Metadata.Annotations = map[string]string{"a": strings.Repeat("x", 200<<10)}
	for i := range 500 {
		p.Spec.Containers = append(p.Spec.Containers, &typesv1.Container{
			Name: fmt.Sprint("c", i), Resources: &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": "1m"}},
		})
	}
	return p
}

// bad makes the n-th call of a worker; what becomes of it does not matter.
func bad(ctx context.Context, c *grpc.ClientConn, role string, worker, n int) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	own := fmt.Sprintf("bad-%d", worker)
	admission := admissionv1.NewAdmissionServiceClient(c)
	inspect := inspectv1.NewInspectServiceClient(c)
	calls := map[string][]func() error{
		"read": {
			func() error {
				_, err := admission.Admit(ctx, &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: crowded(own)},
					DryRun: true})
				return err
			},
			func() error {
				_, err := allocationv1.NewAllocationServiceClient(c).List(ctx, &allocationv1.ListRequest{})
				return err
			},
			func() error {
				_, err := cpuv1.NewCPUServiceClient(c).GetTopologyHints(ctx,
					&cpuv1.GetTopologyHintsRequest{Pod: crowded(own), ContainerName: "main"})
				return err
			},
			func() error { // more elements than a request may have
				many := &typesv1.Pod{Spec: &typesv1.PodSpec{Containers: slices.Repeat([]*typesv1.Container{{}}, 500_000)}}
				_, err := admission.Admit(ctx, &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: many}, DryRun: true})
				return err
			},
		},
		"agent": {
			func() error {
				_, err := admission.Admit(ctx, &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: oldPod(100_000 +
					worker)}})
				return err
			},
			func() error {
				_, err := admission.RemovePod(ctx, &admissionv1.RemovePodRequest{PodUid: oldPod(100_000 + worker).GetMetadata().GetUid()})
				return err
			},
		},
		"provider": {
			func() error {
				_, err := hintv1.NewHintBusServiceClient(c).Register(ctx, &hintv1.RegisterRequest{
					Provider: own, Endpoint: "/nowhere", Mode: hintv1.Mode_MODE_ADVISORY,
				})
				return err
			},
			func() error {
				_, err := hintv1.NewHintBusServiceClient(c).Unregister(ctx, &hintv1.UnregisterRequest{Provider: own})
				return err
			},
		},
		"admin": {
			func() error { _, err := inspect.Dump(ctx, &inspectv1.DumpRequest{}); return err },
			func() error { _, err := inspect.Check(ctx, &inspectv1.CheckRequest{}); return err },
			func() error {
				_, err := inspect.Import(ctx, &inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU,
					State: make([]byte, 3<<20), DryRun: true})
				return err
			},
		},
		"none": {
			func() error { _, err := admission.Admit(ctx, &admissionv1.AdmitRequest{}); return err },
		},
	}[role]
	_ = calls[n%len(calls)]()
}

// peak is the most memory that berthd has used so far, in MiB.
func (n *node) peak(t testing.TB) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.process.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	kib, err := strconv.Atoi(string(regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)[1]))
	if err != nil {
		t.Fatal(err)
	}
	return float64(kib) / 1024
}

// badUser is a process that takes all that a user may have. It stands still until resumed.
type badUser struct {
	testing.TB
	process *nodetest.Process
}

func (u badUser) signal(s syscall.Signal) {
	u.Helper()
	if err := u.process.Cmd.Process.Signal(s); err != nil {
		u.Fatal(err)
	}
}

// used is the processor time that the user has taken by himself.
func (u badUser) used() time.Duration { return processTime(u, u.process.Cmd.Process.Pid) }

// besideBadUser starts a berthd and a bad user.
func besideBadUser(t testing.TB, role string) (*node, badUser) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("needs to act as other users, this is user %d", os.Geteuid())
	}
	f := newFolders(t)
	t.Cleanup(f.remove)
	for _, dir := range []string{f.disk, f.run} {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\naccess:\n"
	for role, uid := range badUsers {
		if role != "none" {
			text += fmt.Sprintf("- {uid: %d, roles: [%s]}\n", uid, role)
		}
	}
	file := filepath.Join(f.disk, "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n, _ := start(t, f, "--config", file)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), badUserEnv+"="+role+" "+n.socket)
	log := nodetest.Log(filepath.Join(f.disk, "bad"))
	u := badUser{t, nodetest.Start(t, cmd, log)}
	t.Cleanup(func() { _ = u.process.End(os.Kill) })
	nodetest.Eventually(t, time.Minute, "the bad user begins", func() bool { return strings.Contains(log.String(), "begins") })
	u.signal(syscall.SIGSTOP)
	return n, u
}

// Rounds of the benchmark, root's calls in each measured part of a round, and those between
// two parts, until berthd has what the bad user may have under way, or until that is over.
const (
	badRounds = 15
	badPairs  = 200
	badPause  = 50
	// badWarm is how many of root's calls come before the first round: after them berthd
	// keeps as much for readers of Watch as it ever does (twice limits.watchEvents, four
	// events for each pair), and as many traces. So what it grows by is not root's.
	badWarm = 2400
)

// badRoles are those of the bad users, each a benchmark of its own.
var badRoles = []string{"none", "read", "provider", "agent", "admin", "read" + badFrames}

// BenchmarkBadUser is what one user who takes all that he may have, 64 connections and 32
// calls at a time, does to root's Admit. A round measures the 99th percentile without him,
// while his process stands still, and beside him; what others do to the machine meanwhile
// concerns both. ns/op is the median of the rounds beside him, without-ns that without him,
// times the median of how many times one is of the other in a round, and grown-MiB how much
// more memory berthd has used at its peak. The bad user's own processes run when nobody else
// wants a processor. berthd-cpus and bad-cpus are the processors that berthd and he take
// beside root's calls: where berthd takes less than it does without him (idle-cpus), others
// kept him out, and the rest says nothing. The rounds are the repetition, so the card runs it
// once; a role alone is BadUser/ROLE.
func BenchmarkBadUser(b *testing.B) {
	for _, role := range badRoles {
		b.Run("Admit beside a user who may "+role+"/512/berth", func(b *testing.B) {
			n, bad := besideBadUser(b, role)
			part := func(pairs int) (p99 time.Duration) {
				took := make([]time.Duration, pairs)
				for i := range took {
					var err error
					if took[i], err = n.pair(b.Context(), wirePod("root")); err != nil {
						b.Fatal(err)
					}
				}
				slices.Sort(took)
				return took[len(took)*99/100]
			}
			part(badWarm)
			var without, beside, times, idle, busy, own []float64
			before := n.peak(b)
			for b.Loop() {
				for range badRounds {
					begun, used := time.Now(), n.used(b)
					alone := part(badPairs)
					idle = append(idle, (n.used(b)-used).Seconds()/time.Since(begun).Seconds())
					bad.signal(syscall.SIGCONT)
					part(badPause)
					begun, used, his := time.Now(), n.used(b), bad.used()
					together := part(badPairs)
					took := time.Since(begun).Seconds()
					busy, own = append(busy, (n.used(b)-used).Seconds()/took), append(own, (bad.used()-his).Seconds()/took)
					bad.signal(syscall.SIGSTOP)
					part(badPause)
					without, beside = append(without, float64(alone)), append(beside, float64(together))
					times = append(times, float64(together)/float64(alone))
				}
			}
			b.ReportMetric(middle(idle), "idle-cpus")
			b.ReportMetric(middle(busy), "berthd-cpus")
			b.ReportMetric(middle(own), "bad-cpus")
			b.ReportMetric(middle(beside), "ns/op")
			b.ReportMetric(middle(without), "without-ns")
			b.ReportMetric(middle(times), "times")
			b.ReportMetric(n.peak(b)-before, "grown-MiB")
		})
	}
}

// middle is the median.
func middle(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// TestBadUser keeps the benchmark honest: each bad user acts, and root is served.
func TestBadUser(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"none", "read"} {
		n, bad := besideBadUser(t, role)
		bad.signal(syscall.SIGCONT)
		for range 3 {
			if _, err := n.pair(t.Context(), wirePod("root")); err != nil {
				t.Fatal(err)
			}
		}
	}
}
