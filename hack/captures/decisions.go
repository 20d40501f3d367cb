package main

import (
	"strings"

	"github.com/berthd/berth/managers/numa"
)

// container is what decisions.json has of a container; one without a name is the pod
// as a whole.
type container struct {
	Name  string
	Hints []map[string][]hint `json:"provider_hints"`
	Best  *hint               `json:"best_hint"`
	CPUs  string              `json:"exclusive_cpus"`
}

type hint struct {
	Nodes     []int
	Preferred bool
}

// decided is what was decided about a container; an empty name is the pod as a whole.
type decided struct {
	Container string `json:"container,omitempty"`
	// Hints holds the answers about resources: null is no preference, and an empty
	// list that no place will do.
	Hints map[string][]string `json:"hints,omitempty"`
	// Best is the merged hint; empty where none was made.
	Best string `json:"best,omitempty"`
	// CPUs are those that the container was given.
	CPUs string `json:"cpus,omitempty"`
}

// decided gives a decision in the recording's form.
func (d decision) decided() []decided {
	var all []decided
	for _, c := range d.Containers {
		out := decided{Container: c.Name, CPUs: c.CPUs}
		for _, answers := range c.Hints {
			for resource, hints := range answers {
				if out.Hints == nil {
					out.Hints = map[string][]string{}
				}
				out.Hints[resource] = nil
				if hints == nil {
					continue
				}
				list := make([]string, len(hints))
				for i, h := range hints {
					list[i] = h.String()
				}
				out.Hints[resource] = list
			}
		}
		if c.Best != nil {
			out.Best = c.Best.String()
		}
		all = append(all, out)
	}
	return all
}

// String writes a hint as its nodes, and a plus if it is preferred: "0-1", "3+"; "any"
// stands for no nodes.
func (h hint) String() string {
	var text strings.Builder
	if len(h.Nodes) == 0 {
		text.WriteString("any")
	} else {
		text.WriteString(numa.Of(h.Nodes...).String())
	}
	if h.Preferred {
		text.WriteString("+")
	}
	return text.String()
}
