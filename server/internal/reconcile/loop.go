package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/server/internal/failpoint"
	"github.com/berthd/berth/server/internal/podrecords"
)

// Config of a Loop.
type Config struct {
	Tree   cgroup.Tree
	Layout cgroup.Layout
	// NoPodCgroups creates no cgroups for tiers, pods and containers, and uses no existing
	// ones for pods. The runtime or the agent applies the CPUs.
	NoPodCgroups bool
	// Listed are cgroups outside those of pods that may be read and changed by hand. Plain
	// accesses those that are plain directories; nil if Tree does.
	Listed []Listed
	Plain  cgroup.Tree
	Limits
	// Records stores the pods' claim records; nil if they cannot be stored.
	Records cgroup.Records
	// Failpoint is for tests; nil otherwise.
	Failpoint failpoint.Hook
	// DriftPolicy is the reaction to values that another program changed; empty means RepairDrift.
	DriftPolicy DriftPolicy
	// View returns the current view.
	View func() *ledger.View
	// InFlight returns the current view with the pods that are being admitted or resized;
	// nil if there are none.
	InFlight func() *ledger.View
	// Every is the time between passes without a commit, on a node with at most manyPods; 0 means 10 s.
	Every time.Duration
	// Now is the clock; nil means the system clock.
	Now func() time.Time
	// Runtime creates containers and their cgroups; nil if berthd or the agent creates
	// them.
	Runtime Runtime
	// Bindings stores the ids of a runtime's containers; nil if they are not stored.
	Bindings Bindings
	// StillThere returns, before a process is moved, whether it is still the process that
	// the context's caller has sent; nil if processes are not the kernel's.
	StillThere func(ctx context.Context, pid int) error
	// SetScore sets the OOM score of a process that is moved; nil if the loop must not
	// change processes.
	SetScore func(pid, score int) error
	Log      *slog.Logger
	// Observe is called with the outcome of every pass, Timed with the duration of each
	// operation on a cgroup; both may be nil.
	Observe func(Outcome)
	Timed   func(Operation, time.Duration)
}

// Limits are the values that depend on the configuration and not on pods.
type Limits struct {
	QoS qos.Config
	// Pods are the node's values for the cgroup of all pods; the values of the QoS tiers
	// are added.
	Pods cgroup.Values
	// Reserved are existing cgroups with the node's limits for them. They are never
	// created.
	Reserved []cgroup.Node
}

// Operation on a cgroup, with the name of the kubelet's metrics.
type Operation string

// The operations.
const (
	OpCreate  Operation = "create"
	OpUpdate  Operation = "update"
	OpDestroy Operation = "destroy"
)

// Outcome of a pass.
type Outcome struct {
	// Ops that were tried.
	Ops []cgroup.Op
	// Drifts that this pass found first.
	Drifts []Drift
	// Orphans is the number of cgroups of unknown pods.
	Orphans int
	Took    time.Duration
	Err     error
}

// Loop is the reconciler. It also implements admission.CgroupManager: an admission's
// cgroups are written immediately, with the values that a pass would write.
type Loop struct {
	Config // its Limits are guarded by mu
	shared
	waker

	// mu is held during passes and while one pod's cgroups are written, so that only one
	// operation writes at a time. It is not held while a pod's processes are killed.
	mu        turns
	wanted    wanted
	orphans   []cgroup.Name // guarded by mu: found by the last pass
	confined  confinements  // guarded by mu
	findings  findings
	hotplug   hotplug
	calls     calls // guarded by mu
	lister    lister
	records   *podrecords.Keeper // guarded by mu
	sandboxes sandboxes
	writer    writer
	starts
	resizes
}

// shared is what all parts of a Loop use. Loop.mu guards tracker and drift.
type shared struct {
	cfg     *Config // of the Loop
	names   names
	kernel  kernel
	tracker *tracker
	drift   *driftLog
	ending  *endings // the cgroups that are being removed
}

var _ admission.CgroupManager = (*Loop)(nil)

// New returns a loop. It starts nothing.
func New(cfg Config) *Loop {
	if cfg.Every == 0 {
		cfg.Every = 10 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	ns := names{cfg.Layout}
	l := &Loop{Config: cfg, waker: waker{soon: time.NewTimer(time.Hour)}}
	l.soon.Stop()
	s := shared{&l.Config, ns, kernel{&l.Config, ns}, newTracker(cfg.Now, cfg.Layout.Driver()), new(driftLog), new(endings)}
	l.shared = s
	l.mu = turns{make(gate, 1), l.calls.begin}
	l.calls = calls{cfg: s.cfg, tracker: s.tracker, mu: l.mu.gate, wake: l.Wake}
	l.writer = writer{shared: s, calls: &l.calls}
	l.sandboxes = sandboxes{shared: s, writer: &l.writer, sharers: sharers{names: ns, tracker: s.tracker, pods: map[string][]sharer{}},
		opening: openings{cfg: s.cfg, names: ns, tracker: s.tracker, pods: map[string]opening{}}}
	opening, sharers, leaving := &l.sandboxes.opening, &l.sandboxes.sharers, map[string]bool{}
	l.hotplug = hotplug{shared: s, sharers: sharers}
	l.lister = lister{shared: s, writer: &l.writer, calls: &l.calls, hotplug: &l.hotplug, opening: opening, sharers: sharers,
		leaving: leaving, unbound: unbounds{cfg: s.cfg, names: ns, tracker: s.tracker, leaving: leaving}}
	l.wanted = wanted{shared: s, opening: opening, sharers: sharers, unbound: &l.lister.unbound, leaving: leaving,
		uncommitted: map[string]*ledger.Pod{}}
	l.starts = starts{shared: s, mu: l.mu, writer: &l.writer, calls: &l.calls, wanted: &l.wanted, lister: &l.lister,
		sandboxes: &l.sandboxes, pass: l.pass, follow: l.follow, wake: l.Wake}
	l.resizes = resizes{shared: s, mu: l.mu, writer: &l.writer, wanted: &l.wanted, lister: &l.lister}
	l.records = podrecords.New(podrecords.Config{Records: cfg.Records, Layout: cfg.Layout, Wake: l.Wake,
		Leaving: func(uid string) bool { return leaving[uid] }, Failpoint: cfg.Failpoint, Log: cfg.Log})
	return l
}

// SetLimits changes the limits and requests a pass. It waits for the end of a current pass.
func (l *Loop) SetLimits(limits Limits) {
	l.mu.Lock()
	l.Limits = limits
	l.drift.kept = nil
	l.mu.Unlock()
	l.Wake()
}

// CPUsMayHaveChanged requests a pass after an event of the kernel. A CPU that was offline for a moment is
// missing in sets of v1, although the machine has not changed. It waits for the end of a current pass.
func (l *Loop) CPUsMayHaveChanged() {
	if !l.kernel.v1() {
		return
	}
	l.mu.Lock()
	l.drift.kept = nil
	l.hotplug.scatter.emptied()
	l.mu.Unlock()
	l.Wake()
}

// waker requests passes.
type waker struct {
	// soon fires when the loop has to follow the ledger; requested is whether it will.
	soon      *time.Timer
	requested atomic.Bool
}

// Wake requests a pass soon. It never blocks.
func (w *waker) Wake() {
	if w.requested.CompareAndSwap(false, true) { // else a pass is requested, and will read the newest view
		w.soon.Reset(debounce)
	}
}

// debounce is the delay of the loop after Wake. So a committing caller gets its answer
// first, and one read follows many commits. Nothing runs before that: a goroutine that is
// woken takes time from the answer. No caller waits for the loop: a container's values are
// written before its start is answered.
const debounce = time.Millisecond

// manyPods is how many pods a node has at most whose passes are Every apart. With more pods the time grows with their number: a pass
// reads the cgroups of all of them, and berthd is to take no more than half a percent of a processor at rest. longPeriod is long enough
// for any number.
const (
	manyPods   = 400
	longPeriod = 2 * time.Minute
)

// period is the time between two passes on a node with so many pods.
func period(every time.Duration, pods int) time.Duration {
	if every >= longPeriod || pods <= manyPods {
		return every
	}
	return min(every*time.Duration(min(pods, 1<<20))/manyPods, longPeriod)
}

// Run follows the ledger after each Wake and makes a pass in every interval, until ctx
// ends. While a container's start is in progress at a runtime it follows more often, with
// growing pauses. Errors are logged; the next pass tries again.
func (l *Loop) Run(ctx context.Context) error {
	defer l.calls.running.Wait()
	l.calls.running.Go(func() { l.lister.changes.listen(ctx, l.Runtime, l.Log, l.Wake) })
	tick := time.NewTimer(period(l.Every, l.View().NumPods()))
	defer tick.Stop()
	pause, last := pollInterval, time.Time{}
	var failing outage
	for {
		var again, due <-chan time.Time
		if latest := l.latestStart(); latest.IsZero() {
			pause = pollInterval
		} else {
			if latest.After(last) {
				pause, last = pollInterval, latest
			}
			again = time.After(pause)
		}
		if l.recordsDue() {
			due = time.After(debounce)
		}
		step := l.Follow
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.soon.C:
			l.requested.Store(false)
		case <-again:
			pause = min(2*pause, l.Every)
		case <-due:
			step = l.WriteDue
		case <-tick.C:
			step = l.Pass
			tick.Reset(period(l.Every, l.View().NumPods()))
		}
		if err := step(ctx); ctx.Err() == nil {
			failing.report(ctx, l, err)
		}
	}
}

// outage is a lasting error. It is logged at its begin, at each change of the error, and at
// its end. A runtime that is away is one error, whatever its connection says each time.
type outage struct {
	text  string
	since time.Time
}

func (o *outage) report(ctx context.Context, l *Loop, err error) {
	var text string
	if err != nil {
		text = err.Error()
	}
	if errors.Is(err, errAway) {
		text = errAway.Error()
	}
	switch {
	case err == nil && (o.text == "" || o.text == errAway.Error() && l.calls.away.Load()):
	case err == nil:
		l.Log.InfoContext(ctx, "cgroups are reconciled again", "after", l.Now().Sub(o.since))
		*o = outage{}
	case text == o.text || isPending(err):
		l.Log.DebugContext(ctx, "reconciling cgroups failed", "error", err)
	default:
		l.Log.ErrorContext(ctx, "reconciling cgroups failed", "error", err)
		if o.text == "" {
			o.since = l.Now()
		}
		o.text = text
	}
}

// isPending returns whether an error only says that calls to the runtime continue in the
// background. Their answers are errors of their own, or none.
func isPending(err error) bool {
	switch e := err.(type) { //nolint:errorlint // every error in it counts
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(one error) bool { return !isPending(one) })
	case interface{ Unwrap() error }:
		return isPending(e.Unwrap())
	}
	return errors.Is(err, errPending)
}

// latestStart returns when a start in progress was last allowed; the zero time if there is
// none. Starts that have taken too long are ended.
func (l *Loop) latestStart() (latest time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lister.track()
	for _, c := range l.tracker.Starts() {
		if c.Since.After(latest) {
			latest = c.Since
		}
	}
	return latest
}

// Begin creates the tiers and writes limits to the reserved cgroups, which must exist with
// all controllers. berthd does not start if it cannot limit pods. A limit that a tier
// already exceeds is left to the passes.
func (l *Loop) Begin(ctx context.Context) error {
	if err := l.mu.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	nodes := append(l.wanted.tiers(l.View()), l.Reserved...)
	seen, err := l.kernel.observe(ctx, nodes)
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
	done := l.writer.apply(ctx, runtimeContainers{}, ops, nil)
	for _, op := range ops {
		if l.NoPodCgroups {
			break // the passes report it and try again
		}
		if done.failed[op.Name.String()] && (op.Kind == cgroup.Create || !op.Name.Within(l.Layout.Pods())) {
			return done.err
		}
	}
	if done.err != nil {
		l.Log.ErrorContext(ctx, "limiting the QoS tiers failed", "error", done.err)
	}
	return nil
}

// unusable returns the error for a cgroup that berthd must not create.
func unusable(o cgroup.Observed) error {
	if o.State == cgroup.Absent {
		return errdefs.Preconditionf("it does not exist; the program that runs there has to create it")
	}
	return errdefs.Preconditionf("it %s", o.Reason)
}
