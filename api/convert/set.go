package convert

import (
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// CPUSet returns the message form of a set of CPUs.
func CPUSet(s cpuset.Set) *typesv1.CPUSet { return &typesv1.CPUSet{List: s.String()} }

// SomeCPUs returns the message form of a set of CPUs that is absent if it is empty.
func SomeCPUs(s cpuset.Set) *typesv1.CPUSet {
	if s.IsEmpty() {
		return nil
	}
	return CPUSet(s)
}

// ReadCPUSet reads a set of CPUs; none for a missing one. path names it in errors.
func ReadCPUSet(path string, m *typesv1.CPUSet, vs *errdefs.Violations) cpuset.Set {
	set, err := cpuset.Parse(m.GetList())
	if err != nil {
		vs.Addf(path+".list", "%v", err)
	}
	return set
}

// Mask returns the message form of a set of NUMA nodes.
func Mask(m numa.Mask) *typesv1.NUMANodeSet {
	out := &typesv1.NUMANodeSet{Ids: make([]uint32, 0, m.Len())}
	for id := range m.All() {
		out.Ids = append(out.Ids, uint32(id))
	}
	return out
}

// SomeNodes returns the message form of a set of NUMA nodes that is absent if it is empty.
func SomeNodes(m numa.Mask) *typesv1.NUMANodeSet {
	if m.IsEmpty() {
		return nil
	}
	return Mask(m)
}

// ReadMask reads a set of NUMA nodes; none for a missing one. path names it in errors.
func ReadMask(path string, m *typesv1.NUMANodeSet, vs *errdefs.Violations) (mask numa.Mask) {
	for _, id := range m.GetIds() {
		if id >= numa.MaxNodes {
			vs.Addf(path, "node %d: expected 0 to %d", id, numa.MaxNodes-1)
			continue
		}
		mask = mask.With(int(id))
	}
	return mask
}

// Nodes returns a set of NUMA nodes that berthd has sent. Ids that no node can have are
// left out.
func Nodes(m *typesv1.NUMANodeSet) numa.Mask {
	var vs errdefs.Violations
	return ReadMask("", m, &vs)
}

// Ref returns the message form of an owner; nil for none.
func Ref(o ledger.Owner) *typesv1.ContainerRef {
	if o == (ledger.Owner{}) {
		return nil
	}
	return &typesv1.ContainerRef{PodUid: o.Pod, ContainerName: o.Container}
}

// Refs returns the message form of owners.
func Refs(owners []ledger.Owner) []*typesv1.ContainerRef {
	var out []*typesv1.ContainerRef
	for _, o := range owners {
		out = append(out, Ref(o))
	}
	return out
}

// OwnerOf returns the owner that a message names.
func OwnerOf(m *typesv1.ContainerRef) ledger.Owner {
	return ledger.Owner{Pod: m.GetPodUid(), Container: m.GetContainerName()}
}
