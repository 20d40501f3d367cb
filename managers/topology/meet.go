package topology

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// moreSteps is how long a search goes on for more sets after the best is known.
const moreSteps = 1 << 7

// preferredByRules appends the best masks that all lists prefer that do not
// abstain, where all of those have rules.
func (m *Manager) preferredByRules(masks []numa.Mask, lists []list, r *Result) []numa.Mask {
	var voters []*list
	var rules []*hint.Rule
	from := len(masks)
	for i := range lists {
		if l := &lists[i]; !l.abstains {
			voters, rules = append(voters, l), append(rules, l.rule)
			masks = l.appendPreferred(masks)
		}
	}
	// Beside the rules: what one list names and all others prefer too.
	slices.Sort(masks[from:])
	masks = append(masks[:from], slices.Compact(masks[from:])...)
	masks = slices.DeleteFunc(masks, func(raw numa.Mask) bool {
		return slices.ContainsFunc(voters, func(l *list) bool { return !l.prefers(raw) })
	})
	var distances *numa.Distances
	if m.closest {
		distances = &m.distances
	}
	s := meet(rules, distances, maxSteps)
	r.Work += s.steps
	r.Approximate = r.Approximate || s.steps > maxSteps
	for _, c := range s.rank.best[:s.rank.kept] {
		if !slices.Contains(masks, c.nodes) {
			masks = append(masks, c.nodes)
		}
	}
	return masks
}

// threshold is one need of a rule.
type threshold struct {
	weights *hint.Weights
	need    uint64
}

// meeting is the search for a mask of a size that several rules allow. It goes
// through the nodes from the highest id down and tries first to do without a
// node, so that masks are found in ascending order as integers, and it turns back
// as soon as some rule could not be met even with the heaviest nodes that are
// left.
type meeting struct {
	needs []threshold
	size  int
	must  numa.Mask
	ids   []int // of the nodes in question, descending
	// heaviest[i][at] has at l the weight of the l heaviest nodes for need i
	// among ids[at:].
	heaviest [][][]uint64
	sums     []uint64
	// steps are counted up to limit.
	steps, limit int

	distances *numa.Distances
	// Least distances from a node to itself and to another.
	leastSelf, leastCross int64
	// rank has the best masks found.
	rank ranking
}

// meet finds the best mask that all rules prefer, and a few of the next: with
// distances those with the smallest sum, then the smallest integers. If more than
// limit steps were needed the first is only the best one seen.
func meet(rules []*hint.Rule, distances *numa.Distances, limit int) *meeting {
	for _, r := range rules {
		if r.PreferredSize != rules[0].PreferredSize {
			return &meeting{}
		}
	}
	s := newMeeting(rules, rules[0].PreferredSize, distances)
	s.limit = limit
	if s.size >= 1 {
		s.from(0, 0, s.size, s.must.Len(), 0)
	}
	return s
}

// newMeeting prepares the search; its size is 0 if there is no use in it.
func newMeeting(rules []*hint.Rule, size int, distances *numa.Distances) *meeting {
	s := &meeting{size: size, distances: distances, limit: maxSteps}
	universe := everything
	for _, r := range rules {
		universe &= r.Universe
		s.must |= r.Must
		for weights, need := range r.Needs() {
			s.demand(threshold{weights, need})
		}
	}
	if size > universe.Len() || !s.must.IsSubsetOf(universe) || s.must.Len() > size {
		return &meeting{}
	}
	s.ids = universe.IDs()
	slices.Reverse(s.ids)
	s.weigh()
	s.measure()
	return s
}

// demand adds a need that is not there yet; rules of one provider often share
// theirs.
func (s *meeting) demand(t threshold) {
	for _, have := range s.needs {
		if have.need == t.need && (have.weights == t.weights || *have.weights == *t.weights) {
			return
		}
	}
	s.needs = append(s.needs, t)
}

// weigh fills in heaviest.
func (s *meeting) weigh() {
	s.sums = make([]uint64, len(s.needs))
	s.heaviest = make([][][]uint64, len(s.needs))
	for i, t := range s.needs {
		rows := make([][]uint64, len(s.ids)+1)
		cells := make([]uint64, len(rows)*(s.size+1))
		top := make([]uint64, 0, s.size+1) // the heaviest so far, descending
		for at := len(s.ids); at >= 0; at-- {
			row := cells[at*(s.size+1):][:s.size+1]
			if at < len(s.ids) {
				w := t.weights[s.ids[at]]
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
	if s.steps++; s.steps > s.limit {
		return true
	}
	if left == 0 {
		return musts == 0 && s.met() && s.take(chosen, distance)
	}
	if !s.possible(at, left, musts) {
		return false
	}
	if s.distances != nil && s.rank.kept > 0 && distance+s.rest(left, s.size-left) >= s.rank.best[0].distance {
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
	for i := range s.needs {
		s.sums[i] += s.needs[i].weights[id]
	}
	over := s.from(at+1, chosen.With(id), left-1, musts, distance+s.further(id, chosen))
	for i := range s.needs {
		s.sums[i] -= s.needs[i].weights[id]
	}
	return over
}

// met tells whether what is chosen is enough.
func (s *meeting) met() bool {
	for i := range s.needs {
		if s.sums[i] < s.needs[i].need {
			return false
		}
	}
	return true
}

// take notes a mask that was found. Without distances the first is the best, and
// the search goes on for a short while only.
func (s *meeting) take(nodes numa.Mask, distance int64) (over bool) {
	s.rank.add(candidate{distance: distance, nodes: nodes})
	if s.distances != nil {
		return false
	}
	if s.rank.kept == 1 {
		s.limit = min(s.limit, s.steps+moreSteps)
	}
	return s.rank.kept == len(s.rank.best)
}

// possible tells whether the nodes of ids[at:] could be enough.
func (s *meeting) possible(at, left, musts int) bool {
	if musts > left || left > len(s.ids)-at {
		return false
	}
	for i := range s.needs {
		if s.sums[i]+s.heaviest[i][at][left] < s.needs[i].need {
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
