package cpu

import (
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
)

// manner is how CPUs are chosen from the free ones.
type manner struct {
	// spread takes one CPU of each core of a socket before it takes a second one, so
	// that siblings stay free as long as possible.
	spread bool
	// uncores keeps a choice within as few uncores as it can (KEP-4800).
	uncores bool
	// asKubelet is Config.AsKubelet.
	asKubelet bool
}

// run is one choice of CPUs: so many out of those that are free. It counts the
// free CPUs of every unit and keeps the counts up to date with each CPU taken.
//
// The packed choice goes from large to small: whole units of the upper level,
// then of the second, whole cores, single CPUs. Within one step the units with
// the fewest free CPUs come first, ties by id, so that large gaps stay large.
// The order is fixed when a step begins.
type run struct {
	*table
	free   cpuset.Builder
	counts []int32 // free CPUs by unit, numbered through all kinds
	left   int     // number of free CPUs
	need   int     // number of CPUs still to be taken
	taken  cpuset.Builder
}

func newRun(t *table, free cpuset.Set, n int) *run {
	r := &run{table: t, counts: make([]int32, t.total), need: n}
	free = free.Intersect(t.topo.CPUs())
	r.free.AddSet(free)
	for cpu := range free.All() {
		r.left++
		for k := range kinds {
			r.counts[t.base[k]+int(t.of[k][cpu])]++
		}
	}
	return r
}

// packed takes n of the free CPUs, as few units as possible torn.
func (t *table) packed(free cpuset.Set, n int, m manner) (cpuset.Set, error) {
	if n <= 0 {
		return cpuset.Set{}, nil
	}
	r := newRun(t, free, n)
	if r.left < n {
		return cpuset.Set{}, shortage(n, r.left)
	}
	r.takeWhole(r.upper())
	r.takeWhole(r.second())
	switch {
	case r.need == 0:
	case m.uncores && m.asKubelet:
		r.takeUncores()
		r.takeTorn()
	case m.uncores:
		r = r.acrossUncores()
	case m.spread && m.asKubelet:
		r.takeByNumber()
	case m.spread:
		r.takeSpread()
	default:
		r.takeTorn()
	}
	return r.taken.Set(), nil
}

// takeTorn takes whole cores, and then single CPUs.
func (r *run) takeTorn() {
	r.takeCores()
	r.takeSingles()
}

func (r *run) count(k kind, unit int32) int { return int(r.counts[r.base[k]+int(unit)]) }

// whole reports whether every CPU of a unit is free. Sockets and cores must also
// have the size of the machine's average: only then the reference uses them.
func (r *run) whole(k kind, unit int32) bool {
	n := r.count(k, unit)
	if n != r.part[k].Size(int(unit)) {
		return false
	}
	switch k {
	case core:
		return n == r.perCore
	case socket:
		return n == r.perSocket
	}
	return true
}

func (r *run) take(cpu int) {
	r.free.Remove(cpu)
	r.taken.Add(cpu)
	for k := range kinds {
		r.counts[r.base[k]+int(r.of[k][cpu])]--
	}
	r.left--
	r.need--
}

// takeUnits takes the whole ones among the given units as long as they fit.
func (r *run) takeUnits(k kind, units []int32) {
	for _, u := range units {
		if r.need >= r.part[k].Size(int(u)) && r.whole(k, u) {
			for cpu := range r.part[k].CPUs(int(u)).All() {
				r.take(cpu)
			}
		}
	}
}

// takeWhole takes whole units of an upper level.
func (r *run) takeWhole(k kind) {
	for i := range r.part[k].Len() {
		if r.need >= r.part[k].Size(i) && r.whole(k, int32(i)) {
			r.takeUnits(k, r.order(k))
			return
		}
	}
}

// takeCores takes whole cores.
func (r *run) takeCores() {
	cores := r.coresOf()
	for _, parent := range r.order(r.second()) {
		if r.need < r.perCore {
			return
		}
		r.takeUnits(core, cores.members[parent])
	}
}

// takeSingles takes CPU by CPU: from the cores with the fewest free ones first.
func (r *run) takeSingles() {
	cores := r.coresOf()
	for _, parent := range r.order(r.second()) {
		for free := 1; free <= r.largestCore && r.need > 0; free++ {
			for _, c := range cores.members[parent] {
				if r.count(core, c) == free && r.present(cores, parent, c) {
					r.takeFrom(r.part[core].CPUs(int(c)))
				}
			}
		}
	}
}

// takeSpread takes one free CPU of each core of a socket in turns, from the cores
// with the fewest free ones first (kubernetes#140688).
func (r *run) takeSpread() {
	for _, s := range r.order(socket) {
		cores := r.within([]int32{s}, &r.socketCores)
		for before := 0; r.need > 0 && before != r.need; {
			before = r.need
			for _, c := range cores {
				r.takeFirst(r.part[core].CPUs(int(c)).Intersect(r.part[socket].CPUs(int(s))))
			}
		}
	}
}

// takeByNumber takes CPU by CPU in order of their numbers within a socket.
func (r *run) takeByNumber() {
	for _, s := range r.order(socket) {
		r.takeFrom(r.part[socket].CPUs(int(s)))
	}
}

// takeFirst takes the lowest free CPU of a set if one is needed.
func (r *run) takeFirst(set cpuset.Set) {
	if r.need <= 0 {
		return
	}
	for cpu := range set.All() {
		if r.free.Contains(cpu) {
			r.take(cpu)
			return
		}
	}
}

// takeFrom takes the free CPUs of a set in ascending order while any are needed.
func (r *run) takeFrom(set cpuset.Set) {
	if r.need <= 0 {
		return
	}
	for cpu := range set.All() {
		if r.free.Contains(cpu) {
			r.take(cpu)
			if r.need == 0 {
				return
			}
		}
	}
}

// upper and second are the kinds of the two levels above the cores.
func (r *run) upper() kind {
	if r.nodesFirst {
		return node
	}
	return socket
}

func (r *run) second() kind {
	if r.nodesFirst {
		return socket
	}
	return node
}

// coresOf reports which cores are in a unit of the second level.
func (r *run) coresOf() *relation {
	if r.nodesFirst {
		return &r.socketCores
	}
	return &r.nodeCores
}

// order lists the nodes or sockets that have free CPUs: those of the upper level
// by free CPUs, those of the second within the former.
func (r *run) order(k kind) []int32 {
	upper := r.upper()
	list := make([]int32, 0, r.part[upper].Len()+r.part[k].Len())
	for i := range r.part[upper].Len() {
		if r.count(upper, int32(i)) > 0 {
			list = append(list, int32(i))
		}
	}
	r.sort(upper, list)
	if k == upper {
		return list
	}
	within := &r.nodeSockets
	if k == node {
		within = &r.socketNodes
	}
	return r.within(list, within)
}

// within lists the inner units that have free CPUs in the outer ones. Those of
// one outer unit stand together, in order of free CPUs; a unit that crosses
// outer ones is repeated.
func (r *run) within(outer []int32, rel *relation) []int32 {
	var list []int32
	for _, o := range outer {
		start := len(list)
		for _, i := range rel.members[o] {
			if r.count(rel.inner, i) > 0 && r.present(rel, o, i) {
				list = append(list, i)
			}
		}
		r.sort(rel.inner, list[start:])
	}
	return list
}

// present reports whether an inner unit with free CPUs has some of them in the
// outer one.
func (r *run) present(rel *relation, outer, inner int32) bool {
	if !rel.crossing {
		return true
	}
	for cpu := range r.part[rel.inner].CPUs(int(inner)).All() {
		if r.of[rel.outer][cpu] == outer && r.free.Contains(cpu) {
			return true
		}
	}
	return false
}

// sort orders units of a kind by the number of free CPUs, ties by id.
func (r *run) sort(k kind, units []int32) {
	slices.SortFunc(units, func(a, b int32) int {
		return cmp.Or(cmp.Compare(r.count(k, a), r.count(k, b)), cmp.Compare(a, b))
	})
}
