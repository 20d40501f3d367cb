package topology

import (
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/numa"
)

// maxSparse is how many reachable masks are kept.
const maxSparse = 1 << 12

// sparse computes which subsets of a large universe are reachable, as a list of
// masks. If there are too many, or if a list has so many hints that going
// through all pairs would take more than maxSteps, it goes on with some of the
// masks and says so: those that contain the lowest node of the universe first,
// because every list has a mask with that node and so one of them lasts to the
// end; among them the largest, because intersections only shrink.
type sparse struct {
	universe numa.Mask
	masks    []numa.Mask
	cut      bool
	work     int
}

func (s *sparse) reach(lists []*list) {
	s.masks = []numa.Mask{s.universe}
	for _, l := range lists {
		s.masks = s.trim(s.masks, max(1, maxSteps/len(l.hints)))
		s.work += len(s.masks) * len(l.hints)
		next := make([]numa.Mask, 0, min(len(s.masks)*len(l.hints), 4*maxSparse))
		for _, reached := range s.masks {
			for i := range l.hints {
				both := reached & mask(l.hints[i])
				if both == 0 {
					continue
				}
				if len(next) == cap(next) {
					next = s.trim(next, maxSparse)
				}
				next = append(next, both)
			}
		}
		s.masks = s.trim(next, maxSparse)
	}
}

// trim drops repetitions, and, if more than limit masks are left then, all but
// the limit most promising.
func (s *sparse) trim(masks []numa.Mask, limit int) []numa.Mask {
	slices.Sort(masks)
	masks = slices.Compact(masks)
	if len(masks) <= limit {
		return masks
	}
	s.cut = true
	lowest := s.universe & -s.universe
	slices.SortFunc(masks, func(a, b numa.Mask) int {
		return cmp.Or(cmp.Compare(b&lowest, a&lowest), cmp.Compare(b.Len(), a.Len()), cmp.Compare(a, b))
	})
	return masks[:limit]
}
