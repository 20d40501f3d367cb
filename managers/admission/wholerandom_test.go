package admission_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// drawn is a random node and a pod with init containers for it.
type drawn struct {
	shape   string
	policy  topology.Policy
	scope   hint.Scope
	options map[string]string
	// prefers is whether the plugin of GPUs has a preference.
	prefers bool
	before  []workload.Pod
	// leaves are how many of the first pods before have ended.
	leaves int
	pod    workload.Pod
}

func drawContainers(r *rapid.T, name string, n int, sizes []int64, gpus bool) [][3]int64 {
	out := make([][3]int64, n)
	for i := range out {
		out[i] = [3]int64{rapid.SampledFrom(sizes).Draw(r, name+" cpus"), rapid.SampledFrom([]int64{1, 2, 3, 5, 8}).Draw(r, name+" gib"), 0}
		if gpus {
			out[i][2] = rapid.SampledFrom([]int64{0, 0, 0, 1, 2}).Draw(r, name+" gpus")
		}
	}
	return out
}

func podWith(uid string, containers [][3]int64) workload.Pod {
	amounts := make([][2]int64, len(containers))
	for i, c := range containers {
		amounts[i] = [2]int64{c[0], c[1]}
	}
	p := podOf(uid, amounts...)
	for i, c := range containers {
		if c[2] > 0 {
			p.Containers[i].Requests[gpu] = c[2] // also the limits
		}
	}
	return p
}

// shares makes a container run on the shared CPUs.
func shares(c *workload.Container) { c.Requests[workload.CPU] = 500 } // also the limit

func draw(r *rapid.T) drawn {
	d := drawn{
		shape: rapid.SampledFrom([]string{"1s2n4c1t", "1s2n3c2t", "2s4n3c1t", "1s1n8c2t"}).Draw(r, "shape"),
		policy: rapid.SampledFrom([]topology.Policy{topology.None, topology.BestEffort, topology.Restricted,
			topology.SingleNUMANode}).Draw(r, "policy"),
		scope: rapid.SampledFrom([]hint.Scope{hint.ContainerScope, hint.ContainerScope, hint.PodScope}).Draw(r, "scope"),
		options: rapid.SampledFrom([]map[string]string{nil, nil, {"full-pcpus-only": "true"}, {"distribute-cpus-across-numa": "true"},
			{"align-by-socket": "true"}, {"distribute-cpus-across-cores": "true"}}).Draw(r, "options"),
		prefers: rapid.Bool().Draw(r, "prefers"),
	}
	if d.scope == hint.PodScope || d.policy == topology.SingleNUMANode {
		delete(d.options, "align-by-socket")
	}
	sizes := []int64{1, 2, 3, 4, 6}
	if d.full() {
		sizes = []int64{2, 4, 6}
	}
	for i := range rapid.IntRange(0, 4).Draw(r, "before") {
		d.before = append(d.before, podWith(fmt.Sprintf("b%d", i), drawContainers(r, "before", 1, sizes, true)))
		if rapid.IntRange(0, 3).Draw(r, "before shares") == 0 {
			shares(&d.before[i].Containers[0])
		}
	}
	d.leaves = rapid.IntRange(0, len(d.before)).Draw(r, "leaves")
	early, apps := rapid.IntRange(1, 4).Draw(r, "early"), rapid.IntRange(1, 3).Draw(r, "apps")
	d.pod = podWith("p", drawContainers(r, "pod", early+apps, sizes, true))
	for i := range early {
		d.pod.Containers[i].Role = rapid.SampledFrom([]workload.Role{workload.Init, workload.Init, workload.Sidecar}).Draw(r, "role")
	}
	for i := range d.pod.Containers {
		if rapid.IntRange(0, 7).Draw(r, "shares") == 0 {
			shares(&d.pod.Containers[i])
		}
	}
	return d
}

func (d drawn) full() bool { return d.options["full-pcpus-only"] != "" }

// podLevel gives the pod resources as a whole: what it has at its busiest moment, and some more.
func (d *drawn) podLevel(r *rapid.T) {
	q := workload.Quantities{}
	for _, name := range []workload.Resource{workload.CPU, workload.Memory} {
		q[name] = workload.PodTotal(&d.pod, func(c *workload.Container) int64 { return c.Requests[name] })
	}
	q[workload.CPU] = (q[workload.CPU]+999)/1000*1000 + rapid.SampledFrom([]int64{0, 0, 1000}).Draw(r, "more")
	d.pod.Resources = &workload.Resources{Requests: q, Limits: q}
}

// admit admits the pod after the others, and returns its record; nil if it is rejected.
func (d drawn) admit(t ledgertest.T, planning topology.Planning, pod workload.Pod) (*twoNodes, *ledger.Pod) {
	h := planningOn(t, d.shape, d.policy, d.scope, planning, d.options)
	if d.prefers {
		var gpus []device.Device
		for i := range 4 {
			gpus = append(gpus, device.Device{ID: fmt.Sprint("g", i), Healthy: true, Nodes: numa.Of(i / 2), Topology: true})
		}
		h.inventory.Listed(h.inventory.Registered(gpu, device.Options{Preferred: true}, time.Unix(0, 0)), gpus, time.Unix(0, 0))
	}
	for _, p := range d.before {
		_, err := h.Admit(context.Background(), admission.Request{Pod: p})
		must(t, err)
	}
	for _, p := range d.before[:d.leaves] {
		if _, admitted := h.ledger.View().Pod(p.UID); admitted {
			_, _, err := h.Remove(context.Background(), p.UID, admission.Scope{})
			must(t, err)
		}
	}
	v, err := h.Admit(context.Background(), admission.Request{Pod: pod})
	must(t, err)
	if findings := check.View(h.ledger.View()); len(findings) > 0 {
		t.Fatalf("%s: %v", planning, findings)
	}
	if v.Outcome != admission.Admitted {
		return h, nil
	}
	return h, v.Pod
}

// nodesBy are the NUMA nodes of all that a container has.
func nodesBy(h *twoNodes, p *ledger.Pod, container string) (nodes numa.Mask) {
	nodes = p.MemoryNodes(container)
	for _, c := range p.Claims {
		if c.Owner.Container != container {
			continue
		}
		if c.CPUs != nil {
			nodes = nodes.Union(h.ledger.View().Machine().NodesOf(c.CPUs.Set))
		}
		if c.Devices != nil {
			for _, d := range c.Devices.Devices {
				nodes = nodes.Union(d.Nodes)
			}
		}
	}
	return nodes
}

func devicesOf(p *ledger.Pod) int {
	ids := map[string]bool{}
	for _, c := range p.Claims {
		if c.Devices != nil {
			for _, id := range c.Devices.IDs() {
				ids[id] = true
			}
		}
	}
	return len(ids)
}

// TestWholeIsNeverWorse: on one state, planning by pod admits what planning by container admits, gives no app container more NUMA
// nodes, and holds nothing more. The ledger's check, after each admission, lets an init container share only with what runs after it.
func TestWholeIsNeverWorse(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		d := draw(r)
		if rapid.IntRange(0, 4).Draw(r, "pod-level") == 0 {
			d.podLevel(r)
		}
		one, ordered := d.admit(r, topology.ByContainer, d.pod)
		two, whole := d.admit(r, topology.ByPod, d.pod)
		if ordered == nil {
			return
		}
		if whole == nil {
			r.Fatal("the pod is rejected, and container by container it is admitted")
		}
		for _, c := range d.pod.Containers {
			if had, has := nodesBy(one, ordered, c.Name), nodesBy(two, whole, c.Name); c.Role == workload.App && has.Len() > had.Len() {
				r.Errorf("container %s has nodes %s instead of %s", c.Name, has, had)
			}
		}
		if has, had := whole.HeldCPUs().Len(), ordered.HeldCPUs().Len(); has > had {
			r.Errorf("the pod holds %d CPUs instead of %d", has, had)
		}
		has, had := whole.ClaimedMemory("memory"), ordered.ClaimedMemory("memory")
		if has.Total() > had.Total() || devicesOf(whole) > devicesOf(ordered) {
			r.Errorf("the pod holds %d bytes and %d devices instead of %d and %d", has.Total(), devicesOf(whole), had.Total(),
				devicesOf(ordered))
		}
	})
}

// TestSmallInitIsFree: a pod whose init containers each fit below one container that runs after them for the pod's life is
// admitted where the pod without them is.
func TestSmallInitIsFree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		d := draw(r)
		isInit := func(c workload.Container) bool { return c.Role == workload.Init }
		bare := d.pod
		bare.Containers = slices.DeleteFunc(slices.Clone(d.pod.Containers), isInit)
		for i, c := range d.pod.Containers {
			if c.Role != workload.Init {
				continue
			}
			later := slices.DeleteFunc(slices.Clone(d.pod.Containers[i+1:]), isInit)
			below := later[rapid.IntRange(0, len(later)-1).Draw(r, "below")]
			q := workload.Quantities{}
			for name, n := range below.Requests {
				q[name] = min(n, c.Requests[name])
			}
			if c.Requests[workload.CPU] < 1000 { // exclusive CPUs are below exclusive ones
				q[workload.CPU] = below.Requests[workload.CPU]
			}
			q[workload.Memory] = min(below.Requests[workload.Memory], c.Requests[workload.Memory])
			maps.DeleteFunc(q, func(_ workload.Resource, n int64) bool { return n == 0 })
			d.pod.Containers[i].Requests, d.pod.Containers[i].Limits = q, q
		}
		_, without := d.admit(r, topology.ByPod, bare)
		_, with := d.admit(r, topology.ByPod, d.pod)
		if without != nil && with == nil {
			r.Fatal("the pod is rejected, and without its init containers it is admitted")
		}
	})
}

// TestNothingIsSharedAtOnce: containers of a pod that run at the same time have no CPU and no device in common, and together no more
// memory than the pod holds. When all of them have started, and start again, the pod holds what it held.
func TestNothingIsSharedAtOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		d := draw(r)
		h, record := d.admit(r, topology.ByPod, d.pod)
		if record == nil {
			return
		}
		for i, c := range d.pod.Containers {
			if c.Role == workload.Init {
				besides(r, h, record, func(at int) bool { return at == i || at < i && d.pod.Containers[at].Role == workload.Sidecar })
			}
		}
		besides(r, h, record, func(at int) bool { return d.pod.Containers[at].Role != workload.Init })
		for again := range 2 {
			for _, c := range d.pod.Containers {
				_, err := h.PreStart(context.Background(), ledger.Owner{Pod: "p", Container: c.Name}, fmt.Sprint(c.Name, again), 0)
				must(r, err)
			}
		}
		if after, _ := h.ledger.View().Pod("p"); h.wholeInOrder(record) == "" && !ledger.SameClaims(after.Claims, record.Claims) {
			r.Errorf("the pod has %v, and had %v", after.Claims, record.Claims)
		}
	})
}

// wholeInOrder returns why a pod was planned in its order; empty if it was not.
func (h *twoNodes) wholeInOrder(p *ledger.Pod) string {
	for _, s := range p.Trace.Steps {
		if strings.Contains(s.Text, "planned container by container") {
			return s.Text
		}
	}
	return ""
}

// besides checks containers that run at the same time.
func besides(r *rapid.T, h *twoNodes, p *ledger.Pod, runs func(at int) bool) {
	var all cpuset.Set
	devices, memory := map[string]string{}, map[numa.Mask]uint64{}
	names := p.Pod.Names()
	for _, c := range p.Claims {
		if at := names.At(c.Owner.Container); at < 0 || !runs(at) {
			continue
		}
		if c.CPUs != nil {
			if all.Overlaps(c.CPUs.Set) {
				r.Errorf("CPUs %s of %s are another container's: %s", all.Intersect(c.CPUs.Set), c.Owner, h.has("p"))
			}
			all = all.Union(c.CPUs.Set)
		}
		if c.Devices != nil {
			for _, id := range c.Devices.IDs() {
				if o := devices[id]; o != "" {
					r.Errorf("device %s of %s is that of %s", id, c.Owner.Container, o)
				}
				devices[id] = c.Owner.Container
			}
		}
		for _, b := range c.Memory {
			memory[b.Nodes] += b.Bytes
		}
	}
	for nodes, bytes := range memory {
		var holds uint64
		held := p.ClaimedMemory("memory")
		for id := range nodes.All() {
			holds += held[id]
		}
		if bytes > holds {
			r.Errorf("%d bytes on nodes %s, of which the pod holds %d", bytes, nodes, holds)
		}
	}
}
