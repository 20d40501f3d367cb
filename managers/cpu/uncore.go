package cpu

import "github.com/berthd/berth/managers/cpuset"

// takeUncores takes whole uncores while they fit, and then what is left from the
// first uncore that can give exactly that, fullest first. If none can, it leaves
// the rest to the next step, which may cross uncores: the option
// prefer-align-cpus-by-uncorecache never refuses (KEP-4800).
func (r *run) takeUncores() {
	order := r.within(r.order(node), &r.nodeUncores)
	if r.need >= r.perUncore {
		r.takeUnits(uncore, order)
	}
	for _, u := range order {
		if r.need == 0 {
			return
		}
		r.takePart(u)
	}
}

// takePart takes all that is needed from the lowest cores of an uncore, or
// nothing if these do not have exactly that many free CPUs. An odd need may
// leave one CPU of the last core.
func (r *run) takePart(u int32) {
	cores := (r.need + r.perCore - 1) / r.perCore
	var chosen cpuset.Builder
	count, highest := 0, -1
	for _, c := range r.uncoreCores.members[u] {
		if cores == 0 {
			break
		}
		if r.count(core, c) == 0 || !r.present(&r.uncoreCores, u, c) {
			continue
		}
		cores--
		for cpu := range r.part[core].CPUs(int(c)).All() {
			if r.free.Contains(cpu) {
				chosen.Add(cpu)
				count++
				highest = max(highest, cpu)
			}
		}
	}
	if r.need%2 == 1 && r.perCore > 1 && count > r.need {
		chosen.Remove(highest)
		count--
	}
	if count == r.need {
		r.takeFrom(chosen.Set())
	}
}
