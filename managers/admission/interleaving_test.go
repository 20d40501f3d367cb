package admission_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

const (
	// nic is a resource of which there is enough for all, other than of gpu.
	nic = "example.com/nic"
	// never is the latency of a call without an answer, and answerTime how long a
	// plugin has.
	never      = time.Duration(-1)
	answerTime = 30 * time.Second
)

// operation is a call of the engine at a time.
type operation struct {
	kind  string // admit, resize, remove, sync, policy, machine
	at    time.Duration
	limit time.Duration
	pod   int
	// living pods of a sync; the number of a policy; the number of a machine.
	living  []int
	policy  int
	machine int
}

// scenario is a run: what its pods are, how its plugins answer, which calls are made.
type scenario struct {
	cpus, gpus, nics []int64
	// living is a pod that runs already, on the CPU that the rules reserve; -1 for none.
	living int
	// slow pods have a cgroup that takes a minute to make.
	slow []bool
	// latencies of the plugin of gpu, call by call, and of that of nic.
	latencies  []time.Duration
	nicLatency time.Duration
	operations []operation
}

const podsOfScenario = 6

func drawScenario(rt *rapid.T) scenario {
	var s scenario
	times := rapid.SampledFrom([]time.Duration{0, 0, time.Second, 20 * time.Second, never})
	for range podsOfScenario {
		s.cpus = append(s.cpus, rapid.Int64Range(0, 3).Draw(rt, "cpus"))
		s.gpus = append(s.gpus, max(0, rapid.Int64Range(-2, 3).Draw(rt, "gpus")))
		s.nics = append(s.nics, max(0, rapid.Int64Range(-2, 2).Draw(rt, "nics")))
		s.slow = append(s.slow, rapid.IntRange(0, 7).Draw(rt, "slow") == 0)
	}
	if s.living = rapid.IntRange(-1, podsOfScenario-1).Draw(rt, "pod that runs already"); s.living >= 0 {
		s.cpus[s.living], s.gpus[s.living], s.nics[s.living] = 1, 0, 0
	}
	s.latencies = rapid.SliceOfN(times, 1, 12).Draw(rt, "latencies")
	s.nicLatency = rapid.SampledFrom([]time.Duration{0, 0, 3 * time.Second}).Draw(rt, "latency of nic")
	for range rapid.IntRange(2, 16).Draw(rt, "operations") {
		s.operations = append(s.operations, operation{
			kind: rapid.SampledFrom([]string{"admit", "admit", "admit", "admit", "resize", "remove", "sync", "policy",
				"machine"}).Draw(rt, "kind"),
			at:     time.Duration(rapid.IntRange(0, 40).Draw(rt, "at")) * time.Second,
			limit:  rapid.SampledFrom([]time.Duration{5 * time.Second, time.Minute, time.Hour}).Draw(rt, "limit"),
			pod:    rapid.IntRange(0, podsOfScenario-1).Draw(rt, "pod"),
			living: rapid.SliceOfDistinct(rapid.IntRange(0, podsOfScenario-1), rapid.ID[int]).Draw(rt, "living"),
			policy: rapid.IntRange(0, 2).Draw(rt, "policy"), machine: rapid.IntRange(0, 1).Draw(rt, "machine"),
		})
	}
	return s
}

func podName(i int) string { return string(rune('a' + i)) }

func (s *scenario) pod(i int) workload.Pod {
	p := guaranteed(podName(i), max(s.cpus[i], 1), s.gpus[i])
	q := p.Containers[0].Limits
	if s.nics[i] > 0 {
		q[nic] = s.nics[i]
	}
	if s.cpus[i] == 0 {
		// It shares CPUs, and can be resized.
		p.Containers[0].Requests = workload.Quantities{workload.CPU: 100, workload.Memory: 1 << 20}
		delete(q, workload.CPU)
		for _, r := range []workload.Resource{gpu, nic} {
			if n := q[r]; n > 0 {
				p.Containers[0].Requests[r] = n
			}
		}
	}
	return p
}

// world runs a scenario, and collects what is wrong.
type world struct {
	*scenario
	*live.Engine
	ledger  *ledger.Ledger
	cgroups *cgroups
	// changes by machine, of which the second one has fewer CPUs, and policy.
	changes [2][3]admission.Change
	// rules is held while the policy or the machine is changed.
	rules chan struct{}

	mu       sync.Mutex
	calls    int
	inFlight map[string]bool // devices that are being allocated
	running  []interval
	wrong    []string
}

// interval is when an operation ran.
type interval struct {
	operation
	from, to time.Time
}

func (w *world) complain(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// Preferred takes the devices with the highest ids.
func (w *world) Preferred(ctx context.Context, resource string, available, _ []string, size int) ([]string, error) {
	if err := w.latency(ctx, resource); err != nil {
		return nil, err
	}
	return available[len(available)-size:], nil
}

func (w *world) Allocate(ctx context.Context, resource string, ids []string) ([]byte, error) {
	w.mu.Lock()
	for _, id := range ids {
		if w.inFlight[resource+id] {
			w.wrong = append(w.wrong, fmt.Sprintf("%s %s is being allocated twice", resource, id))
		}
		w.inFlight[resource+id] = true
	}
	w.mu.Unlock()
	for c := range w.ledger.View().Claims() {
		if c.Resource == resource && c.Devices != nil && slices.ContainsFunc(c.Devices.IDs(),
			func(id string) bool { return slices.Contains(ids, id) }) {
			w.complain("%s %v is allocated while %s holds %v", resource, ids, c.Owner, c.Devices.IDs())
		}
	}
	err := w.latency(ctx, resource)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		delete(w.inFlight, resource+id)
	}
	return []byte("response"), err
}

func (w *world) PreStart(context.Context, *ledger.View, ledger.Owner) error { return nil }

// latency passes as much time as the next call to a resource's plugin takes.
func (w *world) latency(ctx context.Context, resource string) error {
	w.mu.Lock()
	latency := w.nicLatency
	if resource == gpu {
		latency = w.latencies[w.calls%len(w.latencies)]
		w.calls++
	}
	w.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	answered := make(<-chan time.Time)
	if latency != never {
		answered = time.After(latency)
	}
	select {
	case <-answered:
		return nil
	case <-limited.Done():
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return errdefs.Deadlinef("the plugin for %s did not answer", resource)
	}
}

// slowCgroups take a minute for the cgroups of slow pods.
type slowCgroups struct {
	*cgroups
	w *world
}

func (p slowCgroups) EnsurePod(ctx context.Context, view *ledger.View, uid string) (string, bool, error) {
	if p.w.slow[uid[0]-'a'] {
		defer time.Sleep(time.Minute)
	}
	return p.cgroups.EnsurePod(ctx, view, uid)
}

func newWorld(t *testing.T, s *scenario) *world {
	m := machinetest.Build("2s1n32c1t")
	less, err := m.Without(cpuset.Range(20, 40))
	must(t, err)
	w := &world{scenario: s, inFlight: map[string]bool{}, rules: make(chan struct{}, 1)}
	inventory := device.NewInventory(nil, time.Now())
	list := func(resource string, n int, o device.Options) {
		var devices []device.Device
		for i := range n {
			devices = append(devices, g(fmt.Sprintf("d%02d", i), i%2))
		}
		inventory.Listed(inventory.Registered(resource, o, time.Now()), devices, time.Now())
	}
	list(gpu, 4, device.Options{Preferred: true})
	list(nic, 24, device.Options{})
	devices := device.New(inventory, w)
	for i := range 6 {
		m, policy := []*machine.Topology{m, less}[i/3], []topology.Policy{topology.None, topology.BestEffort, topology.SingleNUMANode}[i%3]
		cpus, err := cpu.New(cpu.Config{Policy: cpu.PolicyStatic, ReservedCPUs: m.CPUs().Lowest(1)}, m)
		must(t, err)
		bus, err := hint.NewBus(nil, []hint.Entry{{Provider: devices, Mode: hint.Required}, {Provider: cpus, Mode: hint.Required}}, nil)
		must(t, err)
		merger, err := topology.New(topology.Config{Policy: policy, Scope: hint.ContainerScope}, m.NodeMask(), m.Distances())
		must(t, err)
		w.changes[i/3][i%3] = admission.Change{
			Rules: ledger.Rules{Machine: m, ReservedCPUs: cpus.Reserved(), ConfigDigest: string(policy)}, Bus: bus, Policy: merger,
		}
	}
	w.ledger, _ = ledgertest.Open(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: w.changes[0][1].Rules})
	w.ledger.Follow(w.committed)
	w.cgroups = &cgroups{ledger: w.ledger.View, pods: map[string]bool{}, containers: map[string]string{}, fail: map[string]error{}}
	w.Engine = live.New(admission.New(admission.Config{DeferWaits: true}, admission.Parts{
		Ledger: w.ledger, CgroupManager: slowCgroups{w.cgroups, w}, Starter: w,
		Managers: func(view *ledger.View) (*hint.Bus, *topology.Manager) {
			if ch := w.under(view.Machine(), view.Rules().ConfigDigest); ch != nil {
				return ch.Bus, ch.Policy
			}
			panic("rules of nobody")
		},
		Environment: admission.Environment{
			Now: time.Now, WithTimeout: context.WithTimeout, NewID: sync.OnceValue(func() string { return "" }),
			Each: func(n int, do func(int)) {
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() { do(i) })
				}
				wg.Wait()
			},
		},
	}), live.Options{})
	return w
}

// under returns the change to a configuration on a machine.
func (w *world) under(m *machine.Topology, digest string) *admission.Change {
	for i := range w.changes {
		for j := range w.changes[i] {
			if ch := &w.changes[i][j]; ch.Rules.Machine == m && ch.Rules.ConfigDigest == digest {
				return ch
			}
		}
	}
	return nil
}

// committed compares every commit with the calls: no pod is removed without a call,
// and the claims of a pod do not change.
func (w *world) committed(before, after *ledger.View) {
	for _, ch := range ledger.Changes(before, after) {
		uid := ""
		if ch.Pod != nil {
			uid = ch.Pod.UID()
		}
		switch ch.Kind {
		case ledger.PodRemoved:
			if !slices.ContainsFunc(w.operations, func(o operation) bool {
				return o.kind == "remove" && podName(o.pod) == uid || o.kind == "sync" && !slices.Contains(o.living, int(uid[0]-'a'))
			}) {
				w.complain("pod %s was lost", uid)
			}
		case ledger.PodChanged:
			if was, _ := before.Pod(uid); !reflect.DeepEqual(was.Claims, ch.Pod.Claims) {
				w.complain("pod %s held %v and holds %v", uid, was.Claims, ch.Pod.Claims)
			}
		}
	}
}

// run carries out an operation, and holds the time that it took against what it needs.
func (w *world) run(o operation) {
	time.Sleep(o.at)
	ctx, cancel := context.WithTimeout(context.Background(), o.limit)
	defer cancel()
	from := time.Now()
	var err error
	switch o.kind {
	case "admit":
		var v admission.Verdict
		asks := admission.Request{Pod: w.pod(o.pod)}
		if o.pod == w.living {
			asks.RunningAllocations = []admission.RunningAllocation{{Container: "main", CPUs: cpuset.Of(0)}}
		}
		if v, err = w.Admit(ctx, asks); err == nil {
			w.answered(o, &v)
		}
		if o.pod == w.living && (v.Outcome != admission.Admitted || errdefs.ClassOf(err) == errdefs.Unavailable) && ctx.Err() == nil {
			w.complain("pod %s runs already, and is not taken over: %v %s, %v", podName(o.pod), v.Outcome, v.Message, err)
		}
	case "resize":
		p := w.pod(o.pod)
		p.Containers[0].Requests = replaced(p.Containers[0].Requests, workload.CPU, 200)
		_, err = w.Resize(ctx, resizeTo(p, false))
	case "remove":
		_, _, err = w.Remove(ctx, podName(o.pod), admission.Scope{})
	case "sync":
		var living []string
		for _, i := range o.living {
			living = append(living, podName(i))
		}
		_, err = w.Sync(ctx, admission.SyncRequest{Living: living, Known: w.ledger.View().Revision()})
	case "policy", "machine":
		w.rules <- struct{}{}
		now := w.ledger.View()
		if o.kind == "policy" {
			_, err = w.Reconfigure(ctx, *w.under(now.Machine(), w.changes[0][o.policy].Rules.ConfigDigest))
		} else {
			_, err = w.ChangeMachine(ctx, w.under(w.changes[o.machine][0].Rules.Machine, now.Rules().ConfigDigest).Rules)
		}
		<-w.rules
	}
	w.mu.Lock()
	w.running = append(w.running, interval{o, from, time.Now()})
	w.mu.Unlock()
	if err != nil && errdefs.ClassOf(err) == errdefs.Internal {
		w.complain("%s of %s: %v", o.kind, podName(o.pod), err)
	}
	if took := time.Since(from); took > o.limit && !w.slow[o.pod] {
		w.complain("%s of %s took %s of %s", o.kind, podName(o.pod), took, o.limit)
	}
}

// answered holds an answer against the ledger and the rules.
func (w *world) answered(o operation, v *admission.Verdict) {
	if v.Outcome == admission.Deferred && v.Condition.Type != admission.AdmissionsInFlight {
		w.complain("pod %s waits for %+v: %s", podName(o.pod), v.Condition, v.Message)
	}
	if v.Outcome != admission.Admitted {
		return
	}
	if have, ok := v.View.Pod(podName(o.pod)); !ok || !reflect.DeepEqual(have.Claims, v.Pod.Claims) {
		w.complain("pod %s is told to hold %v, in the ledger it has %v", podName(o.pod), v.Pod.Claims, have)
	}
	policies := slices.ContainsFunc(w.operations, func(o operation) bool { return o.kind == "policy" || o.kind == "machine" })
	if has(ledger.StepReplanned, v.Trace) && !policies {
		w.complain("pod %s was planned again, though the rules have not changed", podName(o.pod))
	}
}

// overdue returns operations that have waited longer than necessary. Time passes only
// while an operation waits, so independent operations take none.
func (w *world) overdue() {
	policies := 0
	for _, o := range w.operations {
		if o.kind == "policy" || o.kind == "machine" {
			policies++
		}
	}
	for i, r := range w.running {
		most := time.Duration(0)
		if r.kind == "admit" || r.kind == "resize" || r.kind == "remove" {
			if w.gpus[r.pod] > 0 && r.kind == "admit" || w.slow[r.pod] || slices.ContainsFunc(w.running, func(o interval) bool {
				return o.pod == r.pod && (o.kind == "admit" || o.kind == "resize" || o.kind == "remove") &&
					!reflect.DeepEqual(o, w.running[i]) &&
					!o.from.After(r.to) && !o.to.Before(r.from)
			}) {
				continue // it needs the plugin that may hang, its cgroup or the end of another operation
			}
			if w.nics[r.pod] > 0 {
				most = w.nicLatency * time.Duration(1+policies)
			}
		}
		if r.kind == "sync" && slices.ContainsFunc(w.running, func(o interval) bool {
			return (o.kind == "admit" || o.kind == "resize" || o.kind == "remove") && !slices.Contains(r.living, o.pod) &&
				!o.from.After(r.to) && !o.to.Before(r.from)
		}) {
			continue // it needs the end of an operation on a pod that it removes
		}
		if took := r.to.Sub(r.from); took > most {
			w.wrong = append(w.wrong, fmt.Sprintf("%s of %s at %s took %s, and needs %s", r.kind, podName(r.pod), r.at, took, most))
		}
	}
}

// TestInterleavings: whatever calls are made while plugins answer late or never, no claim is
// doubled or lost, no operation waits longer than necessary, and no reservation is left.
func TestInterleavings(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s := drawScenario(rt)
		var wrong []string
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, &s)
			var wg sync.WaitGroup
			for _, o := range s.operations {
				wg.Go(func() { w.run(o) })
			}
			wg.Wait()
			w.overdue()
			if left := w.Reserved(); len(left) > 0 {
				w.complain("reservations of %v are left", left)
			}
			for p := range w.ledger.View().Pods() {
				if !w.cgroups.pods[p.UID()] {
					w.complain("pod %s has no cgroup", p.UID())
				}
			}
			for uid := range w.cgroups.pods {
				if _, known := w.ledger.View().Pod(uid); !known {
					w.complain("the cgroup of pod %s is left", uid)
				}
			}
			for _, f := range check.View(w.ledger.View()) {
				if f.Kind == check.Structural {
					w.complain("%s", f.Text)
				}
			}
			wrong = w.wrong
			if now := w.ledger.View(); now.Machine() != w.changes[0][0].Rules.Machine {
				_, err := w.ChangeMachine(t.Context(), w.under(w.changes[0][0].Rules.Machine, now.Rules().ConfigDigest).Rules)
				must(t, err)
			}
			if w.living >= 0 { // a ledger at its end is held against the rules, too
				w.operations = append(w.operations, operation{kind: "remove", pod: w.living})
				_, _, _ = w.Remove(t.Context(), podName(w.living), admission.Scope{})
			}
		})
		if len(wrong) > 0 {
			rt.Fatalf("%s", strings.Join(wrong, "\n"))
		}
	})
}
