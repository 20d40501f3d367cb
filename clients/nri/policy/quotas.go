package policy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"

	"github.com/berthd/berth/managers/workload"
)

// quotas removes the CPU quotas of pods, and gives them back.
type quotas struct {
	*common
	gate        *gate
	set         func(cgroup string, quota int64) (before int64, err error) // Host.PodQuota
	seesCgroups bool                                                       // the cgroup of a pod was seen
	logged      failures
}

// cgroupGone reports whether the kubelet has removed a pod's cgroup. If no cgroup of a pod was ever seen, the directory of cgroups may be
// another one.
func (q *quotas) cgroupGone(s *sandbox) bool {
	if q.set == nil || s.cgroup == "" {
		return false
	}
	_, err := q.set(s.cgroup, 0)
	q.seesCgroups = q.seesCgroups || err == nil
	return q.seesCgroups && errors.Is(err, fs.ErrNotExist)
}

// podQuotas removes the CPU quota of each pod with a container that must have none, because the
// kernel applies the quota of the pod's cgroup to the container too. Without such a
// container, the pod gets its quota again. NRI cannot change the cgroup of a pod. The caller holds
// mu.
func (q *quotas) podQuotas() {
	if q.set == nil || q.gate.released {
		return
	}
	free, shared, unknown := map[*sandbox]bool{}, map[*sandbox]bool{}, map[*sandbox]bool{}
	for _, m := range q.node.members {
		if !m.life.over() {
			free[m.pod] = free[m.pod] || m.free
			shared[m.pod] = shared[m.pod] || !m.free && m.bounded()
			unknown[m.pod] = unknown[m.pod] || m.match == unplaced
		}
	}
	var failures []string
	for _, s := range q.node.sandboxes {
		var err error
		what := "keeps its CPU quota"
		if free[s] && !shared[s] {
			err = q.remove(s)
		} else if !unknown[s] {
			what = "does not get its CPU quota back"
			err = q.restore(s)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the pod has ended
			failures = append(failures, fmt.Sprintf("%s/%s %s: %v", s.namespace, s.name, what, err))
		}
	}
	q.logged.log(q.log, "the CPU quota of pods cannot be changed", failures)
}

// remove notes the quota for restore. The kubelet sets it again when the pod is resized.
func (q *quotas) remove(s *sandbox) error {
	s.hasQuota = false
	before, err := q.set(s.cgroup, -1)
	if err == nil && before > 0 {
		s.quota = before
	}
	return err
}

// restore gives a pod the quota that was removed. If an earlier berth-nri has removed it, the
// runtime's quota is used; only for a guaranteed pod this is also the quota of the pod's cgroup. If the
// cgroup has a quota, the kubelet has set it since, and it stays.
func (q *quotas) restore(s *sandbox) error {
	quota := s.quota
	if s.qos == string(workload.Guaranteed) {
		quota = cmp.Or(quota, s.resources.GetCpu().GetQuota().GetValue())
	}
	if q.set == nil || s.hasQuota || quota <= 0 {
		return nil
	}
	now, err := q.set(s.cgroup, 0)
	if err == nil && now < 0 {
		_, err = q.set(s.cgroup, quota)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		s.quota, s.hasQuota = 0, true
	}
	return err
}

// returns lets Follow compare after a pause: the kubelet sets the quota of a pod's cgroup right after the events of
// a resize. The caller holds mu.
func (q *quotas) returns() {
	if q.set != nil && !q.gate.released {
		q.agenda.later()
	}
}
