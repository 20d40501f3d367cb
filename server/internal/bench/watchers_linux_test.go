package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// initialVariable is the environment variable that has this program read the initial state at a socket with many streams at once.
const initialVariable = "BERTH_BENCH_INITIAL"

const (
	// manyWatchers connect at once after a restart of berthd, as on a large node.
	manyWatchers = 200
	manyPods     = 5000
	// memoryOfBerthd is half of what the DaemonSet gives to berthd.
	memoryOfBerthd = 512 << 20
)

// lastPart is a codec that only looks whether a message has a revision, as only the last part of the initial state has.
type lastPart struct{ unread }

func (lastPart) Unmarshal(data []byte, v any) error {
	const revision = 1 << 3 // the tag of field 1 as a varint, which is the first of a message
	*v.(*bool) = len(data) > 0 && data[0] == revision
	return nil
}

// readInitial opens many streams at once, and reads each until it has the whole initial state.
func readInitial(ctx context.Context, socket string) error {
	failed := make([]error, manyWatchers)
	var all sync.WaitGroup
	for i := range failed {
		all.Go(func() {
			failed[i] = func() error {
				client, err := berth.Dial(ctx, socket, berth.Options{})
				if err != nil {
					return err
				}
				stream, err := client.Conn().NewStream(ctx, &grpc.StreamDesc{ServerStreams: true},
					allocationv1.AllocationService_Watch_FullMethodName, grpc.ForceCodec(lastPart{}), grpc.WaitForReady(true))
				if err == nil {
					err = errors.Join(stream.SendMsg(nil), stream.CloseSend())
				}
				for last := false; err == nil && !last; {
					err = stream.RecvMsg(&last)
				}
				return err
			}()
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// TestWatchersOfManyPods: after a restart, all watchers of a node with many pods connect at once. berthd has little memory, is not
// killed, and serves all. The time is logged.
func TestWatchersOfManyPods(t *testing.T) {
	if os.Getenv("BERTH_LONG") == "" {
		t.Skip("takes minutes; BERTH_LONG=1 runs it")
	}
	group := newMemoryCgroup(t, memoryOfBerthd)
	f := newFolders(t)
	t.Cleanup(f.remove)
	n, _ := start(t, f)
	for i := range manyPods {
		p := oldPod(i)
		small := &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": "10m", "memory": "8Mi"}}
		p.Spec.Containers[0].Resources = small
		for _, name := range []string{"second", "third"} {
			p.Spec.Containers = append(p.Spec.Containers, &typesv1.Container{Name: name, Resources: small})
		}
		if err := n.admitPod(t.Context(), p, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.process.End(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		group.enter(t) // berthd inherits it
		n, first := start(t, f)
		group.leave(t)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), initialVariable+"="+n.socket)
		before, begun := n.used(t), time.Now()
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("the watchers: %v\n%s", err, text)
		}
		t.Logf("first answer after %v; %d watchers of %d pods served in %v, with %v of processor time; most memory %d MiB",
			first, manyWatchers, manyPods, time.Since(begun), n.used(t)-before, group.most(t)>>20)
		select {
		case <-n.process.Ended:
			t.Fatalf("berthd has ended: %v", n.process.Wait())
		default:
		}
		if err := n.process.End(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
}

// memoryCgroup is a cgroup with a memory limit.
type memoryCgroup struct{ dir, above, peak string }

func newMemoryCgroup(t *testing.T, bytes int) memoryCgroup {
	t.Helper()
	g := memoryCgroup{above: "/sys/fs/cgroup/memory", peak: "memory.max_usage_in_bytes"}
	limit := "memory.limit_in_bytes"
	if _, err := os.Stat(g.above); err != nil {
		g.above, g.peak, limit = "/sys/fs/cgroup", "memory.peak", "memory.max"
	}
	g.dir = filepath.Join(g.above, fmt.Sprintf("berthbench%d", os.Getpid()))
	err := os.Mkdir(g.dir, 0o755)
	if err == nil {
		t.Cleanup(func() { _ = nodetest.RemoveCgroups(context.Background(), filepath.Base(g.dir)) })
		err = os.WriteFile(filepath.Join(g.dir, limit), []byte(strconv.Itoa(bytes)), 0)
	}
	if err != nil {
		t.Skipf("needs a writable cgroup tree with the controller memory: %v", err)
	}
	return g
}

// enter moves this process into the cgroup, leave to the top.
func (g memoryCgroup) enter(t *testing.T) { g.move(t, g.dir) }
func (g memoryCgroup) leave(t *testing.T) { g.move(t, g.above) }

func (memoryCgroup) move(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		t.Fatal(err)
	}
}

// most is the most memory that the cgroup had.
func (g memoryCgroup) most(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, g.peak))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
