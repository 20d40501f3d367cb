package hint

import (
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
)

// DefaultOrder is the order of the built-in providers, which is that of the
// reference on Linux. It decides nothing about a merge, but planning and
// preparing follow it.
var DefaultOrder = []string{"device", "cpu", "memory"}

// NewBus orders providers: first the names in order, then all others by index and name. A nil
// order is DefaultOrder, whose names need not exist. Errors are of class Invalid: a duplicate or
// unknown name in order, two providers of one name, an unknown mode, a deadline without a clock.
func NewBus(order []string, entries []Entry, withTimeout WithTimeout) (*Bus, error) {
	explicit := order != nil
	if !explicit {
		order = DefaultOrder
	}
	rank := make(map[string]int, len(order))
	for i, name := range order {
		if _, twice := rank[name]; twice {
			return nil, errdefs.Invalidf("the order of hint providers names %q twice", name)
		}
		rank[name] = i
	}
	seen := make(map[string]bool, len(entries))
	for _, e := range entries {
		name := e.Provider.Name()
		switch {
		case name == "":
			return nil, errdefs.Invalidf("a hint provider has no name")
		case seen[name]:
			return nil, errdefs.Invalidf("two hint providers are called %q", name)
		case !has(e.Provider):
			return nil, errdefs.Invalidf("%s neither provides nor validates anything", name)
		case e.Mode != Required && e.Mode != Advisory:
			return nil, errdefs.Invalidf("hint provider %s: mode %q is neither %s nor %s", name, e.Mode, Required, Advisory)
		case e.Deadline < 0 || e.Deadline > 0 && withTimeout == nil:
			return nil, errdefs.Invalidf("hint provider %s: deadline %s cannot be kept", name, e.Deadline)
		}
		seen[name] = true
	}
	for _, name := range order {
		if explicit && !seen[name] {
			return nil, errdefs.Invalidf("the order of hint providers names %q, which does not exist", name)
		}
	}
	place := func(e Entry) int {
		if i, named := rank[e.Provider.Name()]; named {
			return i
		}
		return len(order)
	}
	sorted := slices.Clone(entries)
	slices.SortFunc(sorted, func(a, b Entry) int {
		i, j := place(a), place(b)
		if i == j {
			return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Provider.Name(), b.Provider.Name()))
		}
		return i - j
	})
	return &Bus{entries: sorted, withTimeout: withTimeout}, nil
}

// has reports whether a member has a part in an admission.
func has(m Member) bool {
	_, provides := m.(Provider)
	_, validates := m.(Validator)
	return provides || validates
}

// Entries returns the providers in order, the caller's to keep.
func (b *Bus) Entries() []Entry { return slices.Clone(b.entries) }
