package pods

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/managers/cpuset"
)

// holds reads the values of --holds into what each container holds, in the order in which
// the containers are named.
func holds(values []string) ([]*admissionv1.RunningAllocation, error) {
	var out []*admissionv1.RunningAllocation
	byName := map[string]*admissionv1.RunningAllocation{}
	seen := map[string]bool{}
	for _, v := range values {
		what, value, ok := strings.Cut(v, "=")
		container, name, colon := strings.Cut(what, ":")
		if !ok || !colon || container == "" || name == "" || value == "" {
			return nil, command.Usagef("admit", "--holds %q: expected CONTAINER:NAME=VALUE", v)
		}
		h := byName[container]
		if h == nil {
			h = &admissionv1.RunningAllocation{ContainerName: container}
			byName[container], out = h, append(out, h)
		}
		isMemory := name == "memory" || strings.HasPrefix(name, "hugepages-")
		if seen[what] && !isMemory {
			return nil, command.Usagef("admit", "--holds %q: %s of container %s is given twice", v, name, container)
		}
		seen[what] = true
		var err error
		switch {
		case name == "cpus":
			h.Cpus, err = heldCPUs(v, value)
		case isMemory:
			err = holdMemory(h, v, name, value)
		case strings.Contains(name, "/"):
			h.Devices = append(h.Devices, &admissionv1.RunningDevices{Resource: name, Ids: strings.Split(value, ",")})
		default:
			err = command.Usagef("admit",
				"--holds %q: %q: expected cpus, memory, hugepages-SIZE or the resource of a device, such as example.com/gpu", v, name)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// heldCPUs reads a list of CPUs.
func heldCPUs(flag, list string) (*typesv1.CPUSet, error) {
	set, err := cpuset.Parse(list)
	if err != nil || set.IsEmpty() {
		return nil, command.Usagef("admit", "--holds %q: %q is no list of CPUs such as 2-5,8", flag, list)
	}
	return &typesv1.CPUSet{List: set.String()}, nil
}

// holdMemory reads the NUMA nodes and the amount of memory or huge pages.
func holdMemory(h *admissionv1.RunningAllocation, flag, name, value string) error {
	list, amount, _ := strings.Cut(value, ":")
	// Lists of nodes have the format of lists of CPUs.
	nodes, err := cpuset.Parse(list)
	if err != nil || nodes.IsEmpty() {
		return command.Usagef("admit", "--holds %q: expected NODES:AMOUNT such as 0-1:4Gi, and %q is no list of NUMA nodes", flag, list)
	}
	q, err := resource.ParseQuantity(amount)
	bytes, whole := q.AsInt64()
	if err != nil || !whole || bytes <= 0 {
		return command.Usagef("admit", "--holds %q: expected NODES:AMOUNT such as 0-1:4Gi, and %q is no amount of bytes", flag, amount)
	}
	m := &admissionv1.RunningMemory{Resource: name, NumaNodes: &typesv1.NUMANodeSet{}, Bytes: uint64(bytes)}
	for id := range nodes.All() {
		m.NumaNodes.Ids = append(m.NumaNodes.Ids, uint32(id))
	}
	h.Memory = append(h.Memory, m)
	return nil
}
