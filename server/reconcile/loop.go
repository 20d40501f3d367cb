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
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/server/failpoint"
)

// Config of a Loop.
type Config struct {
	Tree   cgroup.Tree
	Layout cgroup.Layout
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
	settled *ledger.View    // guarded by mu: of the last pass that cleared all CPUs; nil before
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
	guests   guests // guarded by mu: of what is being applied
	// strays are the guests that were seen to run outside of their pods' cgroups, by id,
	// home the ids of those that do not, or have ended. lost are the owners of those that
	// run, or may, and that the runtime did not show when it was last asked. Guarded by mu.
	strays map[string]guest
	home   map[string]bool
	lost   []ledger.Owner
	// waiting are the guests that are about to start, by id; guarded by mu.
	waiting map[string]start
	waited  time.Duration   // guarded by mu: for the runtime in this turn
	hurry   time.Duration   // guarded by mu: how long the next list of containers may take; 0 is patience
	slow    map[string]bool // guarded by mu: containers whose last write waited too long

	records recordBook    // guarded by mu
	sharers []cgroup.Name // guarded by mu: of unknown living pods; see unknownSharers

	// asking are the guests whose start waits to be answered.
	asking askers
	// ending are the cgroups that are being removed.
	ending endings
}

var _ admission.Places = (*Loop)(nil)

// New makes a loop. It starts nothing.
func New(cfg Config) *Loop {
	if cfg.Every == 0 {
		cfg.Every = 10 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Loop{Config: cfg, wake: make(chan struct{}, 1), mu: make(gate, 1), leaving: make(map[string]bool)}
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

// breath is how long the loop waits once it is woken. Who has committed gets its
// answer first, and of many commits in a row one look follows. Nobody waits for
// it: what a container needs is put in force before its start is answered.
const breath = time.Millisecond

// Run follows the ledger whenever it is woken and passes over the whole tree at
// every interval, until ctx ends; while a runtime is about to start a container it
// follows more often, unless that fails again and again. Errors are logged; the next
// pass tries again.
func (l *Loop) Run(ctx context.Context) error {
	tick := time.NewTicker(l.Every)
	defer tick.Stop()
	pause := glance
	for {
		var soon, due <-chan time.Time
		if l.expecting() {
			soon = time.After(pause)
		}
		if l.recordsDue() {
			due = time.After(breath)
		}
		step := l.Follow
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.wake:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(breath):
			}
		case <-soon:
		case <-due:
			step = l.WriteDue
		case <-tick.C:
			step = l.Pass
		}
		switch err := step(ctx); {
		case err == nil, ctx.Err() != nil:
			pause = glance
		case errors.Is(err, errStarting):
			// It is over in a moment, and whoever must not start before waits for it.
			pause = glance
			l.Log.InfoContext(ctx, "reconcile cgroups", "error", err)
		default:
			pause = min(2*pause, l.Every)
			l.Log.ErrorContext(ctx, "reconcile cgroups", "error", err)
		}
	}
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
		if o := seen.Find(n.Name); o.State != cgroup.Valid {
			return fault.Preconditionf("enforce limits on the reserved cgroup %s: %w", n.Name, unusable(o))
		}
	}
	ops := cgroup.Diff(nodes, seen)
	done := l.apply(ctx, ops)
	for _, op := range ops {
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
		return fault.Preconditionf("it is absent; whoever runs there has to make it")
	}
	return fault.Preconditionf("it %s", o.Reason)
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
	return l.pass(ctx, l.View())
}

// pass makes the tree equal to a view. The caller holds mu.
func (l *Loop) pass(ctx context.Context, view *ledger.View) error {
	start := l.Now()
	p, err := l.plan(ctx, view)
	var fresh []Drift
	if err == nil {
		l.orphans = l.Layout.Orphans(p.seen, known(view))
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
	done := l.applyTo(ctx, p.guests, p.ops)
	if err := l.gather(ctx, view, p.guests); err != nil {
		done.cleared, done.err = false, errors.Join(done.err, err)
	}
	if done.err != nil && l.QoS.ReservedMemory > 0 {
		seen, err := l.observe(ctx, p.desired)
		if err != nil {
			return errors.Join(done.err, err)
		}
		desired := p.guests.present(qos.AboveUsage(p.desired, seen), seen)
		done = l.applyTo(ctx, p.guests, cgroup.Diff(desired, seen))
	}
	l.drift.keep(view, p.desired, done.failed)
	l.drift.list(p.guests.nodes())
	if done.cleared && p.unmet == nil {
		l.settled = view
	}
	return errors.Join(done.err, p.missing, p.unmet)
}

// applied is what became of ops.
type applied struct {
	// failed are the names of cgroups that did not get all of their values.
	failed map[string]bool
	// cleared says that every change of CPUs and memory nodes is in force.
	cleared bool
	err     error
}

// applyTo prepares guests and applies ops, some of which are theirs. The caller
// holds mu.
func (l *Loop) applyTo(ctx context.Context, g guests, ops []cgroup.Op) applied {
	l.guests = g
	defer func() { l.guests = nil }()
	err := l.prepare(ctx, g)
	done := l.apply(ctx, ops)
	if err != nil {
		done.cleared, done.err = false, errors.Join(err, done.err)
	}
	return done
}

// apply puts ops into force in their order. An op that fails does not keep others
// from their turn, except those below a cgroup that could not be made. The caller
// holds mu.
func (l *Loop) apply(ctx context.Context, ops []cgroup.Op) applied {
	out := applied{failed: map[string]bool{}, cleared: true}
	var errs []error
	var unmade []cgroup.Name
	for _, op := range ops {
		err := ctx.Err()
		for _, name := range unmade {
			if op.Name.Within(name) {
				err = fault.Preconditionf("set cgroup %s: its parent %s could not be made", op.Name, name)
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
		if op.Values.Cpuset != (cgroup.Cpuset{}) {
			out.cleared = false
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
	if g, ok := l.guests.at(op.Name); ok {
		return false, l.update(ctx, g, op.Values)
	}
	return l.Tree.Ensure(ctx, cgroup.Node{Name: op.Name, Values: op.Values})
}

// timed tells how long an operation took.
func (l *Loop) timed(op Operation, start time.Time) {
	if l.Timed != nil {
		l.Timed(op, l.Now().Sub(start))
	}
}
