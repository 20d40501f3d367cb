package cpu

import "slices"

// acrossUncores takes what is needed within as few uncores as it finds: the reference's
// choice, unless fewestUncores needs fewer of them (kubernetes#137315). The option
// prefer-align-cpus-by-uncorecache never refuses (KEP-4800).
func (r *run) acrossUncores() *run {
	fewest := newRun(r.table, r.free.Set(), r.need)
	fewest.taken.AddSet(r.taken.Set())
	r.takeUncores()
	r.takeTorn()
	fewest.fewestUncores()
	if fewest.uncores() < r.uncores() {
		return fewest
	}
	return r
}

// uncores is the number of uncores that CPUs are taken from.
func (r *run) uncores() (n int) {
	for range r.part[uncore].Touched(r.taken.Set()) {
		n++
	}
	return n
}

// fewestUncores takes all from the fullest uncore that can give it. If none can, it
// takes whole uncores, then the rest from the fullest uncore that can give it. If
// none can, it takes all that the uncore with the most free CPUs has, and tries again.
func (r *run) fewestUncores() {
	order := r.within(r.order(node), &r.nodeUncores)
	if !r.takeFromOne(order) {
		r.takeUnits(uncore, order)
	}
	for r.need > 0 && !r.takeFromOne(order) {
		most := slices.MaxFunc(order, func(a, b int32) int { return r.count(uncore, a) - r.count(uncore, b) })
		r.takeFrom(r.part[uncore].CPUs(int(most)))
	}
}

// takeFromOne takes all that is needed from the fullest uncore that can give it, whole
// cores first. It returns false if there is none.
func (r *run) takeFromOne(order []int32) bool {
	best := int32(-1)
	for _, u := range order {
		if n := r.count(uncore, u); n >= r.need && (best < 0 || n < r.count(uncore, best)) {
			best = u
		}
	}
	if best < 0 {
		return false
	}
	inside := newRun(r.table, r.free.Set().Intersect(r.part[uncore].CPUs(int(best))), r.need)
	inside.takeTorn()
	for cpu := range inside.taken.Set().All() {
		r.take(cpu)
	}
	return true
}

// takeUncores takes whole uncores while they fit, and then what is left from the
// first uncore that can give exactly that, fullest first. If none can, it leaves
// the rest to the next step, which may cross uncores.
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
