package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
)

// processors reads the CPUs that the threads of a process run on: state and field 39
// of proc_pid_stat(5). For a thread that sleeps, its value is old.
func processors(t *testing.T, pid int) (cpus []int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d has no threads, %v", pid, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		const processor = 39 - 3 // fields are counted from 1, and two are cut off
		fields := strings.Fields(string(text[strings.LastIndex(string(text), ")")+1:]))
		if fields[0] != "R" {
			continue
		}
		cpu, err := strconv.Atoi(fields[processor])
		if err != nil {
			t.Fatal(err)
		}
		cpus = append(cpus, cpu)
	}
	return cpus
}

// TestBusy lets a shared container and then an exclusive one keep a CPU busy: from
// the first moment that the second runs, they are never on one CPU.
func TestBusy(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	testBusy(newNode(t))
}

func testBusy(n *node) {
	t := n.t
	spin := func(text string) string { return strings.Replace(text, ", wait]", ", spin]", 1) }
	n.manifest("shared", spin(shared))
	n.running("shared")
	other := n.pid("shared", "main")
	n.manifest("exclusive", spin(exclusive))
	n.running("exclusive")
	own := n.pid("exclusive", "main")
	cpus, err := cpuset.Parse(n.allocate("exclusive", "main").GetResources().GetCpusetCpus().GetList())
	if err != nil || cpus.Len() != 1 {
		t.Fatalf("exclusive CPUs %s, %v", cpus, err)
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	var seen, seenOther int
	for range 200 {
		for _, cpu := range processors(t, own) {
			if seen++; !cpus.Contains(cpu) {
				t.Fatalf("the exclusive container runs on CPU %d, its own are %s", cpu, cpus)
			}
		}
		for _, cpu := range processors(t, other) {
			if seenOther++; cpus.Contains(cpu) {
				t.Fatalf("the shared container runs on CPU %d, which is the other's", cpu)
			}
		}
		<-tick.C
	}
	if seen == 0 || seenOther == 0 {
		t.Errorf("seen running %d and %d times", seen, seenOther)
	}
	n.withdraw("shared")
	n.withdraw("exclusive")
	n.noPods()
}

// atLength requests tests of full length: make test-all.
const atLength = "BERTH_LONG"

// TestChaos kills both programs again and again while pods come and go. No
// container ever has a CPU of its own together with another one. In the end every
// pod with a manifest runs as in the ledger, and nothing else runs.
func TestChaos(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	kills := 5
	if os.Getenv(atLength) != "" {
		kills = 20
	}
	testChaos(newNode(t), kills)
}

func testChaos(n *node, kills int) {
	t := n.t
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	stop := n.watchOverlaps()
	defer stop()
	var wanted []string
	exclusivePod, next := "", 0
	for range kills {
		for range rnd.IntN(3) {
			switch {
			case len(wanted) > 0 && rnd.IntN(3) == 0:
				i := rnd.IntN(len(wanted))
				if wanted[i] == exclusivePod {
					// Two exclusive pods do not fit at once: the next one waits for this
					// one to be gone, which it is not before berthlet has seen it.
					n.eventually(exclusivePod+" is seen", func() bool { return n.pods()[exclusivePod].UID != "" })
					exclusivePod = ""
					n.withdraw(wanted[i])
					n.gone(wanted[i])
				} else {
					n.withdraw(wanted[i])
				}
				wanted = append(wanted[:i], wanted[i+1:]...)
			case len(wanted) < 4:
				next++
				name, text := "p"+strconv.Itoa(next), []string{shared, ordered}[rnd.IntN(2)]
				if exclusivePod == "" {
					name, text = ownPrefix+strconv.Itoa(next), exclusive
					exclusivePod = name
				}
				n.manifest(name, text)
				wanted = append(wanted, name)
			}
		}
		// Somewhere in the middle of what follows from that.
		until := n.steps() + rnd.IntN(6)
		n.eventually("some steps are done, or all", func() bool { return n.steps() >= until || n.done(wanted) })
		n.killSome(rnd)
	}
	n.awaitPods(wanted)
	if next > 0 && n.steps() == 0 {
		t.Error("the log names no step, so all kills came after all steps")
	}
	for _, name := range wanted {
		n.withdraw(name)
	}
	n.noPods()
}

// killSome kills one or more of the programs, in any order, and starts them again.
func (n *node) killSome(rnd *rand.Rand) {
	n.t.Helper()
	type program struct{ kill, start func() }
	// In the order of their starts: berthd comes up only with the runtime.
	programs := []program{
		{func() { _ = n.berthd.End(os.Kill) }, n.startBerthd},
		{func() { _ = n.berthlet.End(os.Kill) }, n.startBerthlet},
	}
	if n.containerd != nil {
		programs = append([]program{{n.killContainerd, n.startContainerd}}, programs...)
	}
	chosen := rnd.Perm(len(programs))[:1+rnd.IntN(len(programs))]
	for _, i := range chosen {
		programs[i].kill()
	}
	slices.Sort(chosen)
	for _, i := range chosen {
		programs[i].start()
	}
}

// ownPrefix begins the names of pods with CPUs of their own.
const ownPrefix = "own"

// watchOverlaps looks again and again, until it is stopped, whether a process of
// another pod may run on a CPU that a container has for itself. stop returns how often it
// has seen a container with CPUs of its own.
func (n *node) watchOverlaps() (stop func() (seen int)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	seen := 0
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			before, all := n.placed(ownPrefix), n.placed("")
			after := n.placed(ownPrefix)
			for pid, own := range before {
				if after[pid] != own || own.cpus.Contains(0) {
					continue // it has come or gone meanwhile, or shares: CPU 0 is reserved
				}
				seen++
				for other, at := range all {
					if at.pod != own.pod && at.cpus.Overlaps(own.cpus) {
						n.t.Errorf("process %d of pod %s has CPUs %s for itself, and process %d of pod %s may run on %s", pid, own.pod,
							own.cpus, other, at.pod, at.cpus)
					}
				}
			}
			<-tick.C
		}
	}()
	return func() int { cancel(); <-done; return seen }
}

// placedProgram is the pod of a program in a container, and the CPUs that it may run on.
type placedProgram struct {
	pod  string
	cpus cpuset.Set
}

// placed reads, by process, where the programs in containers of the pods with a prefix are.
func (n *node) placed(prefix string) map[int]placedProgram {
	out := map[int]placedProgram{}
	for _, dir := range nodetest.Cgroups(n.top()) {
		_, pod, found := strings.Cut(dir, "/pod")
		if !found {
			_, pod, found = strings.Cut(dir, "-pod") // a slice
		}
		if !found || !strings.HasPrefix(pod, prefix) {
			continue
		}
		pod, _, _ = strings.Cut(pod, "/")
		procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, text := range strings.Fields(string(procs)) {
			pid, err := strconv.Atoi(text)
			if err != nil {
				continue
			}
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil || !bytes.HasPrefix(status, []byte("Name:\tprobe\n")) || bytes.Contains(status, []byte("State:\tZ")) {
				continue // it has not begun, or has ended
			}
			_, rest, _ := strings.Cut(string(status), "Cpus_allowed_list:")
			list, _, _ := strings.Cut(rest, "\n")
			if cpus, err := cpuset.Parse(strings.TrimSpace(list)); err == nil {
				out[pid] = placedProgram{pod, cpus}
			}
		}
	}
	return out
}

// gone waits until berthlet knows a pod no more. A berthlet that has just started
// shows what the one before wrote.
func (n *node) gone(name string) {
	n.t.Helper()
	n.eventually(name+" is gone", func() bool { return n.pods()[name].UID == "" })
}

// steps counts what berthlets have done so far.
func (n *node) steps() int { return strings.Count(n.log("berthlet").String(), `msg="taking a step"`) }

// done reports whether exactly some pods are there, and run.
func (n *node) done(wanted []string) bool {
	pods := n.pods()
	for _, name := range wanted {
		if !allRun(pods[name]) {
			return false
		}
	}
	return len(pods) == len(wanted)
}

// awaitPods waits until exactly some pods run, and compares processes, ledger and
// cgroups.
func (n *node) awaitPods(wanted []string) {
	n.t.Helper()
	n.eventually("the pods run", func() bool { return n.done(wanted) })
	n.eventually("berthd has these pods and no others", func() bool {
		list, err := n.client.Allocation().List(n.t.Context(), &allocationv1.ListRequest{})
		return err == nil && len(list.GetPods()) == len(wanted)
	})
	for _, name := range wanted {
		for _, c := range n.pods()[name].ContainerStatuses {
			pid := n.pid(name, c.Name)
			n.eventually(name+" is where berthd says", func() bool {
				return n.cpusOf(pid) == n.allocate(name, c.Name).GetResources().GetCpusetCpus().GetList()
			})
		}
	}
	check, err := n.client.Inspect().Check(n.t.Context(), &inspectv1.CheckRequest{})
	if err != nil || len(check.GetFindings()) > 0 {
		n.t.Errorf("check: %v, %v", check, err)
	}
	pods := map[string]bool{}
	for _, dir := range nodetest.Cgroups(n.top()) {
		if _, name, ok := strings.Cut(dir, "/pod"); ok && !strings.Contains(name, "/") {
			pods[strings.TrimSuffix(name, "-uid")] = true
		}
	}
	if len(pods) != len(wanted) {
		n.t.Errorf("cgroups of the pods %v, wanted are %v", pods, wanted)
	}
}
