package ledgertest

import (
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Pod returns the record of a Guaranteed pod. Containers are given by name in
// order of the walk; "init:" or "sidecar:" before a name makes its role.
func Pod(uid string, containers ...string) *ledger.Pod {
	p := &ledger.Pod{
		Pod:         workload.Pod{UID: uid, Namespace: "default", Name: "pod-" + uid},
		Digest:      "digest-" + uid,
		QoS:         workload.Guaranteed,
		AdmissionID: "admission-" + uid,
	}
	for _, c := range containers {
		role, name, found := strings.Cut(c, ":")
		container := workload.Container{Name: name, Role: workload.Init}
		switch {
		case !found:
			container = workload.Container{Name: c, Role: workload.App}
		case role == "sidecar":
			container.Role = workload.Sidecar
		}
		p.Pod.Containers = append(p.Pod.Containers, container)
	}
	return p
}

// With gives a record claims and returns it. The claims' pod becomes the
// record's.
func With(p *ledger.Pod, claims ...ledger.Claim) *ledger.Pod {
	for _, c := range claims {
		c.Owner.Pod = p.UID()
		p.Claims = append(p.Claims, c)
	}
	return p
}

// CPUs returns a claim of a container, or of its pod as a whole where container
// is empty, on CPUs given as a kernel list.
func CPUs(container, list string, use ledger.CPUUse) ledger.Claim {
	set, err := cpuset.Parse(list)
	if err != nil {
		panic(err)
	}
	return ledger.Claim{
		Owner: ledger.Owner{Container: container}, Provider: "cpu", Resource: string(workload.CPU),
		CPUs: &ledger.CPUs{Set: set, Use: use},
	}
}

// Exclusive returns a claim of a container on CPUs of its own.
func Exclusive(container, list string) ledger.Claim {
	return CPUs(container, list, ledger.CPUExclusive)
}

// Memory returns a claim on bytes of a memory resource ("memory",
// "hugepages-2Mi") on the nodes of a kernel list.
func Memory(container, resource, nodes string, bytes uint64) ledger.Claim {
	mask, err := numa.Parse(nodes)
	if err != nil {
		panic(err)
	}
	return ledger.Claim{
		Owner: ledger.Owner{Container: container}, Provider: "memory", Resource: resource,
		Memory: []ledger.Block{{Nodes: mask, Bytes: bytes}},
	}
}

// Devices returns a claim on devices by their ids, in any order.
func Devices(container, resource string, ids ...string) ledger.Claim {
	devices := make([]ledger.Device, 0, len(ids))
	for _, id := range slices.Sorted(slices.Values(ids)) {
		devices = append(devices, ledger.Device{ID: id})
	}
	return ledger.Claim{
		Owner: ledger.Owner{Container: container}, Provider: "device", Resource: resource,
		Devices: &ledger.Devices{Devices: devices},
	}
}
