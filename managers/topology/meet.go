package topology

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// preferredByRules looks for the best mask that all lists prefer that do not
// abstain, where all of those are rules.
func (m *Manager) preferredByRules(lists []list, r *Result) (numa.Mask, bool) {
	var voters []*list
	for i := range lists {
		if !lists[i].abstains {
			voters = append(voters, &lists[i])
		}
	}
	var distances *numa.Distances
	if m.closest {
		distances = &m.distances
	}
	best, found, s := meet(voters, distances)
	r.Work += s.steps
	r.Approximate = s.steps > maxSteps
	return best, found
}

// meeting is the search for a mask that several rules prefer. It goes through
// the nodes from the highest id down and tries first to do without a node, so
// that masks are found in ascending order as integers, and it turns back as soon
// as some rule could not be met even with the heaviest nodes that are left.
type meeting struct {
	rules []*hint.Rule
	size  int
	must  numa.Mask
	ids   []int // of the nodes in question, descending
	// heaviest[i][at] has at l the weight of the l heaviest nodes for rule i
	// among ids[at:].
	heaviest [][][]uint64
	sums     []uint64
	steps    int

	distances *numa.Distances
	// Least distances from a node to itself and to another.
	leastSelf, leastCross int64
	best                  numa.Mask
	bestDistance          int64
	found                 bool
}

// meet finds the best mask that all rules prefer: with distances that with the
// smallest sum, then the smallest integer. If more than maxSteps were needed the
// result is only the best one seen.
func meet(voters []*list, distances *numa.Distances) (numa.Mask, bool, *meeting) {
	s := &meeting{size: voters[0].rule.PreferredSize, distances: distances}
	universe := everything
	for _, l := range voters {
		if l.rule.PreferredSize != s.size {
			return 0, false, s
		}
		universe &= l.rule.Universe
		s.must |= l.rule.Must
		s.rules = append(s.rules, l.rule)
	}
	if s.size < 1 || s.size > universe.Len() || !s.must.IsSubsetOf(universe) || s.must.Len() > s.size {
		return 0, false, s
	}
	s.ids = universe.IDs()
	slices.Reverse(s.ids)
	s.weigh()
	s.measure()
	s.from(0, 0, s.size, s.must.Len(), 0)
	return s.best, s.found, s
}

// weigh fills in heaviest.
func (s *meeting) weigh() {
	s.sums = make([]uint64, len(s.rules))
	s.heaviest = make([][][]uint64, len(s.rules))
	for i, r := range s.rules {
		rows := make([][]uint64, len(s.ids)+1)
		cells := make([]uint64, len(rows)*(s.size+1))
		top := make([]uint64, 0, s.size+1) // the heaviest so far, descending
		for at := len(s.ids); at >= 0; at-- {
			row := cells[at*(s.size+1):][:s.size+1]
			if at < len(s.ids) {
				w := r.Weights[s.ids[at]]
				place, _ := slices.BinarySearchFunc(top, w, func(have, w uint64) int { return cmp.Compare(w, have) })
				top = slices.Insert(top, place, w)
				top = top[:min(len(top), s.size)]
			}
			for l := range s.size {
				row[l+1] = row[l]
				if l < len(top) {
					row[l+1] += top[l]
				}
			}
			rows[at] = row
		}
		s.heaviest[i] = rows
	}
}

// measure fills in the least distances.
func (s *meeting) measure() {
	if s.distances == nil {
		return
	}
	s.leastSelf, s.leastCross = 1<<40, 1<<40
	for _, i := range s.ids {
		for _, j := range s.ids {
			d, _ := s.distances.Between(i, j)
			if i == j {
				s.leastSelf = min(s.leastSelf, int64(d))
			} else {
				s.leastCross = min(s.leastCross, int64(d))
			}
		}
	}
}

// from chooses left more nodes out of ids[at:], musts of which are necessary.
// It returns true if the search is over.
func (s *meeting) from(at int, chosen numa.Mask, left, musts int, distance int64) bool {
	if s.steps++; s.steps > maxSteps {
		return true
	}
	if left == 0 {
		if musts > 0 {
			return false
		}
		for i, r := range s.rules {
			if s.sums[i] < r.Need {
				return false
			}
		}
		if !s.found || distance < s.bestDistance {
			s.best, s.bestDistance, s.found = chosen, distance, true
		}
		return s.distances == nil
	}
	if !s.possible(at, left, musts) || s.found && distance+s.rest(left, s.size-left) >= s.bestDistance {
		return false
	}
	id := s.ids[at]
	necessary := s.must.Contains(id)
	if !necessary && s.from(at+1, chosen, left, musts, distance) {
		return true
	}
	if necessary {
		musts--
	}
	for i, r := range s.rules {
		s.sums[i] += r.Weights[id]
	}
	over := s.from(at+1, chosen.With(id), left-1, musts, distance+s.further(id, chosen))
	for i, r := range s.rules {
		s.sums[i] -= r.Weights[id]
	}
	return over
}

// possible tells whether the nodes of ids[at:] could be enough.
func (s *meeting) possible(at, left, musts int) bool {
	if musts > left || left > len(s.ids)-at {
		return false
	}
	for i, r := range s.rules {
		if s.sums[i]+s.heaviest[i][at][left] < r.Need {
			return false
		}
	}
	return true
}

// further is what a node adds to the sum of distances.
func (s *meeting) further(id int, chosen numa.Mask) int64 {
	if s.distances == nil {
		return 0
	}
	d, _ := s.distances.Between(id, id)
	sum := int64(d)
	for rest := uint64(chosen); rest != 0; rest &= rest - 1 {
		other := bits.TrailingZeros64(rest)
		to, _ := s.distances.Between(id, other)
		from, _ := s.distances.Between(other, id)
		sum += int64(to) + int64(from)
	}
	return sum
}

// rest is a lower bound of what left more nodes add to those of so many chosen.
func (s *meeting) rest(left, chosen int) int64 {
	if s.distances == nil {
		return 0
	}
	return int64(left)*s.leastSelf + int64(2*left*chosen+left*(left-1))*s.leastCross
}
