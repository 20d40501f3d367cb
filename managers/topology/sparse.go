package topology

import (
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/numa"
)

// maxSparse is how many reachable masks are kept, and what is done for one list
// is at most maxSparse times its length.
const maxSparse = 1 << 12

// sparse computes which subsets of a large universe are reachable, as a list of
// masks. If there are too many it goes on with some of them and says so: those
// that contain the lowest node of the universe first, because every list has a
// mask with that node and so one of them lasts to the end; among them the
// largest, because intersections only shrink.
type sparse struct {
	universe numa.Mask
	masks    []numa.Mask
	cut      bool
	work     int
}

func (s *sparse) reach(lists []*list) {
	lowest := s.universe & -s.universe
	s.masks = []numa.Mask{s.universe}
	for _, l := range lists {
		var next []numa.Mask
		s.work += len(s.masks) * len(l.hints)
		for _, reached := range s.masks {
			for i := range l.hints {
				if both := reached & mask(l.hints[i]); both != 0 {
					next = append(next, both)
				}
			}
		}
		slices.Sort(next)
		next = slices.Compact(next)
		if len(next) > maxSparse {
			s.cut = true
			slices.SortFunc(next, func(a, b numa.Mask) int {
				return cmp.Or(cmp.Compare(b&lowest, a&lowest), cmp.Compare(b.Len(), a.Len()), cmp.Compare(a, b))
			})
			next = next[:maxSparse]
		}
		s.masks = next
	}
}
