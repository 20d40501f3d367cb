package workload

// Names finds the containers of a pod by name. For many names that is faster than Pod.Container. The containers must not change
// meanwhile.
type Names struct {
	containers []Container
	// slots has indices in containers, plus one, at the hash of the name or after that; nil for a pod with few containers.
	slots []int32
}

// fewContainers are found as fast without a hash.
const fewContainers = 8

// Names returns the names of the pod's containers.
func (p *Pod) Names() Names {
	n := Names{containers: p.Containers}
	if len(p.Containers) <= fewContainers {
		return n
	}
	size := 1
	for size < 2*len(p.Containers) {
		size *= 2
	}
	n.slots = make([]int32, size)
	for i := range p.Containers {
		if slot, known := n.slot(p.Containers[i].Name); !known {
			n.slots[slot] = int32(i) + 1
		}
	}
	return n
}

// At returns the index in Containers of the container called name, -1 if the pod has none.
func (n Names) At(name string) int {
	if n.slots == nil {
		for i := range n.containers {
			if n.containers[i].Name == name {
				return i
			}
		}
		return -1
	}
	slot, _ := n.slot(name)
	return int(n.slots[slot]) - 1
}

// slot returns the slot of a name, or a free one for it.
func (n Names) slot(name string) (slot int, known bool) {
	hash := uint32(2166136261) // FNV-1a
	for i := range len(name) {
		hash = (hash ^ uint32(name[i])) * 16777619
	}
	for slot = int(hash) & (len(n.slots) - 1); n.slots[slot] != 0; slot = (slot + 1) & (len(n.slots) - 1) {
		if n.containers[n.slots[slot]-1].Name == name {
			return slot, true
		}
	}
	return slot, false
}
