package managerset

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// Claims are the amounts for resource claims. They are part of the reserved amounts, so that neither
// berthd nor a kubelet gives them to pods.
type Claims struct {
	// OnePool gives claims what pods may have, in place of the other fields. A scheduler has to count both together.
	OnePool bool

	CPUs cpuset.Set
	// Memory are bytes of memory and huge pages, by NUMA node and resource.
	Memory map[int]map[workload.Resource]uint64
}

// claimSet has the managers of resource claims.
type claimSet struct {
	cpu      *cpu.Manager
	memory   *memory.Manager
	topology *topology.Manager
	bus      *hint.Bus
}

// divide builds the managers of resource claims. Errors are of class Invalid, and name the fields of
// berth's configuration.
func (p *Set) divide(c Claims) error {
	m := p.Rules.Machine
	if err := p.check(c); err != nil {
		return err
	}
	policy, err := topology.New(topology.Config{Policy: topology.SingleNUMANode, Scope: hint.ContainerScope}, m.NodeMask(), m.Distances())
	if err != nil {
		return err
	}
	if p.claims = (&claimSet{cpu: p.CPU.ForClaims(c.CPUs), memory: p.Memory.ForClaims(c.Memory), topology: policy}); c.OnePool {
		p.claims.cpu, p.claims.memory, c.CPUs = p.CPU.AlsoForClaims(), p.Memory, p.CPU.Allocatable()
	}
	p.Rules.ClaimCPUs, p.Rules.ClaimMemory, p.Rules.OnePool = c.CPUs, p.claims.memory.Baseline(), c.OnePool
	return nil
}

// chosenNode answers with the NUMA node that the scheduler has chosen for a device of a claim. With the
// policy single-numa-node, the device gets everything of this node or nothing.
type chosenNode struct{}

// Name implements hint.Member.
func (chosenNode) Name() string { return "scheduler" }

// Hints implements hint.Provider.
func (chosenNode) Hints(_ context.Context, _ *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	device, ok := req.Pod.ClaimDevice(req.Container)
	if !ok {
		return nil, errdefs.Internalf("%s is no device of a claim", req.Owner())
	}
	nodes := []hint.Hint{{Nodes: numa.Of(device.Node), Preferred: true}}
	return []hint.ResourceAnswer{{Resource: "numa-node", Answer: hint.Answer{Kind: hint.Options, Hints: nodes}}}, nil
}

// Plan implements hint.Provider.
func (chosenNode) Plan(context.Context, *ledger.View, hint.Request, hint.Hint) ([]ledger.Claim, error) {
	return nil, nil
}

// claimCPU has for each device of a claim the options of this device.
type claimCPU struct{ *cpu.Manager }

func (c claimCPU) of(req hint.Request) (*cpu.Manager, error) {
	device, _ := req.Pod.ClaimDevice(req.Container)
	return c.With(device.CPUOptions)
}

// Hints implements hint.Provider.
func (c claimCPU) Hints(ctx context.Context, view *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	m, err := c.of(req)
	if err != nil {
		return nil, err
	}
	return m.Hints(ctx, view, req)
}

// Plan implements hint.Provider.
func (c claimCPU) Plan(ctx context.Context, view *ledger.View, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	m, err := c.of(req)
	if err != nil {
		return nil, err
	}
	return m.Plan(ctx, view, req, affinity)
}

// Explain implements hint.Explainer.
func (c claimCPU) Explain(view *ledger.View, req hint.Request, nodes numa.Mask) []ledger.Shortage {
	m, err := c.of(req)
	if err != nil {
		return nil
	}
	return m.Explain(view, req, nodes)
}

// check compares the amounts for claims with the reserved amounts. One pool needs managers that allocate.
func (p *Set) check(c Claims) error {
	var bad errdefs.Violations
	if c.OnePool {
		if p.CPU.Allocatable().IsEmpty() {
			bad.Addf("dra.from", "claims get the CPUs that pods may have, and there are none: set cpu.policy to %s", cpu.PolicyStatic)
		}
		if len(p.Memory.Baseline()) == 0 {
			bad.Addf("dra.from", "claims get the memory of NUMA nodes that pods may have, and there is none: set memory.policy to %s",
				memory.PolicyStatic)
		}
		return bad.Err("the pool of pods and resource claims")
	}
	m := p.Rules.Machine
	reserved, all := p.CPU.Reserved(), m.CPUs().Union(m.Offline())
	switch {
	case c.CPUs.IsEmpty():
		bad.Addf("dra.cpus", "is required: the reserved CPUs that resource claims may have")
	case !c.CPUs.IsSubsetOf(all):
		bad.Addf("dra.cpus", "the machine has no CPUs %s; its CPUs are %s", c.CPUs.Minus(all), all)
	case !c.CPUs.IsSubsetOf(reserved):
		bad.Addf("dra.cpus", "CPUs %s are not reserved: expected a part of the reserved CPUs %q (reserved.cpus, or the kubelet's reservedSystemCPUs), "+
			"so that neither pods nor the scheduler count on them", c.CPUs.Minus(reserved), reserved)
	case reserved.IsSubsetOf(c.CPUs):
		bad.Addf("dra.cpus", "are all of the reserved CPUs %s: leave at least one to the system", reserved)
	}
	has := p.Memory.Reserved()
	for _, node := range slices.Sorted(maps.Keys(c.Memory)) {
		for _, resource := range slices.Sorted(maps.Keys(c.Memory[node])) {
			bytes := c.Memory[node][resource]
			switch left := has[node][string(resource)]; {
			case !m.NodeMask().Contains(node):
				bad.Addf("dra.memory", "NUMA node %d does not exist on this machine, which has nodes %s", node, m.NodeMask())
			case bytes > left:
				bad.Addf("dra.memory",
					"%s of %s on NUMA node %d are more than the %s that are reserved there: expected a part of it (memory.reserved, or the kubelet's reservedMemory)",
					resource.Text(int64(min(bytes, 1<<62))), resource, node, resource.Text(int64(min(left, 1<<62))))
			case resource == workload.Memory && bytes == left:
				bad.Addf("dra.memory", "is all of the memory that is reserved on NUMA node %d: leave a part of it to the system", node)
			}
		}
	}
	for node := range m.NodeMask().All() {
		cpus, amounts := c.CPUs.Intersect(m.CPUsInNodes(numa.Of(node))), c.Memory[node]
		switch {
		case !cpus.IsEmpty() && amounts[workload.Memory] == 0:
			bad.Addf("dra.memory",
				"NUMA node %d has none, and CPUs %s in dra.cpus: a claim gets both of one NUMA node, so nothing of it could be given",
				node, cpus)
		case cpus.IsEmpty() && len(amounts) > 0 && !c.CPUs.Overlaps(m.Offline()): // a CPU that is offline may be of this node
			bad.Addf("dra.cpus", "has no CPUs of NUMA node %d, which has CPUs %s, and dra.memory has memory of it: a claim gets both of one NUMA node, so nothing of it could be given",
				node, m.CPUsInNodes(numa.Of(node)))
		}
	}
	return bad.Err("the division between pods and resource claims")
}

// joinClaims builds the bus of the managers of resource claims.
func (p *Set) joinClaims(withTimeout hint.WithTimeout) (err error) {
	if p.claims == nil {
		return nil
	}
	next := *p.claims
	entries := []hint.Entry{
		{Provider: chosenNode{}, Mode: hint.Required}, {Provider: claimCPU{next.cpu}, Mode: hint.Required},
		{Provider: next.memory, Mode: hint.Required},
	}
	if p.pages != nil {
		entries = append(entries, hint.Entry{Provider: &memory.PageGuard{Manager: next.memory, Pages: *p.pages}, Mode: hint.Required})
	}
	if next.bus, err = hint.NewBus([]string{chosenNode{}.Name(), cpu.Name, memory.Name}, entries, withTimeout); err != nil {
		return err
	}
	p.claims = &next
	return nil
}

// For returns the managers that decide about a pod, or about a resource claim. Errors are of class
// Precondition for a claim without dra in the configuration, and of class Invalid for one with a NUMA node
// that the machine does not have, or with options that claims cannot have.
func (p *Set) For(pod *workload.Pod) (*hint.Bus, *topology.Manager, error) {
	claim := pod.ResourceClaim
	if claim == nil {
		return p.Bus, p.Topology, nil
	}
	if p.claims == nil {
		return nil, nil, errdefs.Preconditionf("berthd has nothing for resource claims: its configuration needs dra.cpus and dra.memory, or dra.from: allocatable")
	}
	var bad errdefs.Violations
	for i, d := range claim.Devices {
		if !p.Rules.Machine.NodeMask().Contains(d.Node) {
			bad.Addf(fmt.Sprintf("resource_claim.devices[%d].numa_node", i),
				"expected a NUMA node of the machine, which has nodes %s, got %d", p.Rules.Machine.NodeMask(), d.Node)
		}
		if _, err := p.claims.cpu.With(d.CPUOptions); err != nil {
			bad.Addf(fmt.Sprintf("resource_claim.devices[%d].cpu_options", i), "%v", err)
		}
	}
	if err := bad.Err("request"); err != nil {
		return nil, nil, err
	}
	return p.claims.bus, p.claims.topology, nil
}

// ClaimNode has the amounts of a NUMA node for resource claims, used by claims or not.
type ClaimNode struct {
	Node int
	// CPUs that are online, of which a claim gets a multiple of Step.
	CPUs cpuset.Set
	Step int
	// Memory is memory and huge pages, in bytes.
	Memory workload.Quantities
}

// ClaimAmounts returns what only resource claims may have of the whole machine; nothing in one pool with pods.
func (p *Set) ClaimAmounts() workload.Quantities {
	out := workload.Quantities{}
	if p.Rules.OnePool {
		return out
	}
	for _, n := range p.ClaimNodes(nil) {
		out[workload.CPU] += int64(n.CPUs.Len()) * 1000
		for r, bytes := range n.Memory {
			out[r] += bytes
		}
	}
	return out
}

// ClaimNodes returns the amounts for resource claims by NUMA node; nothing without dra. In one pool with pods, these are
// the amounts that pods leave on the view. The view may be nil otherwise.
func (p *Set) ClaimNodes(view *ledger.View) (out []ClaimNode) {
	if p.claims == nil {
		return nil
	}
	cpus, step := p.claims.cpu.Requestable()
	memory := p.Rules.ClaimMemory
	if p.Rules.OnePool {
		cpus, memory = p.leftByPods(view)
	}
	for node := range p.Rules.Machine.NodeMask().All() {
		n := ClaimNode{Node: node, CPUs: cpus.Intersect(p.Rules.Machine.CPUsInNodes(numa.Of(node))), Step: step,
			Memory: workload.Quantities{}}
		for _, m := range memory {
			if m.Node == node && m.Allocatable > 0 {
				n.Memory[workload.Resource(m.Resource)] = int64(m.Allocatable)
			}
		}
		if !n.CPUs.IsEmpty() {
			out = append(out, n)
		}
	}
	return out
}

// leftByPods returns what resource claims have, and what is free for further ones on single NUMA nodes.
func (p *Set) leftByPods(view *ledger.View) (cpuset.Set, []ledger.NodeMemory) {
	cpus, _ := p.claims.cpu.Requestable()
	cpus = cpus.Intersect(p.claims.cpu.Available(view).Union(view.ResourceClaimCPUs()))
	held, left := view.ResourceClaimMemory(), p.claims.memory.Free(view)
	for i := range left {
		left[i].Allocatable += held.Held(left[i].Resource)[left[i].Node]
	}
	return cpus, left
}
