package ledgertest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine/machinetest"
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

// TwoNodes are the rules of a machine of 2 nodes of 4 cores with 2 threads: 16 CPUs, and 8 GiB and 100 pages of 2 MiB a node. CPUs 0
// and 8 are reserved.
func TwoNodes() ledger.Rules {
	return ledger.Rules{
		Machine: machinetest.Build("2s1n4c2t",
			machinetest.Memory(0, 8<<30), machinetest.Memory(1, 8<<30),
			machinetest.HugePages(0, 2048, 100), machinetest.HugePages(1, 2048, 100)),
		ReservedCPUs: cpuset.Of(0, 8),
	}
}

// Large returns the view of a ledger of 500 pods with three containers each, on a machine of 512
// CPUs and 8 nodes; each pod has one CPU, memory and two devices.
func Large(t T) *ledger.View {
	l := New(t, ledger.Rules{Machine: machinetest.Build("2s4n32c2t"), ReservedCPUs: cpuset.Of(0)})
	d := ledger.NewDraft(l.View())
	for i := range 500 {
		uid := fmt.Sprintf("%08x-6b1f-4e1c-9e0c-0123456789ab", i*7919)
		d.PutPod(With(Pod(uid, "init:i", "sidecar:s", "c"),
			Exclusive("i", fmt.Sprint(i+1)), Exclusive("c", fmt.Sprint(i+1)),
			Memory("c", "memory", fmt.Sprint(i%8), 1<<20), Memory("s", "memory", fmt.Sprint(i%8), 1<<20),
			Devices("c", "vendor.com/gpu", fmt.Sprint("gpu-", i), fmt.Sprint("gpu-", i, "b"))))
	}
	v, err := l.Commit(context.Background(), d)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return v
}
