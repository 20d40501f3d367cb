package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/qos"
)

// Config of a Loop.
type Config struct {
	Tree   cgroup.Tree
	Layout cgroup.Layout
	QoS    qos.Config
	// View returns the current view.
	View func() *ledger.View
	// Every is how often a pass runs without a commit; 0 means 10 s.
	Every time.Duration
	Log   *slog.Logger
	// Observe is told the outcome of every pass; it may be nil.
	Observe func(Outcome)
}

// Outcome of a pass.
type Outcome struct {
	// Ops that were applied, or of which one failed.
	Ops  []cgroup.Op
	Took time.Duration
	Err  error
}

// Loop is the reconciler. It is the engine's Places too: what an admission needs
// at once is done at once, with the same values that a later pass would write.
type Loop struct {
	Config
	wake chan struct{}

	// mu is held during passes and while one pod's places are made, so that no
	// two of them give orders to the kernel at the same time. Killing a pod's
	// processes does not hold it.
	mu      sync.Mutex
	settled uint64          // guarded by mu: generation of the last good pass
	leaving map[string]bool // guarded by mu: uids
}

var _ admission.Places = (*Loop)(nil)

// New makes a loop. It starts nothing.
func New(cfg Config) *Loop {
	if cfg.Every == 0 {
		cfg.Every = 10 * time.Second
	}
	return &Loop{Config: cfg, wake: make(chan struct{}, 1), leaving: make(map[string]bool)}
}

// Wake asks for a pass soon. It never blocks.
func (l *Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default: // one is due already, and it will read the newest view
	}
}

// Run passes whenever it is woken and at every interval, until ctx ends. Errors
// of passes are logged; the next pass tries again.
func (l *Loop) Run(ctx context.Context) error {
	tick := time.NewTicker(l.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.wake:
		case <-tick.C:
		}
		if err := l.Pass(ctx); err != nil && ctx.Err() == nil {
			l.Log.ErrorContext(ctx, "reconcile cgroups", "error", err)
		}
	}
}

// Pass makes the tree equal to the current view.
func (l *Loop) Pass(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pass(ctx, l.View())
}

// pass makes the tree equal to a view. The caller holds mu.
func (l *Loop) pass(ctx context.Context, view *ledger.View) error {
	start := time.Now()
	ops, err := l.plan(ctx, view)
	if err == nil {
		err = cgroup.Apply(ctx, l.Tree, ops)
	}
	if err == nil {
		l.settled = max(l.settled, view.Generation())
	}
	if l.Observe != nil {
		l.Observe(Outcome{Ops: ops, Took: time.Since(start), Err: err})
	}
	for _, op := range ops {
		l.Log.DebugContext(ctx, "cgroup", "op", op.Kind, "name", op.Name.String(), "writes", op.Writes)
	}
	return err
}

// Plan lists what a pass would do now.
func (l *Loop) Plan(ctx context.Context) ([]cgroup.Op, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.plan(ctx, l.View())
}

func (l *Loop) plan(ctx context.Context, view *ledger.View) ([]cgroup.Op, error) {
	desired, err := cgroup.Desired(view, l.Layout, l.QoS.Cgroup, qos.Nodes(view, l.Layout, l.QoS))
	if err != nil {
		return nil, fmt.Errorf("compute the cgroup tree: %w", err)
	}
	desired = l.withoutLeaving(view, desired)
	seen, err := l.Tree.Observe(ctx, l.Layout.Pods(), -1)
	if err != nil {
		return nil, fmt.Errorf("observe the cgroup tree: %w", err)
	}
	return cgroup.Diff(desired, seen), nil
}

// withoutLeaving drops the nodes of pods that are being removed, and forgets
// those that have gone.
func (l *Loop) withoutLeaving(view *ledger.View, nodes []cgroup.Node) []cgroup.Node {
	var gone []cgroup.Name
	for uid := range l.leaving {
		p, ok := view.Pod(uid)
		if !ok {
			delete(l.leaving, uid)
			continue
		}
		if name, err := l.Layout.Pod(p.QoS, uid); err == nil {
			gone = append(gone, name)
		}
	}
	if len(gone) == 0 {
		return nodes
	}
	var out []cgroup.Node
next:
	for _, n := range nodes {
		for _, g := range gone {
			if n.Name.Within(g) {
				continue next
			}
		}
		out = append(out, n)
	}
	return out
}

// settle makes sure that nobody runs where the view forbids. The caller holds mu.
func (l *Loop) settle(ctx context.Context, view *ledger.View) error {
	if l.settled >= view.Generation() {
		return nil
	}
	return l.pass(ctx, view)
}

// EnsurePod implements admission.Places.
func (l *Loop) EnsurePod(ctx context.Context, view *ledger.View, uid string) (parent string, created bool, err error) {
	p, name, err := l.pod(view, uid)
	if err != nil {
		return "", false, err
	}
	node, err := cgroup.PodNode(p, l.Layout, l.QoS.Cgroup)
	if err != nil {
		return "", false, err
	}
	if parent, err = l.Layout.Literal(name); err != nil {
		return "", false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.leaving, uid)
	seen, err := l.Tree.Observe(ctx, name, 0)
	if err != nil {
		return "", false, err
	}
	// The tiers come first: a pod must not weigh against a tier that does not
	// count it yet.
	for _, tier := range qos.Nodes(view, l.Layout, l.QoS) {
		if node.Name.Within(tier.Name) {
			if err := l.Tree.Ensure(ctx, tier); err != nil {
				return "", false, err
			}
		}
	}
	if err := l.Tree.Ensure(ctx, node); err != nil {
		return "", false, err
	}
	return parent, seen.Find(name).State == cgroup.Absent, nil
}

// ForgetPod implements admission.Places.
func (l *Loop) ForgetPod(ctx context.Context, view *ledger.View, uid string) error {
	_, name, err := l.pod(view, uid)
	if err != nil {
		return err
	}
	return l.Tree.Remove(ctx, name)
}

// RemovePod implements admission.Places.
func (l *Loop) RemovePod(ctx context.Context, view *ledger.View, uid string) error {
	_, name, err := l.pod(view, uid)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.leaving[uid] = true
	l.mu.Unlock()
	if err := l.Tree.Remove(ctx, name); err != nil {
		l.mu.Lock()
		delete(l.leaving, uid)
		l.mu.Unlock()
		return err
	}
	return nil
}

// EnsureContainer implements admission.Places.
func (l *Loop) EnsureContainer(ctx context.Context, view *ledger.View, b ledger.Binding, pid int) (string, error) {
	p, _, err := l.pod(view, b.Owner.Pod)
	if err != nil {
		return "", err
	}
	name, err := l.container(p, b.Owner.Container)
	if err != nil {
		return "", err
	}
	if b.CgroupPath, err = l.Layout.Literal(name); err != nil {
		return "", err
	}
	b.Own = true
	node, err := cgroup.ContainerNode(view, b, l.QoS.Cgroup)
	if err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.leaving, b.Owner.Pod)
	if err := l.settle(ctx, view); err != nil {
		return "", fmt.Errorf("clear the CPUs for %s: %w", b.Owner, err)
	}
	if err := l.Tree.Ensure(ctx, node); err != nil {
		return "", err
	}
	if pid != 0 {
		if err := l.Tree.Move(ctx, name, pid); err != nil {
			return "", err
		}
	}
	return b.CgroupPath, nil
}

// ContainerPath returns the path below the mount point of the cgroup that
// EnsureContainer makes for a container.
func (l *Loop) ContainerPath(p *ledger.Pod, container string) (string, error) {
	name, err := l.container(p, container)
	if err != nil {
		return "", err
	}
	return l.Layout.Literal(name)
}

// container names the cgroup of a container.
func (l *Loop) container(p *ledger.Pod, container string) (cgroup.Name, error) {
	pod, err := l.Layout.Pod(p.QoS, p.UID())
	if err != nil {
		return nil, err
	}
	return l.Layout.Container(pod, container)
}

// RemoveContainer implements admission.Places.
func (l *Loop) RemoveContainer(ctx context.Context, b ledger.Binding) error {
	return l.Tree.Remove(ctx, l.Layout.Driver().Parse(b.CgroupPath))
}

// Sweep implements admission.Places.
func (l *Loop) Sweep(ctx context.Context, view *ledger.View, keep map[string]bool) error {
	strangers, err := l.Strangers(ctx, view)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range strangers {
		if uid, ok := l.Layout.PodUID(name); ok && keep[uid] {
			continue
		}
		l.Log.WarnContext(ctx, "remove a cgroup without a pod", "name", name.String())
		errs = append(errs, l.Tree.Remove(ctx, name))
	}
	return errors.Join(errs...)
}

// Strangers lists the cgroups of pods that the view does not know.
func (l *Loop) Strangers(ctx context.Context, view *ledger.View) ([]cgroup.Name, error) {
	seen, err := l.Tree.Observe(ctx, l.Layout.Pods(), 2)
	if err != nil {
		return nil, fmt.Errorf("observe the cgroup tree: %w", err)
	}
	return l.Layout.Orphans(seen, known(view)), nil
}

// pod looks a pod and the name of its cgroup up.
func (l *Loop) pod(view *ledger.View, uid string) (*ledger.Pod, cgroup.Name, error) {
	p, ok := view.Pod(uid)
	if !ok {
		return nil, nil, fault.Internalf("pod %s is not in the view that its cgroup should follow", uid)
	}
	name, err := l.Layout.Pod(p.QoS, uid)
	return p, name, err
}
