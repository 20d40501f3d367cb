package reconcile

import (
	"github.com/berthd/berth/managers/cgroup"
)

// Listed is a cgroup outside those of pods that the configuration names.
type Listed struct {
	Name cgroup.Name
	// Field is the configuration field.
	Field string
	// Plain means that it is accessed as a plain directory with every driver.
	Plain bool
}

// TreeOf returns the tree through which a cgroup is accessed.
func (l *Loop) TreeOf(name cgroup.Name) cgroup.Tree { return l.kernel.treeOf(name) }
