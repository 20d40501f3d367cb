package vector

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// Mask is a recorded list of node ids; Named is false for null. A node id that no mask can hold is
// an error.
type Mask struct {
	numa.Mask
	Named bool
}

// MaskOf returns the mask of nodes.
func MaskOf(ids ...int) Mask { return Mask{numa.Of(ids...), true} }

func (m *Mask) UnmarshalJSON(text []byte) error {
	var ids []int
	if err := json.Unmarshal(text, &ids); err != nil {
		return err
	}
	nodes, err := numa.FromIDs(ids)
	*m = Mask{nodes, ids != nil}
	return err
}

func (m Mask) MarshalJSON() ([]byte, error) {
	if !m.Named {
		return []byte("null"), nil
	}
	return json.Marshal(m.IDs())
}

// Affinity is a recorded hint. NUMA null is a hint without a mask; with
// preferred false it is also what the reference gives where nothing is stored.
type Affinity struct {
	NUMA      Mask `json:"numa"`
	Preferred bool `json:"preferred"`
}

// Hint returns the recorded hint in the managers' form.
func (a Affinity) Hint() hint.Hint {
	return hint.Hint{Nodes: a.NUMA.Mask, Any: !a.NUMA.Named, Preferred: a.Preferred}
}

// FromHint returns a hint in its recorded form.
func FromHint(h hint.Hint) Affinity {
	if h.Any {
		return Affinity{Preferred: h.Preferred}
	}
	return Affinity{NUMA: Mask{h.Nodes, true}, Preferred: h.Preferred}
}

// Hints is a provider's recorded answer: for each resource null (no preference),
// an empty list (impossible) or the options. A null or empty object is no
// preference at all.
type Hints map[string][]Affinity

// Answers returns the recorded answer in the managers' form, by resource name.
func (h Hints) Answers() []hint.ResourceAnswer {
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
				a.Hints = append(a.Hints, recorded.Hint())
			}
		}
		out = append(out, a)
	}
	return out
}

// Lists is a provider's answer in its canonical recorded form: for each resource
// null, empty, or the options without repetitions in the order of kinds and
// nodes. Two answers mean the same if and only if their forms are equal. A nil
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
	out := append([]Affinity{}, list...)
	kind := func(a Affinity) (n int) {
		if a.Preferred {
			n++
		}
		if a.NUMA.Named {
			n += 2
		}
		return n
	}
	slices.SortFunc(out, func(a, b Affinity) int {
		return cmp.Or(cmp.Compare(kind(a), kind(b)), cmp.Compare(a.NUMA.Mask, b.NUMA.Mask))
	})
	return slices.Compact(out)
}
