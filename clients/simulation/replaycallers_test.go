package simulation_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"pgregory.net/rapid"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// callers is how many call at the same time.
const callers = 8

// slowNode has cgroups that take some time to make and to change, while others are admitted.
type slowNode struct {
	admission.CgroupManager
	latencies []time.Duration
	mu        sync.Mutex
	calls     int // guarded by mu
}

func (n *slowNode) wait() {
	n.mu.Lock()
	n.calls++
	d := n.latencies[n.calls%len(n.latencies)]
	n.mu.Unlock()
	time.Sleep(d)
}

func (n *slowNode) EnsurePod(_ context.Context, _ *ledger.View, uid string) (string, bool, error) {
	n.wait()
	return "/" + uid, true, nil
}

func (n *slowNode) Resize(context.Context, *ledger.View, string) error { n.wait(); return nil }

func (n *slowNode) RemovePod(context.Context, *ledger.View, string) error { n.wait(); return nil }

func (*slowNode) ForgetPod(context.Context, *ledger.View, string) error { return nil }

func (*slowNode) CheckResize(context.Context, *ledger.View, string) error { return nil }

func (*slowNode) RecordClaims(context.Context, *ledger.View, string, bool) (func() error, error) {
	return func() error { return nil }, nil
}

// action is a call of a caller at a time.
type action struct {
	kind        string // admit, resize, remove
	after       time.Duration
	uid         string
	cpu, memory int64
	moves       live.Disruption
}

// round is the life of a berthd, which is killed at its end.
type round struct {
	calls [callers][]action
	kill  time.Duration
	// machines are those that berthd starts with and that it changes to, one after another.
	machines []int
}

// busyScene is what is called.
type busyScene struct {
	config    config.Config
	rounds    []round
	latencies []time.Duration
}

func drawBusy(r *rapid.T) (s busyScene) {
	s.config = config.Default()
	s.config.Memory.Policy, s.config.Memory.AllowUnreserved, s.config.Reserved.EvictionHard = "Static", true, map[string]string{}
	s.config.CPU.Policy, s.config.Reserved.CPUs = "static", cpuset.Of(0)
	s.config.Topology.Policy = rapid.SampledFrom([]topology.Policy{topology.BestEffort, topology.Restricted, topology.SingleNUMANode,
		topology.None}).Draw(r, "policy")
	s.config.Topology.Scope = rapid.SampledFrom([]string{"container", "pod"}).Draw(r, "scope")
	moments := rapid.IntRange(0, 20)
	for range rapid.IntRange(1, 12).Draw(r, "latencies") {
		s.latencies = append(s.latencies, time.Duration(moments.Draw(r, "latency"))*time.Second)
	}
	for n := range rapid.IntRange(1, 4).Draw(r, "rounds") {
		one := round{kill: time.Duration(rapid.IntRange(5, 100).Draw(r, "kill")) * time.Second}
		for range rapid.IntRange(1, 4).Draw(r, "machines") {
			one.machines = append(one.machines, rapid.IntRange(0, 2).Draw(r, "machine"))
		}
		for i := range one.calls {
			for range rapid.IntRange(1, 5).Draw(r, "calls") {
				a := action{
					kind: rapid.SampledFrom([]string{"admit", "admit", "admit", "resize", "remove"}).Draw(r, "kind"),
					// Some of the pods are admitted again, after they were refused or removed.
					uid: fmt.Sprintf("%d-%d-%d", rapid.IntRange(0, n).Draw(r, "of round"), i, rapid.IntRange(0, 3).Draw(r, "pod")),
					cpu: rapid.Int64Range(1, 6).Draw(r, "cpu"), memory: rapid.Int64Range(1, 40).Draw(r, "memory"),
					moves: rapid.SampledFrom([]live.Disruption{live.AnyDisruption, live.NoDisruption}).Draw(r, "moves"),
				}
				a.after = time.Duration(moments.Draw(r, "after")) * time.Second
				one.calls[i] = append(one.calls[i], a)
			}
		}
		s.rounds = append(s.rounds, one)
	}
	return s
}

// busyNode is a node on which several call at the same time.
type busyNode struct {
	*live.Engine
	t      *testing.T
	ledger *ledger.Ledger
}

// setsOf returns the managers on each of the machines, of which some have offline CPUs, by fingerprint.
func setsOf(t *testing.T, c config.Config) (machines []*machine.Topology, sets map[string]*managerset.Set) {
	sets = map[string]*managerset.Set{}
	for _, offline := range []string{"", "3,7,19", "2-5,24-29"} {
		m := machinetest.Build("2s1n8c2t", machinetest.Offline(offline))
		cfg, err := c.ManagerSet(m)
		must(t, err)
		set, err := managerset.New(cfg, m)
		must(t, err)
		set, err = set.Join([]hint.Entry{{Provider: device.New(device.NewInventory(nil, time.Now()), nil), Mode: hint.Required}}, nil)
		must(t, err)
		machines, sets[m.Fingerprint()] = append(machines, m), set
	}
	return machines, sets
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func startBusy(t *testing.T, s *busyScene, j *ledgertest.Journal, m *machine.Topology, sets map[string]*managerset.Set) *busyNode {
	n := &busyNode{t: t}
	var err error
	recorder := history.New(history.Limits{Entries: 10_000, Bytes: 64 << 20}, time.Now)
	n.ledger, _, err = journal.Open(context.Background(), journal.Options{
		Journal: j, Rules: sets[m.Fingerprint()].Rules, History: recorder,
	})
	must(t, err)
	var id atomic.Int64
	n.Engine = live.New(admission.New(admission.Config{
		Features: s.config.WorkloadFeatures(), Bounds: workload.Bounds{Containers: s.config.Limits.Containers},
		Resources: s.config.Resources(time.Now()), Tries: -1, DeferWaits: true,
	}, admission.Parts{
		Ledger: n.ledger, History: recorder, CgroupManager: &slowNode{latencies: s.latencies},
		Managers: func(v *ledger.View) (*hint.Bus, *topology.Manager) {
			set := sets[v.Machine().Fingerprint()]
			return set.Bus, set.Topology
		},
		Environment: admission.Environment{
			Now: time.Now, WithTimeout: context.WithTimeout,
			NewID: func() string { return fmt.Sprintf("id-%d-%d", time.Now().UnixNano(), id.Add(1)) },
		},
	}), live.Options{})
	return n
}

// do makes a call, which may be refused, and fails if berthd is killed meanwhile.
func (n *busyNode) do(a action) {
	time.Sleep(a.after)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	amounts := workload.Quantities{workload.CPU: a.cpu * 1000, workload.Memory: a.memory << 30}
	call := &history.Call{Time: time.Now()}
	switch a.kind {
	case "admit":
		pod := workload.Pod{UID: a.uid, Name: a.uid, Namespace: "default",
			Containers: []workload.Container{{Name: "main", Requests: amounts, Limits: amounts}}}
		call.Name, call.Request = "Admit", &history.Request{Pod: &pod}
		_, _ = n.Admit(history.WithCall(ctx, call), admission.Request{Pod: pod})
	case "resize":
		changes := []workload.Change{{Container: "main", Requests: amounts, Limits: amounts}}
		call.Name, call.Request = "Resize", &history.Request{Changes: changes, MaxMove: int(a.moves)}
		_, _ = n.Resize(history.WithCall(ctx, call), live.ResizeRequest{UID: a.uid, Changes: changes, MaxMove: a.moves})
	case "remove":
		call.Name = "RemovePod"
		_, _, _ = n.Remove(history.WithCall(ctx, call), a.uid, admission.Scope{})
	}
}

// live lets the callers call until berthd is killed, and returns its journal.
func (n *busyNode) live(s *round, j *ledgertest.Journal, change func(machine int)) *ledgertest.Journal {
	var wg sync.WaitGroup
	for _, calls := range s.calls {
		wg.Go(func() {
			for _, a := range calls {
				n.do(a)
			}
		})
	}
	for _, m := range s.machines[1:] {
		time.Sleep(s.kill / time.Duration(len(s.machines)))
		change(m)
	}
	time.Sleep(s.kill / time.Duration(len(s.machines)))
	again := j.Reopen()
	wg.Wait()
	return again
}

// play lets everything happen, and replays the history.
func (s *busyScene) play(t *testing.T) (*history.History, *admissionv1.Replay) {
	machines, sets := setsOf(t, s.config)
	j := ledgertest.NewJournal()
	for i := range s.rounds {
		one := &s.rounds[i]
		n := startBusy(t, s, j, machines[one.machines[0]], sets)
		j = n.live(one, j, func(m int) {
			_, err := n.ChangeMachine(context.Background(), sets[machines[m].Fingerprint()].Rules)
			must(t, err)
		})
	}
	last := machines[s.rounds[len(s.rounds)-1].machines[0]]
	n := startBusy(t, s, j, last, sets)
	for _, f := range check.View(n.ledger.View()) {
		if f.Kind == check.Structural {
			t.Errorf("%s", f)
		}
	}
	digest, err := s.config.Digest()
	must(t, err)
	out, _, err := simulation.Scene{Machine: last, Config: s.config}.Replay(t.Context(), &simulation.Record{
		View: n.ledger.View(), Fingerprint: last.Fingerprint(), ConfigDigest: digest, Machine: last, Config: &s.config,
		History: func(each func(*history.Entry, error) bool) error { return n.History.Entries(t.Context(), 0, each) },
	}, simulation.ReplayOptions{Explain: 3})
	must(t, err)
	return n.History, out
}

// TestReplayOfCallers: verdicts and placements of calls that overlapped are decided again as they were, though pods
// were admitted, resized and removed meanwhile, CPUs came and went, and berthd was killed in the middle.
func TestReplayOfCallers(t *testing.T) {
	t.Parallel()
	verdicts, beside, overtaken, changes := 0, 0, 0, 0
	rapid.Check(t, func(r *rapid.T) {
		s := drawBusy(r)
		var wrong string
		synctest.Test(t, func(t *testing.T) {
			l, out := s.play(t)
			if out.GetDiffer() != 0 || out.GetMoved() != 0 || skipsMore(out) || !out.GetSameConfiguration() || !out.GetSameMachine() {
				wrong = prototext.Format(out)
			}
			verdicts, changes = verdicts+int(out.GetVerdicts()), changes+int(out.GetMachineChanges())
			var all []*history.Entry
			must(t, l.Entries(t.Context(), 0, func(e *history.Entry, damage error) bool {
				must(t, damage)
				all = append(all, e)
				return true
			}))
			for _, e := range slices.Backward(all) {
				if e.Basis != nil && len(e.Basis.Reserved) > 0 {
					beside++
				}
				if e.Basis != nil && e.Verdict == "admitted" && e.Basis.Revision+1 < e.Revision {
					overtaken++
				}
			}
		})
		if wrong != "" {
			r.Fatalf("%s", wrong)
		}
	})
	if verdicts == 0 || beside == 0 || overtaken == 0 || changes == 0 {
		t.Errorf("%d verdicts, %d beside others, %d committed after others, %d changes of the machine", verdicts, beside, overtaken,
			changes)
	}
}
