package simulate

import (
	"slices"
	"strings"

	"github.com/berthd/berth/clients/internal/command"
)

// resource is an amount of a resource on a node, and nodeOf a node with such amounts.
type (
	resource           interface{ GetResource() string }
	nodeOf[R resource] interface{ GetResources() []R }
)

// resourceNames returns the resources that any node has, in the order of their names.
func resourceNames[R resource, N nodeOf[R]](nodes []N) []string {
	var names []string
	for _, n := range nodes {
		for _, r := range n.GetResources() {
			names = append(names, r.GetResource())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// resourceHeaders returns the headers of a table with a column of pairs for each resource.
func resourceHeaders(resources []string, first ...string) []string {
	for _, r := range resources {
		first = append(first, strings.ToUpper(r)+" FREE/TOTAL")
	}
	return first
}

// pair is what is free of a resource, and all of it that pods can have.
func pair(resource string, free, total uint64) string {
	return command.AmountOf(resource, free) + "/" + command.AmountOf(resource, total)
}

// resourceCells returns a cell for each resource, which is none if the node does not have the resource.
func resourceCells[R resource, N nodeOf[R]](n N, resources []string, none string, text func(R) string) []string {
	var cells []string
	for _, name := range resources {
		cell := none
		if i := slices.IndexFunc(n.GetResources(), func(r R) bool { return r.GetResource() == name }); i >= 0 {
			cell = text(n.GetResources()[i])
		}
		cells = append(cells, cell)
	}
	return cells
}
