package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/berthd/berth/api/convert/fits"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/fit"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// scheduler decides as the filter of the scheduler plugin NodeResourceTopologyMatch is described: it
// knows the object as JSON and the pod, and nothing else.
type scheduler struct {
	policy, scope string
	zones         []zoneLeft // by number of the NUMA node
}

type zoneLeft map[string]*resource.Quantity

func newScheduler(t *rapid.T, object []byte) *scheduler {
	var o struct {
		Attributes []struct{ Name, Value string }
		Zones      []struct {
			Name, Type string
			Resources  []struct{ Name, Available string }
		}
	}
	if err := json.Unmarshal(object, &o); err != nil {
		t.Fatal(err)
	}
	s := &scheduler{policy: "none", scope: "container"}
	for _, a := range o.Attributes {
		switch a.Name {
		case "topologyManagerPolicy":
			s.policy = a.Value
		case "topologyManagerScope":
			s.scope = a.Value
		}
	}
	for i, z := range o.Zones {
		if z.Type != "Node" || z.Name != fmt.Sprintf("node-%d", i) {
			t.Fatalf("zone %d is %s %s", i, z.Type, z.Name)
		}
		left := zoneLeft{}
		for _, r := range z.Resources {
			q, err := resource.ParseQuantity(r.Available)
			if err != nil {
				t.Fatal(err)
			}
			left[r.Name] = &q
		}
		s.zones = append(s.zones, left)
	}
	return s
}

// fits reports whether the pod is sent to the node.
func (s *scheduler) fits(pod *workload.Pod, qos workload.QoSClass) bool {
	if s.policy != "single-numa-node" {
		return true
	}
	if s.scope == "pod" {
		total := workload.Quantities{}
		for _, c := range pod.Containers {
			for name := range c.Requests {
				total[name] = workload.PodTotal(pod, func(c *workload.Container) int64 { return c.Requests[name] })
			}
		}
		return s.zone(total, qos) >= 0
	}
	for _, c := range pod.Containers {
		zone := s.zone(c.Requests, qos)
		if zone < 0 {
			return false
		}
		if c.Role == workload.Init {
			continue // it runs before the others
		}
		for name, amount := range c.Requests {
			if left := s.zones[zone][string(name)]; left != nil && counts(name, qos) {
				left.Sub(quantity(name, amount))
			}
		}
	}
	return true
}

// zone returns the first zone that has all of a request; -1 if there is none. A resource that no zone
// has may be anywhere, unless Kubernetes itself defines it.
func (s *scheduler) zone(requests workload.Quantities, qos workload.QoSClass) int {
	for zone := range s.zones {
		all := true
		for name, amount := range requests {
			if amount == 0 {
				continue
			}
			known := slices.ContainsFunc(s.zones, func(z zoneLeft) bool { return z[string(name)] != nil })
			left := s.zones[zone][string(name)]
			switch {
			case !known && name.IsExtended():
			case left == nil:
				all = false
			case counts(name, qos) && left.Cmp(quantity(name, amount)) < 0:
				all = false
			}
		}
		if all {
			return zone
		}
	}
	return -1
}

// counts reports whether the amount matters: of a pod that is not Guaranteed only that of devices.
func counts(name workload.Resource, qos workload.QoSClass) bool {
	return qos == workload.Guaranteed || name.IsExtended()
}

func quantity(name workload.Resource, amount int64) resource.Quantity {
	if name == workload.CPU {
		return *resource.NewMilliQuantity(amount, resource.DecimalSI)
	}
	return *resource.NewQuantity(amount, resource.DecimalSI)
}

const gi = 1 << 30

// node is a berthd without a machine.
type node struct {
	machine *machine.Topology
	set     *managerset.Set
	devices *device.Snapshot
	trial   *admission.Trial
}

func drawNode(t *rapid.T) *node {
	shape := rapid.SampledFrom([]string{"1s1n8c1t", "2n4c", "2s2n4c2t", "1s4n4c", "1s3n6c"}).Draw(t, "machine")
	var options []machinetest.Option
	for n := range machinetest.Build(shape).Nodes() {
		options = append(options, machinetest.Memory(n, uint64(rapid.IntRange(4, 12).Draw(t, "memory"))*gi),
			machinetest.HugePages(n, 2048, 512))
	}
	m := machinetest.Build(shape, options...)
	memoryConfig := memory.Config{Policy: memory.PolicyNone}
	if rapid.Bool().Draw(t, "memory is placed") {
		memoryConfig = memory.Config{
			Policy:         memory.PolicyStatic,
			Reserved:       []memory.Reservation{{Node: 0, Resource: "memory", Bytes: gi / 2}},
			SystemReserved: map[workload.Resource]uint64{"memory": gi / 2},
		}
	}
	set, err := managerset.New(managerset.Config{
		CPU: cpu.Config{Policy: rapid.SampledFrom([]string{cpu.PolicyStatic, cpu.PolicyStatic, cpu.PolicyNone}).Draw(t, "cpu policy"),
			ReservedCPUs: cpuset.Of(0)},
		Memory: memoryConfig,
		Topology: topology.Config{
			Policy: topology.SingleNUMANode, Scope: rapid.SampledFrom([]hint.Scope{hint.ContainerScope, hint.PodScope}).Draw(t, "scope"),
		},
	}, m)
	if err != nil {
		t.Fatal(err)
	}
	inventory := device.NewInventory(nil, time.Time{})
	var list []device.Device
	for i := range rapid.IntRange(0, 6).Draw(t, "devices") {
		near := numa.Of(rapid.IntRange(0, len(m.Nodes())-1).Draw(t, "near"))
		list = append(list, device.Device{ID: fmt.Sprint(i), Healthy: rapid.IntRange(0, 9).Draw(t, "health") > 0, Nodes: near,
			Topology: true})
	}
	inventory.Listed(inventory.Registered("example.com/gpu", device.Options{}, time.Time{}), list, time.Time{})
	inventory.Listed(inventory.Registered("example.com/anywhere", device.Options{}, time.Time{}),
		[]device.Device{{ID: "a", Healthy: true}, {ID: "b", Healthy: true}}, time.Time{})
	if set, err = set.Join([]hint.Entry{{Provider: device.New(inventory, noPreference{}), Mode: hint.Required}}, nil); err != nil {
		t.Fatal(err)
	}
	cfg := admission.Config{Tries: -1, Resources: admission.Resources{Unknown: admission.RejectUnknown}}
	return &node{m, set, inventory.Snapshot(), admission.NewTrial(cfg, ledger.Empty(set.Rules), set.Bus, set.Topology)}
}

// noPreference is behind the devices' plugins.
type noPreference struct{}

func (noPreference) Preferred(context.Context, string, []string, []string, int) ([]string, error) {
	return nil, nil
}
func (noPreference) Allocate(context.Context, string, []string) ([]byte, error) { return nil, nil }

// object is what berth-nri would publish now.
func (n *node) object(t *rapid.T) []byte {
	view := n.trial.View()
	for _, node := range fit.Nodes(view, n.set, n.devices) {
		for _, r := range node.Resources {
			if r.Available > r.Allocatable || r.Allocatable > r.Capacity || r.Held > r.Allocatable {
				t.Fatalf("node %d: %+v", node.ID, r)
			}
		}
	}
	text, err := json.Marshal(New("n", nil, fits.FreeResources(view, n.set, n.devices, fits.Counted{}), nil))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// left is what the machine as a whole has left: the scheduler counts that by itself.
func (n *node) left(name workload.Resource) (sum int64) {
	if name == "example.com/anywhere" {
		return int64(len(device.Available(n.trial.View(), n.devices)[string(name)]))
	}
	for _, node := range fit.Nodes(n.trial.View(), n.set, n.devices) {
		for _, r := range node.Resources {
			if r.Name == string(name) {
				sum += int64(r.Available)
			}
		}
	}
	if name == workload.CPU {
		sum *= 1000
	}
	return sum
}

// drawPod draws a pod without init containers that the machine as a whole has room for. Whole reports whether a Guaranteed pod has
// whole CPUs.
func drawPod(t *rapid.T, n *node, uid string) (pod *workload.Pod, qos workload.QoSClass, whole, fits bool) {
	pod = &workload.Pod{UID: uid, Namespace: "default", Name: uid}
	guaranteed := rapid.IntRange(0, 3).Draw(t, "class") > 0
	whole = true
	containers := rapid.IntRange(1, 3).Draw(t, "containers")
	// A part of a CPU may move what the scheduler expects of the next container to another zone.
	fractions := containers == 1 || n.set.Topology.Scope() == hint.PodScope
	for i := range containers {
		milli := int64(rapid.IntRange(1, 5).Draw(t, "cpus")) * 1000
		if fractions && rapid.IntRange(0, 5).Draw(t, "fraction") == 0 {
			milli += 500
			whole = false
		}
		requests := workload.Quantities{workload.CPU: milli, workload.Memory: int64(rapid.IntRange(1, 5).Draw(t, "memory")) * gi / 2}
		for _, more := range []struct {
			name workload.Resource
			unit int64
		}{{"example.com/gpu", 1}, {"example.com/anywhere", 1}, {"hugepages-2Mi", 256 << 20}} {
			if rapid.IntRange(0, 2).Draw(t, string(more.name)) == 0 {
				requests[more.name] = int64(rapid.IntRange(1, 2).Draw(t, "amount")) * more.unit
			}
		}
		c := workload.Container{Name: fmt.Sprintf("c%d", i), Requests: requests, Limits: maps.Clone(requests)}
		if !guaranteed {
			delete(c.Limits, workload.CPU)
		}
		pod.Containers = append(pod.Containers, c)
	}
	for _, c := range pod.Containers {
		for name := range c.Requests {
			if workload.PodTotal(pod, func(c *workload.Container) int64 { return c.Requests[name] }) > n.left(name) {
				return pod, "", false, false
			}
		}
	}
	return pod, pod.QoSClass(workload.Features{}), whole, true
}

// TestSchedulerAgrees: the scheduler, with the published object, and berthd decide the same about random
// pods that come and go. In two cases the scheduler is stricter, see permits; it never sends a pod that berthd
// refuses. Pods with init containers are left out: a container takes over what they had together with
// its NUMA nodes, which the scheduler does not know.
func TestSchedulerAgrees(t *testing.T) {
	agreed := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		n := drawNode(t)
		for i := range rapid.IntRange(1, 25).Draw(t, "pods") {
			pod, qos, whole, fits := drawPod(t, n, fmt.Sprintf("p%d", i))
			if fits {
				object := n.object(t)
				sent := newScheduler(t, object).fits(pod, qos)
				v, err := n.trial.Admit(t.Context(), pod)
				if err != nil {
					t.Fatal(err)
				}
				admitted := v.Outcome == admission.Admitted
				if sent != admitted && (sent || !n.permits(pod, qos, whole)) {
					t.Fatalf("the scheduler sends the pod: %t, berthd admits it: %t (%s: %s)\n%+v\n%s", sent, admitted, v.Reason,
						v.Message, pod.Containers, object)
				}
				agreed[admitted]++
			}
			if pods := slices.Collect(n.trial.View().Pods()); len(pods) > 0 && rapid.IntRange(0, 2).Draw(t, "a pod leaves") == 0 {
				draft := ledger.NewDraft(n.trial.View())
				draft.RemovePod(pods[rapid.IntRange(0, len(pods)-1).Draw(t, "which")].UID())
				n.trial.On(draft.View(), time.Time{})
			}
		}
	})
	if agreed[true] == 0 || agreed[false] == 0 {
		t.Errorf("admitted and refused pods: %v", agreed)
	}
	t.Logf("%d pods admitted, %d refused", agreed[true], agreed[false])
}

// permits reports whether berthd may admit a pod that the scheduler does not send. A Guaranteed container
// with a part of a CPU shares CPUs, and the scheduler looks for its CPUs in one zone. Where no set of
// NUMA nodes has the memory of a pod, the memory manager has no preference, as in the kubelet, and takes the
// memory of each container from where there is some.
func (n *node) permits(pod *workload.Pod, qos workload.QoSClass, whole bool) bool {
	apart := n.set.Memory.Describe().Policy == memory.PolicyStatic && n.set.Topology.Scope() == hint.PodScope && len(pod.Containers) > 1
	return qos == workload.Guaranteed && (!whole || apart)
}

// TestSchedulerDiffers has the pods that the scheduler cannot count, according to docs/kubernetes.md.
func TestSchedulerDiffers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set, err := managerset.New(managerset.Config{
			CPU: cpu.Config{Policy: cpu.PolicyStatic, ReservedCPUs: cpuset.Of(0, 4),
				Options: map[string]string{cpu.FullPCPUsOnly: "true"}},
			Topology: topology.Config{Policy: topology.SingleNUMANode, Scope: hint.ContainerScope},
		}, machinetest.Build("1s2n2c2t"))
		if err != nil {
			t.Fatal(err)
		}
		if set, err = set.Join(nil, nil); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			cpus   []int64 // of an init container, if there are two, and of the container
			reason string
		}{
			{[]int64{2}, ""}, {[]int64{3}, "SMTAlignmentError"}, {[]int64{2, 4}, "TopologyAffinityError"},
		} {
			trial := admission.NewTrial(admission.Config{Tries: -1}, ledger.Empty(set.Rules), set.Bus, set.Topology)
			n := &node{set.Rules.Machine, set, device.NewInventory(nil, time.Time{}).Snapshot(), trial}
			pod := &workload.Pod{UID: "p", Namespace: "default", Name: "p"}
			for i, cpus := range c.cpus {
				own := workload.Quantities{workload.CPU: cpus * 1000, workload.Memory: gi}
				one := workload.Container{Name: fmt.Sprint(i), Requests: own, Limits: own}
				if i < len(c.cpus)-1 {
					one.Role = workload.Init
				}
				pod.Containers = append(pod.Containers, one)
			}
			sent := newScheduler(t, n.object(t)).fits(pod, workload.Guaranteed)
			v, err := trial.Admit(t.Context(), pod)
			if err != nil || !sent || string(v.Reason) != c.reason {
				t.Errorf("CPUs %v: the scheduler sends the pod: %t; berthd: %s, %v, expected %s", c.cpus, sent, v.Reason, err, c.reason)
			}
		}
	})
}
