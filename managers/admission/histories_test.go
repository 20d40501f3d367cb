package admission_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/transition"
	"github.com/berthd/berth/managers/workload"
)

// course is an engine on a random machine, with what has happened.
type course struct {
	*twoNodes
	r *rapid.T
	// machine changes; now is the one of the engine, and of each restart.
	machine *changingMachine
	// policy and scope are those of the start; a later policy is in config.
	policy topology.Policy
	scope  hint.Scope
	now    *machine.Topology
	// before are the pods before the resize that moves them.
	before map[string]workload.Pod
	// changed is whether the machine or the policy has ever changed, and failing is whether the next commit fails.
	changed, failing bool
	log              []string
}

var (
	policies = []topology.Policy{topology.SingleNUMANode, topology.Restricted, topology.BestEffort, topology.None}
	movables = []workload.Movable{workload.MovableAnywhere, workload.MovableAnywhere, workload.MovableWithinNodes, workload.NeverMovable}
)

func newHistory(r *rapid.T) *course {
	h := &course{r: r, before: map[string]workload.Pod{}}
	h.scope = rapid.SampledFrom([]hint.Scope{hint.ContainerScope, hint.PodScope}).Draw(r, "scope")
	h.policy = rapid.SampledFrom(policies).Draw(r, "policy")
	h.machine = newChangingMachine(rapid.SampledFrom(shapes).Draw(r, "machine"))
	h.twoNodes = changing(r, h.policy, h.scope)
	h.config.CPU.Features.AlphaOptions = true
	h.config.CPU.Options = map[string]string{}
	options := []string{"", "", cpu.FullPCPUsOnly, cpu.StrictReservation, cpu.DistributeAcrossNUMA, cpu.DistributeAcrossCores,
		cpu.PreferUncores}
	if o := rapid.SampledFrom(options).Draw(r, "option"); o != "" {
		h.config.CPU.Options[o] = "true"
	}
	h.config.Fit = rapid.IntRange(0, 3).Draw(r, "fit") == 0
	h.onMachine()
	return h
}

// onMachine lets the engine follow the machine.
func (h *course) onMachine() {
	h.now = h.machine.build()
	h.become(h.r, h.now)
	h.note("machine: %s", h.machine)
}

func (h *course) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

// Fatalf ends the test, with the history.
func (h *course) Fatalf(format string, args ...any) {
	h.r.Helper()
	for p := range h.ledger.View().Pods() {
		h.note("%s has %s", p.UID(), h.has(p.UID()))
	}
	h.r.Fatalf("%s\nmachine %s, policy %s, scope %s\n%s", fmt.Sprintf(format, args...), h.machine.shape, h.policy, h.scope,
		strings.Join(h.log, "\n"))
}

func (h *course) Helper()                           {}
func (h *course) Cleanup(func())                    {}
func (h *course) Errorf(format string, args ...any) { h.Fatalf(format, args...) }

// may fails after an error of another class than the given ones, and returns whether there was none.
func (h *course) may(err error, classes ...errdefs.Class) bool {
	if err == nil {
		return true
	}
	for _, c := range append(classes, errdefs.Unavailable) {
		if errdefs.ClassOf(err) == c && (h.failing || c != errdefs.Unavailable) {
			h.note("  %v", err)
			return false
		}
	}
	h.Fatalf("%v", err)
	return false
}

func (h *course) amounts() workload.Quantities {
	cpus := rapid.Int64Range(1, 4).Draw(h.r, "cpus") * 1000
	if evenly16(h.r, "a fraction") == 0 {
		cpus = 500
	}
	gib := rapid.Int64Range(1, 3).Draw(h.r, "gib")
	if evenly16(h.r, "of several nodes") == 0 {
		gib = 15
	}
	return workload.Quantities{workload.CPU: cpus, workload.Memory: gib * gi}
}

// pod draws a pod: with resources as a whole, on shared CPUs, or with up to three containers of any role.
func (h *course) pod(uid string) workload.Pod {
	p := workload.Pod{UID: uid, Name: uid, Namespace: "default"}
	switch kind := evenly16(h.r, "kind of pod"); {
	case kind == 0:
		p = asWhole(uid, rapid.Int64Range(2, 4).Draw(h.r, "cpus"), rapid.Int64Range(2, 4).Draw(h.r, "gib"))
	case kind <= 2:
		p.Containers = []workload.Container{{Name: "c0", Requests: workload.Quantities{workload.CPU: 100, workload.Memory: gi / 8}}}
	default:
		n := rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(h.r, "containers")
		for i := range n {
			q := h.amounts()
			if rapid.IntRange(0, 5).Draw(h.r, "huge pages") == 0 {
				q["hugepages-2Mi"] = rapid.Int64Range(1, 200).Draw(h.r, "pages") << 21
			}
			if rapid.IntRange(0, 5).Draw(h.r, "large huge pages") == 0 {
				q["hugepages-1Gi"] = rapid.Int64Range(1, 2).Draw(h.r, "pages") * gi
			}
			c := workload.Container{Name: fmt.Sprint("c", i), Requests: q, Limits: q}
			if i < n-1 && (i == 0 || p.Containers[i-1].Role != workload.App) {
				c.Role = rapid.SampledFrom([]workload.Role{workload.App, workload.Init, workload.Sidecar}).Draw(h.r, "role")
			}
			p.Containers = append(p.Containers, c)
		}
		if rapid.IntRange(0, 5).Draw(h.r, "gpu") == 0 {
			p = onGPU(p)
		}
		if len(h.machine.nodes) > 2 && rapid.IntRange(0, 5).Draw(h.r, "nic") == 0 {
			p.Containers[0].Limits[farNIC], p.Containers[0].Requests[farNIC] = 1, 1
		}
	}
	return movable(p, rapid.SampledFrom(movables).Draw(h.r, "movable"))
}

// large draws a pod that needs much of a node.
func (h *course) large(uid string) workload.Pod {
	n := h.machine.nodes[0].cpus.Len()
	return podOf(uid, [2]int64{rapid.Int64Range(int64(n)/2, int64(n)).Draw(h.r, "cpus"), rapid.Int64Range(1, 8).Draw(h.r, "gib")})
}

// amountsOf returns the amounts of a pod that can change.
func amountsOf(p workload.Pod) (out []workload.Change) {
	of := func(q workload.Quantities) workload.Quantities {
		if q == nil {
			return nil
		}
		return workload.Quantities{workload.CPU: q[workload.CPU], workload.Memory: q[workload.Memory]}
	}
	if p.Resources != nil {
		return []workload.Change{{Requests: of(p.Resources.Requests), Limits: of(p.Resources.Limits)}}
	}
	for _, c := range p.Containers {
		if c.Role != workload.Init {
			out = append(out, workload.Change{Container: c.Name, Requests: of(c.Requests), Limits: of(c.Limits)})
		}
	}
	return out
}

func (h *course) resizeAny() {
	pod, ok := h.ledger.View().Pod(h.drawPod(h.r, "resized"))
	if !ok {
		return
	}
	limits := []live.Disruption{live.AnyDisruption, live.AnyDisruption, live.NoDisruption, live.MovesCPUs,
		live.MovesMemory}
	req := live.ResizeRequest{UID: pod.UID(), Changes: amountsOf(pod.Pod),
		MaxDisruption: rapid.SampledFrom(limits).Draw(h.r, "disruption")}
	for i := range req.Changes {
		if c := &req.Changes[i]; c.Limits != nil && rapid.Bool().Draw(h.r, "changes") {
			q := h.amounts()
			c.Requests, c.Limits = q, q
		}
	}
	if pod.Move == nil {
		h.before[pod.UID()] = pod.Pod
	}
	got, err := h.resize(req)
	h.note("resize of %s to %v: %s %s", pod.UID(), req.Changes, got.Outcome, got.Message)
	if !h.may(err, errdefs.Invalid) {
		return
	}
	if now, _ := h.ledger.View().Pod(pod.UID()); got.Outcome != admission.Admitted && now != pod {
		h.Fatalf("a resize that was refused has changed the pod")
	}
}

// turnBack reverses the move of a pod.
func (h *course) turnBack(uid string) {
	pod, _ := h.ledger.View().Pod(uid)
	h.note("%s turns back", uid)
	switch {
	case pod.Move.SameAmounts && h.changed:
		h.may(h.CancelMove(context.Background(), uid), errdefs.Refused)
	case pod.Move.SameAmounts:
		h.may(h.CancelMove(context.Background(), uid))
	case pod.Move.Before != "":
		got, err := h.Resize(context.Background(), live.ResizeRequest{UID: uid, Changes: amountsOf(h.before[uid])})
		if h.may(err) && got.Outcome != admission.Admitted && !h.changed {
			h.Fatalf("pod %s is not resized back: %s", uid, got.Message)
		}
	}
}

// step makes the next step of a pod's move, and returns whether there is none.
func (h *course) step(uid string) bool {
	m, err := h.Advance(context.Background(), uid, false)
	if m.Step != nil {
		h.note("%s", m.Step)
	}
	if h.changed {
		return h.may(err, errdefs.Refused) && m.Done
	}
	return h.may(err) && m.Done
}

func (h *course) moving() (out []string) {
	for p := range h.ledger.View().Pods() {
		if p.Move != nil {
			out = append(out, p.UID())
		}
	}
	return out
}

// begin begins up to two moves of a plan for a pod.
func (h *course) begin(p workload.Pod) {
	plan, err := h.PlanDefragment(context.Background(), live.DefragmentRequest{Pod: p, MaxMoves: 3})
	h.may(err, errdefs.Invalid)
	for _, m := range plan.Moves[:min(len(plan.Moves), 2)] {
		h.note("%s moves for %s", m.UID, p.UID)
		if !h.may(h.Relocate(context.Background(), m, 0), errdefs.Refused) {
			return // it holds what the first one has released
		}
	}
}

// carryOut makes the moves of a plan, each to its end, and admits the pod: all as the plan says.
func (h *course) carryOut(p workload.Pod) {
	plan, err := h.PlanDefragment(context.Background(), live.DefragmentRequest{Pod: p, MaxMoves: 3})
	if !h.may(err, errdefs.Invalid) || !plan.Fits() {
		return
	}
	for _, m := range plan.Moves {
		h.note("%s moves for %s, to the end", m.UID, p.UID)
		h.may(h.Relocate(context.Background(), m, 0))
		h.check()
		h.arrives(m)
	}
	h.admit(p)
	for then := range plan.After.Pods() {
		if now, ok := h.ledger.View().Pod(then.UID()); !ok || content(now) != content(then) {
			h.Fatalf("pod %s was to have %s", then.UID(), content(then))
		}
	}
}

// arrives makes the steps of a move, which are those of its plan after the first ones. These were made when it began.
func (h *course) arrives(m live.Relocation) {
	planned := m.Plan.Steps
	for len(planned) > 0 && planned[0].Kind == transition.Widen {
		planned = planned[1:]
	}
	for _, want := range planned {
		got, err := h.Advance(context.Background(), m.UID, false)
		h.may(err)
		if got.Step == nil || got.Step.String() != want.String() {
			h.Fatalf("step %v of pod %s, want %s", got.Step, m.UID, &want)
		}
		h.check()
	}
	if p, _ := h.ledger.View().Pod(m.UID); p.Move != nil {
		h.Fatalf("pod %s still moves after all steps of its plan", m.UID)
	}
}

func (h *course) replaceLosses() {
	for _, l := range live.Losses(h.ledger.View()) {
		h.note("%s: %s", l.UID, l)
		plan, err := h.PlanReplacement(context.Background(), l)
		began := h.may(err, errdefs.Refused, errdefs.Conflict) && h.may(h.Relocate(context.Background(), plan, 0), errdefs.Refused,
			errdefs.Conflict)
		if began && !h.failing && rapid.IntRange(0, 2).Draw(h.r, "to the end") == 0 {
			h.check()
			h.arrives(plan)
		}
	}
}

// restart opens the ledger again, on the machine as it is then. The containers still run.
func (h *course) restart() {
	if h.changed && rapid.IntRange(0, 2).Draw(h.r, "the machine changes meanwhile") == 0 {
		h.machine.draw(h.r)
	}
	h.now = h.machine.build()
	h.note("restart on machine: %s", h.machine)
	again := nodesOn(h.r, h.config, h.now, h.journal.Reopen(), ledgertest.OpenChanging)
	again.kernel = h.kernel
	again.cgroups.pods, again.cgroups.containers = h.cgroups.pods, h.cgroups.containers
	h.twoNodes = again
}

func (h *course) change() {
	switch change := evenly16(h.r, "change"); {
	case change < 10:
		h.machine.draw(h.r)
		h.onMachine()
		h.changed = true
	case change < 12:
		h.config.Topology.Policy = rapid.SampledFrom(policies).Draw(h.r, "policy")
		h.note("policy %s", h.config.Topology.Policy)
		h.become(h.r, h.now)
		h.changed = true
	default:
		h.restart()
	}
}

// crash lets the next commit fail, before or after it is written, while something happens. Then berthd starts again, or goes on
// if nothing was written.
func (h *course) crash(uid string) {
	h.failing = true
	commits := h.journal.Commits()
	wrote := rapid.Bool().Draw(h.r, "the commit is written")
	h.note("the next commit fails, written: %v", wrote)
	if wrote {
		h.journal.LoseNext(1, errdefs.Unavailablef("crash"))
	} else {
		h.journal.FailNext(1, errdefs.Unavailablef("crash"))
	}
	h.happen(uid)
	h.failing = false
	if wrote || h.journal.Commits() == commits || rapid.Bool().Draw(h.r, "restart") {
		h.restart()
	}
}

// happen does something that is drawn; uid is a new one.
func (h *course) happen(uid string) {
	moving := h.moving()
	switch op := evenly16(h.r, "operation"); {
	case op <= 3:
		h.admit(h.pod(uid))
	case op == 4:
		uid := h.drawPod(h.r, "removed")
		h.note("removal of %q", uid)
		_, _, err := h.Remove(context.Background(), uid, admission.Scope{})
		h.may(err)
	case op <= 6:
		h.resizeAny()
	case op == 7 && !h.failing:
		h.change()
	case op == 8 && !h.failing && len(moving) == 0:
		h.carryOut(h.large(uid))
	case op <= 9:
		h.begin(h.large(uid))
	case op <= 11:
		h.replaceLosses()
	case len(moving) == 0:
	case op == 12:
		h.turnBack(rapid.SampledFrom(moving).Draw(h.r, "turns back"))
	default:
		h.step(rapid.SampledFrom(moving).Draw(h.r, "moves on"))
	}
}

// evenly16 draws a number below 16. Each is as probable as the others, unlike with rapid.IntRange.
func evenly16(r *rapid.T, label string) (n int) {
	for _, bit := range rapid.SliceOfN(rapid.Bool(), 4, 4).Draw(r, label) {
		if n *= 2; bit {
			n++
		}
	}
	return n
}

// TestRandomHistories: on random histories of admissions, removals, resizes, moves, replacements, restarts and changes of the
// machine and the policy, on random machines and between the steps of moves, the invariants hold after each commit:
// no CPU has two owners, no container runs on exclusive CPUs of another one, no container has less than it requests, and each
// thing that a pod has and the machine lacks is one finding. Only changes of the machine make findings. Nothing fails otherwise than
// by a refusal, each move ends, and what a dry run or a plan says is what happens.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		h := newHistory(r)
		for i := range rapid.IntRange(8, 40).Draw(r, "operations") {
			before := h.ledger.View()
			if uid := fmt.Sprint("p", i); evenly16(r, "crash") == 0 {
				h.crash(uid)
			} else {
				h.happen(uid)
			}
			h.check()
			if after := h.ledger.View(); machine.Compare(before.Machine(), after.Machine()).Empty() {
				h.worse(before, after)
			}
		}
		for _, uid := range h.moving() {
			for n := 0; !h.step(uid); n++ {
				if h.check(); n > 50 {
					h.Fatalf("pod %s does not arrive", uid)
				}
			}
			h.check()
		}
	})
}
