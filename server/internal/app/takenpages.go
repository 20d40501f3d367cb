package app

import (
	"context"
	"slices"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/host/sysfs"
)

// countPages counts the huge pages that others than pods use, and commits them if they have changed. An error is logged, unless it
// is the last one again; then pods can have what they could have before.
func (m *machineChanges) countPages(ctx context.Context) {
	before := m.policies.state.ledger.View().Rules().TakenPages
	now, err := m.takenPages(ctx)
	if err == nil && !slices.Equal(before, now) {
		err = m.setTakenPages(ctx, now)
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != m.uncounted && ctx.Err() == nil {
		if m.uncounted = text; err != nil {
			m.given.Log.ErrorContext(ctx, "the huge pages that others than pods use cannot be counted", "error", err)
		}
	}
	if err != nil {
		return
	}
	was := m.taken
	m.taken = memory.TakenFindings(m.policies.state.ledger.View())
	for _, f := range m.taken {
		if !slices.Contains(was, f) {
			m.given.Log.WarnContext(ctx, "huge pages are in use outside of pods", "finding", f.Text)
		}
	}
	if len(was) > 0 && len(m.taken) == 0 {
		m.given.Log.InfoContext(ctx, "no huge pages are in use outside of pods any more")
	}
}

// setTakenPages commits the huge pages that pods cannot have. Pods keep what they have, and running admissions are planned again.
func (m *machineChanges) setTakenPages(ctx context.Context, pages []ledger.TakenPages) error {
	release, err := m.policies.deciding.engine.Acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	ctx = history.WithCall(ctx, &history.Call{Name: "HugePagesInUse", Time: m.given.Now()})
	return m.policies.state.ledger.SetTakenPages(ctx, pages)
}

// takenPages are the huge pages that pods cannot have now; none on a simulated machine, and with features.asKubelet, because the
// kubelet does not count them.
func (m *machineChanges) takenPages(ctx context.Context) ([]ledger.TakenPages, error) {
	p := m.policies
	policy, _ := p.Policy()
	c := p.files().With(policy)
	if c.Machine != "" || c.Features.AsKubelet {
		return nil, nil
	}
	usage := pagesOfPods(ctx, p.kernel, keepsPods(c))
	for try := 1; ; try++ {
		view := p.state.ledger.View()
		if movesPages(view) {
			return view.Rules().TakenPages, nil
		}
		pages, err := p.countOn(c, view, usage)
		// A pod that has come or gone meanwhile may be seen by half.
		if err != nil || p.state.ledger.View().SameFacts(view) || try == countTries {
			return pages, err
		}
	}
}

// movesPages reports whether huge pages of a pod move. The kernel has a page on both nodes then, for a moment, so that one of them seems to
// be in use outside of pods. The next count comes after the move.
func movesPages(view *ledger.View) bool {
	for p := range view.Pods() {
		if p.Move != nil && slices.ContainsFunc(p.Claims, func(c ledger.Claim) bool {
			_, err := workload.HugePageSize(workload.Resource(c.Resource))
			return err == nil
		}) {
			return true
		}
	}
	return false
}

// countTries is how often pages are counted until no pod comes or goes meanwhile.
const countTries = 3

// countOn counts the huge pages that the pods of a view cannot have. usage reads what a cgroup uses.
func (p *policies) countOn(c config.Config, view *ledger.View, usage func(cgroup.Name, workload.Resource) (uint64, bool)) (
	[]ledger.TakenPages, error) {
	nodes, err := readFree("huge pages in use", sysfs.HugePagesInUse)
	if err != nil {
		return nil, err
	}
	var inUse []memory.Pool
	for _, n := range nodes {
		for _, h := range n.HugePages {
			inUse = append(inUse, memory.Pool{Node: n.ID, SizeKiB: h.SizeKiB, Pages: h.Count})
		}
	}
	return p.deciding.managers.inForce().Memory.TakenPages(view, inUse, memory.PodPages{
		Of: func(uid string, r workload.Resource) (uint64, bool) {
			pod, ok := view.Pod(uid)
			if !ok {
				return 0, false
			}
			name, err := p.kernel.layout.Pod(pod.QoS, uid)
			if err != nil {
				return 0, false
			}
			return usage(name, r)
		},
		All:      func(r workload.Resource) (uint64, bool) { return usage(p.kernel.layout.Pods(), r) },
		Features: c.WorkloadFeatures(), System: c.SystemPages(),
	}), nil
}

// pagesOfPods returns a function that reads how much a cgroup uses of huge pages; false if the cgroups of pods are not the kernel's,
// or the kernel does not count them (hugetlb).
func pagesOfPods(ctx context.Context, k *kernel, kernels bool) func(cgroup.Name, workload.Resource) (uint64, bool) {
	meter, ok := k.tree.(cgroup.Meter)
	return func(name cgroup.Name, r workload.Resource) (uint64, bool) {
		size, err := workload.HugePageSize(r)
		if !ok || !kernels || err != nil {
			return 0, false
		}
		d, err := meter.Details(ctx, name)
		bytes, counted := d.HugePageBytes[size]
		return bytes, err == nil && counted
	}
}
