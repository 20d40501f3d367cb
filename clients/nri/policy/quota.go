package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/workload"
)

// podQuotas removes the CPU quota of each pod with a container that must have none, because the
// kernel applies the quota of the pod's cgroup to the container too. Without such a
// container, the pod gets its quota again. NRI cannot change the cgroup of a pod. The caller holds
// mu.
func (p *Policy) podQuotas() {
	if p.PodQuota == nil || p.released {
		return
	}
	free, shared, unknown := map[*sandbox]bool{}, map[*sandbox]bool{}, map[*sandbox]bool{}
	for _, m := range p.members {
		if !m.life.over() {
			free[m.pod] = free[m.pod] || m.free
			shared[m.pod] = shared[m.pod] || !m.free && m.bounded()
			unknown[m.pod] = unknown[m.pod] || m.match == unplaced
		}
	}
	var failures []string
	for _, s := range p.sandboxes {
		var err error
		what := "keeps its CPU quota"
		if free[s] && !shared[s] {
			err = p.removeQuota(s)
		} else if !unknown[s] {
			what = "does not get its CPU quota back"
			err = p.restoreQuota(s)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the pod has ended
			failures = append(failures, fmt.Sprintf("%s/%s %s: %v", s.namespace, s.name, what, err))
		}
	}
	p.quotaFailing.log(p.Log, "the CPU quota of pods cannot be changed", failures)
}

// shownFailures is how many failures are in one line of the log.
const shownFailures = 3

// failures are the failures of a pass that are in the log.
type failures string

// log logs the failures of a pass, unless they are those of the last pass.
func (f *failures) log(log *slog.Logger, what string, now []string) {
	slices.Sort(now)
	all := failures(strings.Join(now, "; "))
	if all != *f && all != "" {
		log.Warn(what, "pods", len(now), "error", strings.Join(now[:min(len(now), shownFailures)], "; "))
	}
	*f = all
}

// bounded reports whether only the quota of its pod limits what a container uses. With pod-level resources
// (KEP-2837) the kubelet writes the pod's amount on a container without a limit of its own.
func (m *member) bounded() bool {
	if m.ofPod {
		return true
	}
	spec := m.pod.spec.GetSpec()
	return slices.ContainsFunc(slices.Concat(spec.GetInitContainers(), spec.GetContainers()), func(c *typesv1.Container) bool {
		return c.GetName() == m.name && c.GetResources().GetLimits()["cpu"] == ""
	})
}

// removeQuota notes the quota for restoreQuota. The kubelet sets it again when the pod is resized.
func (p *Policy) removeQuota(s *sandbox) error {
	s.hasQuota = false
	before, err := p.PodQuota(s.cgroup, -1)
	if err == nil && before > 0 {
		s.quota = before
	}
	return err
}

// restoreQuota gives a pod the quota that was removed. If an earlier berth-nri has removed it, the
// runtime's quota is used; only for a guaranteed pod this is also the quota of the pod's cgroup. If the
// cgroup has a quota, the kubelet has set it since, and it stays.
func (p *Policy) restoreQuota(s *sandbox) error {
	quota := s.quota
	if s.qos == string(workload.Guaranteed) {
		quota = cmp.Or(quota, s.resources.GetCpu().GetQuota().GetValue())
	}
	if p.PodQuota == nil || s.hasQuota || quota <= 0 {
		return nil
	}
	now, err := p.PodQuota(s.cgroup, 0)
	if err == nil && now < 0 {
		_, err = p.PodQuota(s.cgroup, quota)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		s.quota, s.hasQuota = 0, true
	}
	return err
}

// lostQuota returns the quota of a container that an earlier berth-nri has removed; 0 if none was. The
// runtime reports a removed quota as negative, and a quota that the kubelet has never set as zero. The limit of an even container equals
// its request.
func (m *member) lostQuota() int64 {
	if !m.even() || m.resources.GetCpu().GetQuota().GetValue() >= 0 {
		return 0
	}
	return (amountsOf(m.resources, true).cpuLimit + m.added[workload.CPU]) * period / milliPerCPU
}

// PostUpdatePodSandbox is the event of a resize of a pod. It has only sums over the containers, which berthd cannot use.
func (p *Policy) PostUpdatePodSandbox(ctx context.Context, _ *api.PodSandbox) error {
	_, end := p.begin(ctx)
	defer end()
	p.quotaReturns()
	return nil
}

// quotaReturns lets Follow compare after a pause: the kubelet sets the quota of a pod's cgroup right after the events of
// a resize. The caller holds mu.
func (p *Policy) quotaReturns() {
	if p.PodQuota != nil && !p.released {
		p.kickLater()
	}
}
