package policy

import (
	"errors"
	"io/fs"
)

// podQuotas removes the CPU quota of each pod with a container that must have none, because the
// kernel applies the quota of the pod's cgroup to the container too. A pod that has no such
// container any more gets its quota again. NRI cannot change the cgroup of a pod. The caller holds
// mu.
func (p *Policy) podQuotas() {
	if p.PodQuota == nil || p.released {
		return
	}
	free, unknown := map[*sandbox]bool{}, map[*sandbox]bool{}
	for _, m := range p.members {
		if !m.stopped {
			free[m.pod] = free[m.pod] || m.free
			unknown[m.pod] = unknown[m.pod] || m.match == unplaced
		}
	}
	failure := ""
	for _, s := range p.sandboxes {
		var err error
		if free[s] {
			err = p.removeQuota(s)
		} else if s.quota > 0 && !s.stopped && !unknown[s] {
			err = p.restoreQuota(s)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the pod has ended
			failure = err.Error()
		}
	}
	if failure != p.quotaFailing && failure != "" {
		p.Log.Warn("a pod with exclusive CPUs keeps its CPU quota", "error", failure)
	}
	p.quotaFailing = failure
}

// removeQuota notes the quota for restoreQuota. The kubelet sets it again when the pod is resized. A
// quota that an earlier berth-nri has removed is the one that the runtime knows.
func (p *Policy) removeQuota(s *sandbox) error {
	before, err := p.PodQuota(s.cgroup, -1)
	switch {
	case err != nil:
		return err
	case before > 0:
		s.quota = before
	case s.quota == 0:
		s.quota = s.resources.GetCpu().GetQuota().GetValue()
	}
	return nil
}

func (p *Policy) restoreQuota(s *sandbox) error {
	_, err := p.PodQuota(s.cgroup, s.quota)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		s.quota = 0
	}
	return err
}
