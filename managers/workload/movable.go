package workload

// Movable tells where to a running pod may be moved to make room for another one. A resize of the pod is not
// limited by it.
type Movable string

const (
	// NeverMovable is the default.
	NeverMovable Movable = "never"
	// MovableWithinNodes: to other CPUs of the NUMA nodes that the pod has.
	MovableWithinNodes Movable = "within-node"
	// MovableAnywhere: also to other NUMA nodes.
	MovableAnywhere Movable = "anywhere"
)

// ParseMovable reads a value of MovableAnnotation; false if it is none. Empty means never.
func ParseMovable(text string) (Movable, bool) {
	switch m := Movable(text); m {
	case NeverMovable, MovableWithinNodes, MovableAnywhere:
		return m, true
	}
	return NeverMovable, text == ""
}

func isMovable(text string) bool {
	_, ok := ParseMovable(text)
	return ok
}

// Movable returns where to the pod may be moved.
func (p *Pod) Movable() Movable {
	m, _ := ParseMovable(p.Annotations[MovableAnnotation])
	return m
}
