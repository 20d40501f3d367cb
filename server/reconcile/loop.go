package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/server/failpoint"
)

// Config of a Loop.
type Config struct {
	Tree   cgroup.Tree
	Layout cgroup.Layout
	// NoPodCgroups makes no cgroup for any pod, tier or container, and takes none for a
	// pod's. What runs on which CPUs is the runtime's to carry out, or the agent's.
	NoPodCgroups bool
	// Listed are cgroups beside those of pods that may be looked at and changed by hand;
	// Plain reaches those that are plain directories, nil where Tree does.
	Listed []Listed
	Plain  cgroup.Tree
	Limits
	// Records keeps the pods' claim records; nil where they cannot be kept.
	Records cgroup.Records
	// Unseen says that the tree is not the kernel's: it shows no processes.
	Unseen bool
	// Failpoint is for tests; nil otherwise.
	Failpoint failpoint.Hook
	// OnDrift says what happens to values that somebody else changed; empty means
	// Heal.
	OnDrift OnDrift
	// View returns the current view.
	View func() *ledger.View
	// Online tells which CPUs are on line now, and SetOffline notes which of the machine
	// are not; nil where the machine is not the kernel's.
	Online     func() (cpuset.Set, error)
	SetOffline func(ctx context.Context, cpus cpuset.Set) error
	// Every is how often a pass runs without a commit; 0 means 10 s.
	Every time.Duration
	// Now is the clock; nil means the system's.
	Now func() time.Time
	// Runtime makes containers and their cgroups; nil where berthd makes those, or
	// the agent.
	Runtime Runtime
	// Bindings keeps the ids of a runtime's containers; nil where nobody wants that. It may
	// be set before the first pass.
	Bindings Bindings
	// StillThere tells, before a process is placed, whether it is the one that the
	// context's caller has handed over; nil where processes are not the kernel's.
	StillThere func(ctx context.Context, pid int) error
	// SetScore sets the score of the out-of-memory killer for a process that is
	// placed; nil where processes are not the loop's to touch.
	SetScore func(pid, score int) error
	Log      *slog.Logger
	// Observe is told the outcome of every pass, Timed how long each operation on
	// a cgroup took; both may be nil.
	Observe func(Outcome)
	Timed   func(Operation, time.Duration)
}

// Limits are the values that follow from the configuration and not from pods.
type Limits struct {
	QoS qos.Config
	// Pods are the values that the node as a whole wants in the cgroup of all
	// pods; those of the QoS tiers go on top.
	Pods cgroup.Values
	// Reserved are cgroups that somebody else has made, with the limits that the
	// node wants there. They are never created.
	Reserved []cgroup.Node
}

// Operation on a cgroup, as the kubelet's metrics name it.
type Operation string

// The operations.
const (
	OpCreate  Operation = "create"
	OpUpdate  Operation = "update"
	OpDestroy Operation = "destroy"
)

// Outcome of a pass.
type Outcome struct {
	// Ops that were applied or tried.
	Ops []cgroup.Op
	// Drifts that the pass found for the first time.
	Drifts []Drift
	// Orphans is how many cgroups of unknown pods there are.
	Orphans int
	Took    time.Duration
	Err     error
}

// Loop is the reconciler. It is the engine's Places too: what an admission needs
// at once is done at once, with the same values that a later pass would write.
type Loop struct {
	Config // its Limits are guarded by mu
	wake   chan struct{}

	// mu is held during passes and while one pod's places are made, so that no
	// two of them give orders to the kernel at the same time. Killing a pod's
	// processes does not hold it.
	mu      gate
	leaving map[string]bool // guarded by mu: uids
	drift   driftBook       // guarded by mu
	orphans []cgroup.Name   // guarded by mu: those that the last pass saw
	// unbound are the unbound cgroups with processes that the last pass saw, empty those
	// without; guarded by mu.
	unbound, empty []unbound
	// returned are CPUs that were off line and have come back; guarded by mu.
	returned cpuset.Set
	// findings are those of the last pass, which changes them. Whoever reads them
	// waits for no pass.
	findings atomic.Pointer[[]ledger.Finding]
	phases   atomic.Pointer[map[placement.Phase]int] // as findings
	// applying are the containers of the runtime among what is being applied; guarded by mu.
	applying runtimeContainers

	// tracker knows where each container may run, by its key, as of the view tracked; starts
	// that are blocked wait for freed to be closed. Guarded by mu.
	tracker placement.Tracker
	tracked *ledger.View
	freed   chan struct{}
	// cgroups are where the runtime said that its containers are, by id, starting the keys
	// of containers whose start is asked for, unlisted is what was wrong with containers that the last
	// list lacked. Guarded by mu.
	cgroups  map[string]cgroup.Name
	starting map[string]int
	unlisted error
	adopts   bool // containers that nobody has told of are bound; guarded by mu
	// ended are the cgroups of containers that were unbound since the last look; guarded by
	// mu.
	ended []cgroup.Name
	calls calls // guarded by mu

	records   recordBook    // guarded by mu
	sharers   []cgroup.Name // guarded by mu: of unknown living pods; see unknownSharers
	sandboxes []cgroup.Name // guarded by mu: of pods that the ledger has, where a runtime made them

	// ending are the cgroups that are being removed.
	ending endings
}

var _ admission.CgroupManager = (*Loop)(nil)

// New makes a loop. It starts nothing.
func New(cfg Config) *Loop {
	if cfg.Every == 0 {
		cfg.Every = 10 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Loop{Config: cfg, wake: make(chan struct{}, 1), mu: make(gate, 1), leaving: make(map[string]bool),
		freed: make(chan struct{}), cgroups: make(map[string]cgroup.Name), starting: make(map[string]int)}
}

// SetLimits puts other limits in force and asks for a pass. A pass under way ends
// first.
func (l *Loop) SetLimits(limits Limits) {
	l.mu.Lock()
	l.Limits = limits
	l.drift.kept = nil
	l.mu.Unlock()
	l.Wake()
}

// Wake asks for a pass soon. It never blocks.
func (l *Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default: // one is due already, and it will read the newest view
	}
}

// debounce is how long the loop waits once it is woken. Who has committed gets its
// answer first, and of many commits in a row one look follows. Nobody waits for
// it: what a container needs is put in force before its start is answered.
const debounce = time.Millisecond

// Run follows the ledger whenever it is woken and passes over the whole tree at
// every interval, until ctx ends. While a runtime is about to start a container it
// follows more often: at first soon, then less and less often. Errors are logged; the next
// pass tries again.
func (l *Loop) Run(ctx context.Context) error {
	defer l.calls.running.Wait()
	tick := time.NewTicker(l.Every)
	defer tick.Stop()
	pause, last := pollInterval, time.Time{}
	var failing outage
	for {
		var soon, due <-chan time.Time
		if latest := l.latestStart(); latest.IsZero() {
			pause = pollInterval
		} else {
			if latest.After(last) {
				pause, last = pollInterval, latest
			}
			soon = time.After(pause)
		}
		if l.recordsDue() {
			due = time.After(debounce)
		}
		step := l.Follow
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.wake:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(debounce):
			}
		case <-soon:
			pause = min(2*pause, l.Every)
		case <-due:
			step = l.WriteDue
		case <-tick.C:
			step = l.Pass
		}
		if err := step(ctx); ctx.Err() == nil {
			failing.report(ctx, l, err)
		}
	}
}

// outage is what keeps going wrong. The log gets a line for its begin, one for each other
// thing that goes wrong meanwhile, and one for its end.
type outage struct {
	text  string
	since time.Time
}

func (o *outage) report(ctx context.Context, l *Loop, err error) {
	switch {
	case err == nil && o.text == "":
	case err == nil:
		l.Log.InfoContext(ctx, "cgroups are reconciled again", "after", l.Now().Sub(o.since))
		*o = outage{}
	case err.Error() == o.text:
		l.Log.DebugContext(ctx, "reconcile cgroups", "error", err)
	default:
		l.Log.ErrorContext(ctx, "reconcile cgroups", "error", err)
		if o.text == "" {
			o.since = l.Now()
		}
		o.text = err.Error()
	}
}

// latestStart tells when a start that is under way was last allowed; the zero time if none
// is. Starts that have taken too long are given up.
func (l *Loop) latestStart() (latest time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.track()
	for _, c := range l.tracker.Starts() {
		if c.Since.After(latest) {
			latest = c.Since
		}
	}
	return latest
}

// Begin makes the tiers and puts limits on the reserved cgroups, which must be
// there with all controllers: an agent that cannot keep pods within bounds does
// not start. A limit that a tier exceeds already is left to the passes.
func (l *Loop) Begin(ctx context.Context) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	nodes := append(l.tiers(l.View()), l.Reserved...)
	seen, err := l.observe(ctx, nodes)
	if err != nil {
		return err
	}
	for _, n := range l.Reserved {
		if o := seen.Find(n.Name); o.State != cgroup.Valid && !l.NoPodCgroups {
			return errdefs.Preconditionf("enforce limits on the reserved cgroup %s: %w", n.Name, unusable(o))
		}
	}
	if l.NoPodCgroups {
		nodes = made(nodes, seen)
	}
	ops := cgroup.Diff(nodes, seen)
	done := l.apply(ctx, ops)
	for _, op := range ops {
		if l.NoPodCgroups {
			break // the passes report it and try again
		}
		if done.failed[op.Name.String()] && (op.Kind == cgroup.Create || !op.Name.Within(l.Layout.Pods())) {
			return done.err
		}
	}
	if done.err != nil {
		l.Log.ErrorContext(ctx, "limit the QoS tiers", "error", done.err)
	}
	return nil
}

// unusable is the error about a cgroup that nobody here may make.
func unusable(o cgroup.Observed) error {
	if o.State == cgroup.Absent {
		return errdefs.Preconditionf("it is absent; whoever runs there has to make it")
	}
	return errdefs.Preconditionf("it %s", o.Reason)
}

// Pass makes the tree equal to the current view.
func (l *Loop) Pass(ctx context.Context) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	if err := l.compareOnline(ctx); err != nil {
		l.Log.ErrorContext(ctx, "compare the CPUs on line with the machine", "error", err)
	}
	l.takeOver(ctx)
	return l.pass(ctx, l.View())
}

// pass makes the tree equal to a view. The caller holds mu.
func (l *Loop) pass(ctx context.Context, view *ledger.View) error {
	start := l.Now()
	l.track()
	l.removeEnded(ctx, view)
	defer l.countPhases()
	p, err := l.plan(ctx, view)
	var fresh []Drift
	if err == nil {
		if !l.NoPodCgroups {
			l.orphans = l.Layout.Orphans(p.seen, known(view))
		}
		l.report(ctx, p.findings)
		l.removeEmpty(ctx, p.empty)
		fresh = l.drift.news(p.drifts)
		l.reportDrift(ctx, fresh)
		err = l.carryOut(ctx, view, p)
		l.repairRecords(ctx, view)
	}
	if l.Observe != nil {
		l.Observe(Outcome{Ops: p.ops, Drifts: fresh, Orphans: len(l.orphans), Took: l.Now().Sub(start), Err: err})
	}
	return err
}

// carryOut applies a plan. Where the kernel refuses the limit of a tier that uses
// more already, the limit is set to that use, as the kubelet does.
func (l *Loop) carryOut(ctx context.Context, view *ledger.View, p *plan) error {
	done := l.applyTo(ctx, p.containers, p.ops)
	if err := l.gather(ctx, view, p.containers); err != nil {
		done.err = errors.Join(done.err, err)
	}
	if done.err != nil && l.QoS.ReservedMemory > 0 {
		seen, err := l.observe(ctx, p.desired)
		if err != nil {
			return errors.Join(done.err, err)
		}
		desired := p.containers.present(qos.AboveUsage(p.desired, seen), seen)
		done = l.applyTo(ctx, p.containers, cgroup.Diff(desired, seen))
	}
	l.drift.keep(view, p.desired, done.failed)
	return errors.Join(done.err, p.missing, p.unmet)
}

// applied is what became of ops.
type applied struct {
	// failed are the names of cgroups that did not get all of their values.
	failed map[string]bool
	err    error
}

// applyTo prepares containers of the runtime and applies ops, some of which are theirs.
// The caller holds mu.
func (l *Loop) applyTo(ctx context.Context, g runtimeContainers, ops []cgroup.Op) applied {
	l.applying = g
	defer func() { l.applying = nil }()
	err := l.prepare(ctx, g)
	done := l.apply(ctx, ops)
	done.err = errors.Join(err, done.err, l.repeat(ctx, g))
	return done
}

// apply puts ops into force in their order. An op that fails does not keep others
// from their turn, except those below a cgroup that could not be made. The caller
// holds mu.
func (l *Loop) apply(ctx context.Context, ops []cgroup.Op) applied {
	out := applied{failed: map[string]bool{}}
	var errs []error
	var unmade []cgroup.Name
	for _, op := range ops {
		err := ctx.Err()
		for _, name := range unmade {
			if op.Name.Within(name) {
				err = errdefs.Preconditionf("set cgroup %s: its parent %s could not be made", op.Name, name)
			}
		}
		if err == nil {
			_, err = l.ensure(ctx, op)
		}
		l.Log.DebugContext(ctx, "cgroup", "op", op.Kind, "name", op.Name.String(), "writes", op.Writes, "error", err)
		if err == nil {
			continue
		}
		if op.Kind == cgroup.Create {
			unmade = append(unmade, op.Name)
		}
		out.failed[op.Name.String()] = true
		errs = append(errs, err)
	}
	out.err = errors.Join(errs...)
	return out
}

// ensure carries one op out, and tells whether that made the cgroup. The caller holds
// mu.
func (l *Loop) ensure(ctx context.Context, op cgroup.Op) (created bool, err error) {
	kind := OpUpdate
	if op.Kind == cgroup.Create {
		kind = OpCreate
	}
	defer l.timed(kind, l.Now())
	if g, ok := l.applying.at(op.Name); ok {
		err := l.granted(g.id, &op.Values)
		return false, errors.Join(err, l.update(ctx, g, op.Values))
	}
	withheld := l.granted(op.Name.String(), &op.Values)
	inside := l.inContainer(op.Name)
	if inside && op.Kind == cgroup.Create && l.ending.has(op.Name) {
		return false, nil // it has ended since this was planned
	}
	created, err = l.treeOf(op.Name).Ensure(ctx, cgroup.Node{Name: op.Name, Values: op.Values})
	if inside && created && (op.Kind == cgroup.Set || l.ending.has(op.Name)) {
		// It has ended while it was written.
		l.drift.forgetAll(op.Name)
		return false, errors.Join(withheld, l.Tree.Remove(ctx, op.Name))
	}
	l.written(ctx, op.Name, op.Values.CPUs, err)
	return created, errors.Join(withheld, err)
}

// inContainer tells whether a name is the cgroup of a container of a pod, or lies in one.
func (l *Loop) inContainer(name cgroup.Name) bool {
	_, isPod := l.Layout.PodUID(name)
	return !isPod && l.inPod(name) != ""
}

// timed tells how long an operation took.
func (l *Loop) timed(op Operation, start time.Time) {
	if l.Timed != nil {
		l.Timed(op, l.Now().Sub(start))
	}
}
