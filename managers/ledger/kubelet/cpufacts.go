package kubelet

import (
	"maps"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// policyNone is the CPU manager's policy that keeps no state: the shared pool of
// its file is empty, although all containers run on all CPUs.
const policyNone = "none"

// readCPU converts cpu_manager_state to claims. Its shared pool is not converted: in berth the
// pool is the CPUs without an owner. If the two differ, a kubelet would refuse the file
// (CPUState.Check), and a note reports that.
func readCPU(data []byte, in Input) (Facts, error) {
	s, unknownIDs, err := parseCPU(data, in.ContainerIDs)
	if err == nil {
		err = in.allow(len(s.Pods))
	}
	if err != nil {
		return Facts{}, err
	}
	facts := Facts{Format: s.Format}
	for _, id := range slices.Sorted(maps.Keys(unknownIDs)) {
		facts.skip("CPUs %s of container id %s", unknownIDs[id], id)
	}
	facts.name(maps.Keys(s.Containers))
	facts.name(maps.Keys(s.Pods))
	for _, uid := range facts.Pods {
		s.addClaims(&facts, uid, in.pod(uid))
	}
	if s.Policy != in.Policy {
		facts.note("the file is one of policy %s, and berth runs under %s", Printable(s.Policy), in.Policy)
	}
	rules := in.View.Rules()
	if s.Policy != policyNone {
		if err := s.Check(rules.Machine.CPUs(), rules.ReservedCPUs, rules.StrictReservation); err != nil {
			facts.note("a kubelet with this machine and reservation would not accept the file: %v", err)
		}
	}
	return facts, nil
}

// addClaims adds the claims of a pod and its containers; pod is nil if it is unknown.
func (s *CPUState) addClaims(facts *Facts, uid string, pod *workload.Pod) {
	whole, divided := s.Pods[uid]
	switch {
	case divided && pod == nil:
		facts.skip("CPUs %s of pod %s", whole, uid)
	case divided:
		facts.hold(ledger.Owner{Pod: uid}, whole, ledger.CPUPod)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Containers[uid])) {
		owner, set := ledger.Owner{Pod: uid, Container: name}, s.Containers[uid][name]
		var c *workload.Container
		if pod != nil {
			c = pod.Container(name)
		}
		switch {
		case c == nil:
			facts.skip("CPUs %s of %s", set, owner)
		case !divided:
			if n := c.Requests.WholeCPUs(); n != set.Len() {
				facts.note("%s has CPUs %q and requests %d exclusive CPUs", owner, set, n)
			}
			facts.hold(owner, set, ledger.CPUExclusive)
			if had, resized := s.Baselines[uid][name]; resized && had != set {
				facts.admitted(had)
			}
		case c.Guaranteed() && c.Requests.WholeCPUs() > 0:
			facts.hold(owner, set, ledger.CPUPodExclusive)
		default:
			facts.hold(owner, set, ledger.CPUPodShared)
		}
	}
}

// hold adds a claim on CPUs. An entry without any is not a fact.
func (f *Facts) hold(owner ledger.Owner, set cpuset.Set, use ledger.CPUUse) {
	if set.IsEmpty() {
		f.note("%s has an entry without CPUs", owner)
		return
	}
	f.Claims = append(f.Claims, ledger.Claim{
		Owner: owner, Provider: string(CPU), Resource: string(workload.CPU),
		CPUs: &ledger.CPUs{Set: set, Use: use},
	})
}

// admitted notes the CPUs that the owner of the last claim has had since its admission.
func (f *Facts) admitted(had cpuset.Set) {
	cpus := f.Claims[len(f.Claims)-1].CPUs
	cpus.Admitted = had.Intersect(cpus.Set)
}

// writeCPU makes cpu_manager_state of a view.
func writeCPU(view *ledger.View, settings Settings, format int) (File, error) {
	s := CPUState{Policy: settings.Policy, Containers: map[string]map[string]cpuset.Set{}, Pods: map[string]cpuset.Set{}}
	if settings.Policy != policyNone {
		s.Shared = view.SharedCPUs()
	}
	baselines, resized := map[string]map[string]cpuset.Set{}, false
	for c := range view.Claims() {
		uid := c.Owner.Pod
		pod, admitted := view.Pod(uid)
		switch {
		case c.CPUs == nil, admitted && pod.Pod.ResourceClaim != nil:
		case c.Owner.Container == "":
			s.Pods[uid] = c.CPUs.Set
		default:
			if s.Containers[uid] == nil {
				s.Containers[uid], baselines[uid] = map[string]cpuset.Set{}, map[string]cpuset.Set{}
			}
			had := c.CPUs.Set
			if !c.CPUs.Admitted.IsEmpty() {
				had, resized = c.CPUs.Admitted, true
			}
			s.Containers[uid][c.Owner.Container], baselines[uid][c.Owner.Container] = c.CPUs.Set, had
		}
	}
	if resized && (format == 0 || format == 4) { // a kubelet that reads any of them takes the others for missing
		s.Baselines = baselines
	}
	if format == 0 {
		switch format = 2; {
		case resized:
			format = 4
		case len(s.Pods) > 0:
			format = 3
		}
	}
	data, err := s.Marshal(format)
	return File{Format: format, Data: data}, err
}
