package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// A running pod that is not in the ledger is never planned, because its processes already
// use their resources. It gets the claims in its claim record, or the kernel's values and
// the running allocations. No plugin is called for that. Plugins' answers, which are not in a
// claim record, are requested when a client needs them (Engine.Complete).

// UnknownDevices is the condition of a pod that requests devices while the devices of a
// running pod are unknown; that pod has it too.
const UnknownDevices = "UnknownDevices"

// RunningAllocation is the current allocation of a running container, as stated by the caller.
type RunningAllocation struct {
	Container string
	CPUs      cpuset.Set
	Memory    []RunningMemory
	// Devices are ids by resource.
	Devices map[string][]string
}

// RunningMemory is memory to which a running container is restricted.
type RunningMemory struct {
	Resource string // empty means memory
	Nodes    numa.Mask
	Bytes    uint64
}

// takenOver is a running pod that is being added to the ledger.
type takenOver struct {
	known   ledger.UnknownLivePod
	noted   bool
	running []RunningAllocation
}

// living returns whether the candidate is a running pod to take over.
func (c *candidate) living(view *ledger.View) (takenOver, bool) {
	u, noted := view.UnknownLivePod(c.uid())
	return takenOver{u, noted, c.allocations}, noted || len(c.allocations) > 0
}

// takeOver returns a draft in which the pod has its current allocations. The draft is also
// returned with an error.
func (c *candidate) takeOver(ctx context.Context, view *ledger.View, l takenOver) (*ledger.Draft, error) {
	c.begin(view, c.Now())
	c.bindings = nil
	draft := ledger.NewDraft(view)
	record := *c.record
	whole := hint.Request{Pod: &record.Pod, Container: -1, Running: true}
	claims, err := c.lives(&record, l)
	if err != nil {
		return draft, noVerdict(err)
	}
	if err := onMachine(view, l.running); err != nil {
		return draft, noVerdict(err)
	}
	if err := ofDevices(view, &record, claims); err != nil {
		return draft, noVerdict(err)
	}
	record.Claims = claims
	draft.PutPod(&record)
	c.record = &record
	if err := conflict(draft.View(), &record); err != nil {
		return draft, noVerdict(err)
	}
	source := "what the caller says"
	if len(l.running) == 0 {
		source = string(l.known.Source)
	}
	c.trace.Add(ledger.Step{Kind: ledger.StepNoted, Text: "the pod runs here: its resources are taken over (from: " + source + ")"})
	for i := range claims {
		c.trace.Add(ledger.Step{
			Kind: ledger.StepPlanned, Container: claims[i].Owner.Container, Provider: claims[i].Provider,
			Resource: claims[i].Resource, Claim: &claims[i],
		})
	}
	for _, b := range l.known.Bindings {
		_, taken := view.Binding(b.ID)
		if !taken && record.Pod.Container(b.Container) != nil {
			c.bindings = append(c.bindings, ledger.Binding{
				ID: b.ID, Owner: ledger.Owner{Pod: record.UID(), Container: b.Container}, CgroupPath: b.CgroupPath, Own: b.Own, Sequence: 1,
			})
		}
	}
	if err := c.Bus.Validate(ctx, draft.View(), whole, c.trace); err != nil {
		if hint.Interrupts(err) {
			return draft, err
		}
		return draft, noVerdict(err)
	}
	return draft, nil
}

// ofDevices compares what a running resource claim has with its devices: the amount of CPUs and memory that was requested, of the
// NUMA node of the device. The place of a CPU that is offline is not known.
func ofDevices(view *ledger.View, p *ledger.Pod, claims []ledger.Claim) error {
	if p.Pod.ResourceClaim == nil {
		return nil
	}
	var vs errdefs.Violations
	for i := range p.Pod.Containers {
		ctr := &p.Pod.Containers[i]
		device, ok := p.Pod.ClaimDevice(i)
		if !ok {
			continue
		}
		elsewhere := view.Machine().CPUs().Minus(view.Machine().CPUsInNode(device.Node))
		for j := range claims {
			c := &claims[j]
			switch {
			case c.Owner.Container != ctr.Name:
			case c.CPUs != nil && c.CPUs.Set.Len() != ctr.Requests.WholeCPUs():
				vs.Addf("running_allocations", "device %s has CPUs %s, expected %d CPUs", ctr.Name, c.CPUs.Set, ctr.Requests.WholeCPUs())
			case c.CPUs != nil && c.CPUs.Set.Overlaps(elsewhere):
				vs.Addf("running_allocations", "device %s has CPUs %s, which are not on its NUMA node %d", ctr.Name,
					c.CPUs.Set.Intersect(elsewhere), device.Node)
			}
			for _, b := range c.Memory {
				if c.Owner.Container == ctr.Name && (b.Nodes != numa.Of(device.Node) ||
					int64(b.Bytes) > ctr.Requests[workload.Resource(c.Resource)]) {
					vs.Addf("running_allocations", "device %s has %d bytes of %s on NUMA nodes %s, expected at most %d on node %d",
						ctr.Name, b.Bytes, c.Resource, b.Nodes, ctr.Requests[workload.Resource(c.Resource)], device.Node)
				}
			}
		}
	}
	return vs.Err("request")
}

// callersError is an error in the caller's data. It must not become a verdict, because the
// pod runs, and a controller fails a rejected pod permanently.
type callersError struct{ error }

// Unwrap returns the error.
func (e callersError) Unwrap() error { return e.error }

// noVerdict prevents an error from becoming a rejection. A deferral because of unknown data
// stays one.
func noVerdict(err error) error {
	if w := new(waiting); errors.As(err, &w) {
		return err
	}
	return callersError{err}
}

// lives returns the claims of a running pod.
func (c *candidate) lives(p *ledger.Pod, l takenOver) ([]ledger.Claim, error) {
	if l.known.Source == ledger.FromClaimRecord && !l.known.DevicesUnknown && len(l.running) == 0 && l.known.Digest != "" {
		if l.known.Digest != p.Digest && !amountsFit(p, l.known.Claims) {
			return nil, errdefs.Preconditionf("pod %s runs here with another specification than the given one, which requests other "+
				"amounts than it holds: admit it with the specification that it runs with, or remove it first",
				p.UID()).Coded(errdefs.PodSpecDiffers, "pod_uid", p.UID())
		}
		return slices.Clone(l.known.Claims), nil
	}
	claims, err := given(p, l.running)
	if err != nil {
		return nil, err
	}
	if l.noted {
		claims = add(claims, observed(p, l.known.Claims))
	}
	if l.noted && l.known.Source == "" && len(l.running) == 0 && wantsCPUs(p) {
		return nil, unknownAllocation(p, "its CPUs and memory are", "")
	}
	if missing := c.Resources.unknownDevices(p, claims); missing != "" && (!l.noted || l.known.DevicesUnknown || l.known.Digest == "") &&
		len(l.running) == 0 {
		return nil, unknownAllocation(p, "which devices of "+missing+" it runs with is", missing)
	} else if missing != "" && len(l.running) > 0 {
		var vs errdefs.Violations
		vs.Addf("running_allocations", "pod %s requests %s, but no running allocation names a device of it", p.UID(), missing)
		return nil, vs.Err("request")
	}
	ledger.SortClaims(claims)
	return claims, nil
}

// amountsFit returns whether recorded claims match a changed specification: a pod whose
// resources were changed while berth was not running keeps its claims. A container without
// CPUs or memory claims stays without them.
func amountsFit(p *ledger.Pod, claims []ledger.Claim) bool {
	for i := range claims {
		c := &claims[i]
		if c.Owner.Container == "" {
			return false // pod-level amounts are divided among the containers
		}
		ctr := p.Pod.Container(c.Owner.Container)
		if ctr == nil {
			return false
		}
		resource := workload.Resource(c.Resource)
		requested, held := ctr.Requests[resource], int64(0)
		switch {
		case c.CPUs != nil:
			if !ctr.Guaranteed() {
				return false
			}
			requested, held = int64(ctr.Requests.WholeCPUs()), int64(c.CPUs.Set.Len())
		case c.Devices != nil:
			requested, held = ctr.Limits[resource], int64(len(c.Devices.Devices))
		case len(c.Memory) > 0:
			for _, b := range c.Memory {
				held += int64(b.Bytes)
			}
		}
		if requested != held {
			return false
		}
	}
	for _, ctr := range p.Pod.Walk() {
		for name, n := range ctr.Limits.Sorted() {
			if name.IsExtended() && n > 0 && !slices.ContainsFunc(claims, func(c ledger.Claim) bool {
				return c.Owner.Container == ctr.Name && c.Resource == string(name)
			}) {
				return false
			}
		}
	}
	return true
}

// wantsCPUs returns whether a container of the pod may have exclusive CPUs.
func wantsCPUs(p *ledger.Pod) bool {
	return slices.ContainsFunc(p.Pod.Containers, func(c workload.Container) bool { return c.Guaranteed() && c.Requests.WholeCPUs() > 0 })
}

// unknownAllocation is the refusal of a running pod whose allocation is unknown.
func unknownAllocation(p *ledger.Pod, what, resource string) error {
	e := &errdefs.Error{
		Class: errdefs.Refused, Reason: UnknownDevices, Resource: resource,
		Message: fmt.Sprintf("pod %s lives here, and %s not known: send Admit with running_allocations that name what its containers run with, "+
			"or import the kubelet's state (berthctl ledger import), or remove the pod", p.UID(), what),
	}
	return &waiting{e, hint.Wait{Condition: UnknownDevices, Resource: resource, Undecided: true}}
}

// unknownDevices returns a requested resource that is known to be a device, and of which
// the pod has no claim.
func (r *Resources) unknownDevices(p *ledger.Pod, claims []ledger.Claim) string {
	for _, c := range p.Pod.Walk() {
		for name, n := range c.Limits.Sorted() {
			if !name.IsExtended() || n == 0 || r.elsewhere(name) {
				continue
			}
			if !slices.ContainsFunc(claims, func(have ledger.Claim) bool {
				return have.Owner.Container == c.Name && have.Resource == string(name)
			}) {
				return string(name)
			}
		}
	}
	return ""
}

// given converts the running allocations to claims.
func given(p *ledger.Pod, running []RunningAllocation) (claims []ledger.Claim, err error) {
	var vs errdefs.Violations
	seen := map[string]bool{}
	for i, h := range running {
		path := fmt.Sprintf("running_allocations[%d]", i)
		if p.Pod.Container(h.Container) == nil || seen[h.Container] {
			vs.Addf(path+".container", "%.80q is no container of pod %s, or is given twice", h.Container, p.UID())
			continue
		}
		seen[h.Container] = true
		owner := ledger.Owner{Pod: p.UID(), Container: h.Container}
		if !h.CPUs.IsEmpty() {
			claims = append(claims, ownCPUs(owner, h.CPUs))
		}
		for j, m := range h.Memory {
			resource := workload.Resource(m.Resource)
			if resource == "" {
				resource = workload.Memory
			}
			_, huge := workload.HugePageSize(resource)
			if m.Nodes.IsEmpty() || m.Bytes == 0 || resource != workload.Memory && huge != nil {
				vs.Addf(fmt.Sprintf("%s.memory[%d]", path, j),
					"resource %.80q, nodes %q, %d bytes: expected memory or huge pages, nodes and bytes", resource, m.Nodes, m.Bytes)
				continue
			}
			claims = add(claims, []ledger.Claim{ownMemory(owner, string(resource), m.Nodes, m.Bytes)})
		}
		for _, resource := range slices.Sorted(maps.Keys(h.Devices)) {
			ids := slices.Sorted(slices.Values(h.Devices[resource]))
			if !workload.Resource(resource).IsExtended() || len(ids) == 0 || len(slices.Compact(slices.Clone(ids))) != len(ids) ||
				ids[0] == "" {
				vs.Addf(path+".devices", "%.80q: expected an extended resource, and ids that differ", resource)
				continue
			}
			devices := make([]ledger.Device, len(ids))
			for k, id := range ids {
				devices[k] = ledger.Device{ID: id}
			}
			claims = append(claims, ledger.Claim{Owner: owner, Provider: "device", Resource: resource,
				Devices: &ledger.Devices{Devices: devices, Answer: notKnown}})
		}
	}
	return claims, vs.Err("request")
}

// onMachine refuses allocations that cannot be: on CPUs or NUMA nodes that the machine does not
// have. They would never be released, since no other pod requests them. CPUs that are offline may come online again.
func onMachine(view *ledger.View, running []RunningAllocation) error {
	var vs errdefs.Violations
	machine := view.Machine()
	for i, h := range running {
		if gone := h.CPUs.Minus(machine.CPUs()).Minus(machine.Offline()); !gone.IsEmpty() {
			vs.Addf(fmt.Sprintf("running_allocations[%d].cpus", i), "the machine has no CPUs %s", gone)
		}
		for j, m := range h.Memory {
			if gone := m.Nodes.Minus(machine.NodeMask()); !gone.IsEmpty() {
				vs.Addf(fmt.Sprintf("running_allocations[%d].memory[%d].numa_nodes", i, j), "the machine has no NUMA nodes %s", gone)
			}
		}
	}
	return vs.Err("request")
}

// notKnown replaces the digest of an unknown answer.
const notKnown = "not known"

func ownCPUs(owner ledger.Owner, set cpuset.Set) ledger.Claim {
	return ledger.Claim{
		Owner: owner, Provider: "cpu", Resource: string(workload.CPU), CPUs: &ledger.CPUs{Set: set, Use: ledger.CPUExclusive},
	}
}

func ownMemory(owner ledger.Owner, resource string, nodes numa.Mask, bytes uint64) ledger.Claim {
	return ledger.Claim{
		Owner: owner, Provider: "memory", Resource: resource, Memory: []ledger.Block{{Nodes: nodes, Bytes: bytes}},
	}
}

// add adds claims about other things to claims. Blocks of one resource form one claim.
func add(claims, more []ledger.Claim) []ledger.Claim {
	for _, c := range more {
		i := slices.IndexFunc(claims, func(have ledger.Claim) bool { return have.Owner == c.Owner && have.Resource == c.Resource })
		switch {
		case i < 0:
			claims = append(claims, c)
		case len(c.Memory) > 0 && len(claims[i].Memory) > 0:
			claims[i].Memory = append(slices.Clone(claims[i].Memory), c.Memory...)
		}
	}
	return claims
}

// observed assigns the kernel's data about a pod to its containers. A cgroup created by a
// runtime is not named after its container. Its CPUs are then assigned to the only
// container that requests this number.
func observed(p *ledger.Pod, known []ledger.Claim) (claims []ledger.Claim) {
	cgroups := map[string]string{} // cgroup to container
	for i := range known {
		c := &known[i]
		name := c.Owner.Container
		if name == "" || p.Pod.Container(name) != nil {
			cgroups[name] = name
			continue
		}
		if c.CPUs == nil {
			continue
		}
		var fit []string
		for _, ctr := range p.Pod.Walk() {
			if ctr.Guaranteed() && ctr.Requests.WholeCPUs() == c.CPUs.Set.Len() {
				fit = append(fit, ctr.Name)
			}
		}
		if len(fit) == 1 {
			cgroups[name] = fit[0]
		}
	}
	for _, c := range known {
		name, ok := cgroups[c.Owner.Container]
		if !ok {
			continue
		}
		c.Owner = ledger.Owner{Pod: p.UID(), Container: name}
		ctr := p.Pod.Container(name)
		if c.CPUs != nil && ctr != nil && (!ctr.Guaranteed() || ctr.Requests.WholeCPUs() == 0) {
			continue // the container shares its CPUs
		}
		if bytes := memoryOf(ctr); len(c.Memory) == 1 && c.Memory[0].Parts == nil && c.Resource == string(workload.Memory) && bytes > 0 {
			c.Memory = []ledger.Block{{Nodes: c.Memory[0].Nodes, Bytes: bytes}}
		}
		claims = append(claims, c)
	}
	return claims
}

func memoryOf(ctr *workload.Container) uint64 {
	if ctr == nil {
		return 0
	}
	return uint64(max(0, ctr.Requests[workload.Memory]))
}

// conflict refuses claims that another pod has.
func conflict(view *ledger.View, p *ledger.Pod) error {
	var vs errdefs.Violations
	for _, f := range check.Pod(view, p.UID()) {
		if f.Kind == check.Structural {
			vs.Addf(f.Owner.String(), "%s", f.Text)
		}
	}
	if len(vs) == 0 {
		return nil
	}
	return vs.Precondition(fmt.Sprintf("pod %s lives here, and cannot have what it is said to run with: ", p.UID())).
		Coded(errdefs.AllocationsContradict, "pod_uid", p.UID())
}

// HeldBack returns why claims cannot be given to a pod now: an unknown pod may have them. The
// condition is empty if there is no such reason. Running pods do not wait for each other.
func HeldBack(view *ledger.View, uid string, claims []ledger.Claim) (condition, why string) {
	if len(claims) == 0 {
		return "", ""
	}
	if why := view.Uncertain(); why != "" {
		return StateUncertain, why + "; nothing exclusive is allocated until the agent has called SyncPods"
	}
	if view.UnknownLive(uid) {
		return "", ""
	}
	devices := slices.ContainsFunc(claims, func(c ledger.Claim) bool { return c.Devices != nil })
	for u := range view.UnknownLivePods() {
		const end = "until the agent has admitted or removed it, or has called SyncPods without it"
		switch {
		case u.Source == "":
			return StateUncertain, fmt.Sprintf("pod %s lives here, and what it holds is not known; nothing exclusive is allocated %s",
				u.UID, end)
		case u.DevicesUnknown && devices:
			return UnknownDevices, fmt.Sprintf("pod %s lives here, and its devices are not known; no devices are allocated %s", u.UID, end)
		}
	}
	return "", ""
}

// claimsOf returns the claims of a pod on a view.
func claimsOf(view *ledger.View, uid string) []ledger.Claim {
	if p, ok := view.Pod(uid); ok {
		return p.Claims
	}
	return nil
}
