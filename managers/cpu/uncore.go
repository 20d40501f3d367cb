package cpu

import "slices"

// takeUncores takes whole uncores while they fit, and then what is left from the
// first uncore that can give exactly that, fullest first. If none can, it leaves
// the rest to the next step, which may cross uncores: the option
// prefer-align-cpus-by-uncorecache never refuses (KEP-4800).
func (r *run) takeUncores() {
	order := r.within(r.order(node), &r.nodeUncores)
	if r.need >= r.perUncore {
		r.takeUnits(uncore, order)
	}
	var chosen []int
	for _, u := range order {
		if r.need == 0 {
			return
		}
		chosen = r.takePart(u, chosen[:0])
	}
}

// takePart takes all that is needed from the lowest cores of an uncore, or
// nothing if these do not have exactly that many free CPUs. An odd need may
// leave one CPU of the last core. chosen is empty, for the work; it is returned
// to be used again.
func (r *run) takePart(u int32, chosen []int) []int {
	cores := (r.need + r.perCore - 1) / r.perCore
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
				chosen = append(chosen, cpu)
			}
		}
	}
	if r.need%2 == 1 && r.perCore > 1 && len(chosen) > r.need {
		highest := slices.Index(chosen, slices.Max(chosen))
		chosen = slices.Delete(chosen, highest, highest+1)
	}
	if len(chosen) == r.need {
		for _, cpu := range chosen {
			r.take(cpu)
		}
	}
	return chosen
}
