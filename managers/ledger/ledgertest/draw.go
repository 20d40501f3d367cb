package ledgertest

import (
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
)

// DrawPod makes a pod out of what is free, with all that a pod can have. draw returns a random number from 0 to most.
func DrawPod(draw func(most int, what string) int, v *ledger.View, uid string) *ledger.Pod {
	left := []string{"init:i", "init:j", "sidecar:s", "c", "d"}
	var roles []string
	for range draw(len(left), "containers") {
		i := draw(len(left)-1, "container")
		roles, left = append(roles, left[i]), slices.Delete(left, i, i+1)
	}
	p := Pod(uid, append(roles, "main")...)
	free := v.AllocatableCPUs().Minus(v.ExclusiveCPUs())
	var handed cpuset.Set
	for _, c := range p.Pod.Walk() {
		n := draw(3, "cpus")
		set := handed.Union(free).Lowest(n)
		if set.Len() == n && n > 0 {
			claim := Exclusive(c.Name, set.String())
			claim.Affinity = &ledger.Affinity{Nodes: v.Machine().NodesOf(set)}
			With(p, claim)
			free, handed = free.Minus(set), handed.Minus(set)
			if c.Role.Feeds() {
				handed = handed.Union(set)
			}
		}
		if draw(1, "device") == 1 {
			With(p, Devices(c.Name, "vendor.com/gpu", uid+c.Name))
		}
	}
	if draw(1, "memory") == 1 {
		With(p, Memory("main", "memory", []string{"0", "1"}[draw(1, "node")], 1<<20))
	}
	if draw(1, "trace") == 1 {
		p.Trace = &ledger.Trace{AdmissionID: p.AdmissionID, Pod: uid, Admitted: true}
	}
	return p
}
