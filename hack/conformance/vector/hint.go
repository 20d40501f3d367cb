package vector

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// Affinity is a recorded hint. NUMA null is a hint without a mask; with
// preferred false it is also what the reference gives where nothing is stored.
type Affinity struct {
	NUMA      []int `json:"numa"`
	Preferred bool  `json:"preferred"`
}

// Hint returns the recorded hint in the managers' form. A node id that no mask
// can hold is an error.
func (a Affinity) Hint() (hint.Hint, error) {
	if a.NUMA == nil {
		return hint.Hint{Any: true, Preferred: a.Preferred}, nil
	}
	nodes, err := numa.FromIDs(a.NUMA)
	return hint.Hint{Nodes: nodes, Preferred: a.Preferred}, err
}

// FromHint returns a hint in its recorded form.
func FromHint(h hint.Hint) Affinity {
	if h.Any {
		return Affinity{Preferred: h.Preferred}
	}
	return Affinity{NUMA: h.Nodes.IDs(), Preferred: h.Preferred}
}

// Hints is a provider's recorded answer: for each resource null (no preference),
// an empty list (impossible) or the options. A null or empty object is no
// preference at all.
type Hints map[string][]Affinity

// Answers returns the recorded answer in the managers' form, by resource name.
func (h Hints) Answers() ([]hint.ResourceAnswer, error) {
	var out []hint.ResourceAnswer
	for _, name := range slices.Sorted(maps.Keys(h)) {
		a := hint.ResourceAnswer{Resource: name}
		switch list := h[name]; {
		case list == nil:
			a.Kind = hint.NoPreference
		case len(list) == 0:
			a.Kind = hint.Impossible
		default:
			a.Kind = hint.Options
			for _, recorded := range list {
				option, err := recorded.Hint()
				if err != nil {
					return nil, fmt.Errorf("hints of %s: %w", name, err)
				}
				a.Hints = append(a.Hints, option)
			}
		}
		out = append(out, a)
	}
	return out, nil
}

// Lists is a provider's answer in its canonical recorded form: for each resource
// null, empty, or the options without repetitions in the order of the nodes'
// ids. Two answers mean the same if and only if their forms are equal. A nil
// Lists is no preference at all.
func Lists(answers []hint.ResourceAnswer) (Hints, error) {
	var out Hints
	for _, a := range answers {
		if out == nil {
			out = Hints{}
		}
		options := a.Hints
		switch a.Kind {
		case hint.NoPreference:
			out[a.Resource] = nil
			continue
		case hint.ByRule:
			expanded, err := a.Expand(1 << 20)
			if err != nil {
				return nil, fmt.Errorf("hints of %s: %w", a.Resource, err)
			}
			options = expanded
		case hint.Impossible, hint.Options:
		default:
			return nil, fmt.Errorf("hints of %s: unknown kind of answer %q", a.Resource, a.Kind)
		}
		list := make([]Affinity, len(options))
		for i, o := range options {
			list[i] = FromHint(o)
		}
		out[a.Resource] = canonical(list)
	}
	return out, nil
}

// Canonical returns a recorded answer in the form of Lists.
func (h Hints) Canonical() Hints {
	if len(h) == 0 {
		return nil
	}
	out := make(Hints, len(h))
	for name, list := range h {
		out[name] = canonical(list)
	}
	return out
}

// canonical sorts a list and drops repetitions; nil stays nil.
func canonical(list []Affinity) []Affinity {
	if list == nil {
		return nil
	}
	key := func(a Affinity) string { return fmt.Sprint(a.NUMA == nil, a.NUMA, a.Preferred) }
	out := make([]Affinity, len(list))
	for i, a := range list {
		out[i] = Affinity{NUMA: slices.Clone(a.NUMA), Preferred: a.Preferred}
		slices.Sort(out[i].NUMA)
	}
	slices.SortFunc(out, func(a, b Affinity) int { return strings.Compare(key(a), key(b)) })
	return slices.CompactFunc(out, func(a, b Affinity) bool { return key(a) == key(b) })
}
