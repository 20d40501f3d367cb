package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// View compares a view with the ledger's invariants (structural findings) and with its
// rules (policy findings). The findings are in the order of the pods' uids; the same view
// gives the same findings.
func View(v *ledger.View) []Finding {
	c := &checker{view: v, rules: v.Rules(), allocatable: v.AllocatableCPUs(), expected: 2 * v.NumPods()}
	for p := range v.Pods() {
		c.pod(p)
	}
	for u := range v.UnknownLivePods() {
		c.unknown(u.UID)
	}
	c.overlaps()
	c.memorySums()
	c.sharing()
	for b := range v.Bindings() {
		c.binding(b)
	}
	return c.findings
}

// Flaw returns the first structural finding of a view that differs from a sound one in some changes. Only
// these can be wrong, so only these are checked: the cost of a commit does not
// grow with the number of pods.
func Flaw(next *ledger.View, changes *ledger.Content) (Finding, bool) {
	c := &checker{view: next, rules: next.Rules(), allocatable: next.AllocatableCPUs(), expected: 2}
	for _, p := range changes.Pods {
		if p != nil {
			c.pod(p)
		}
	}
	for uid := range changes.Unknown {
		c.unknown(uid)
	}
	if c.devices != nil {
		for o := range next.DeviceHolders() {
			_, changed := changes.Pods[o.UID()]
			if _, noted := changes.Unknown[o.UID()]; !changed && !noted {
				c.checkDevices(o)
			}
		}
	}
	c.overlaps()
	for id := range changes.Bindings {
		if b, ok := next.Binding(id); ok {
			c.binding(b)
		}
	}
	for uid := range changes.Pods {
		for b := range next.BindingsOf(uid) {
			c.binding(b)
		}
		c.unknownIsKnown(uid)
	}
	if len(c.findings) == 0 {
		return Finding{}, false
	}
	return FirstStructural(View(next))
}

// deviceKey names a device.
type deviceKey struct{ resource, id string }

// checker is one pass over a view.
type checker struct {
	view        *ledger.View
	rules       ledger.Rules              // of view
	allocatable cpuset.Set                // to pods
	devices     map[deviceKey]*ledger.Pod // holders
	expected    int                       // approximate number of devices
	planned     ledger.Owner              // only its claims are checked; none for all
	memory      memorySums

	// State for the current pod.
	names     workload.Names
	from, to  int                 // the claims that are checked
	owner     ledger.Owner        // the last owner that was looked up
	container *workload.Container // of owner; nil for the pod as a whole

	findings []Finding
}

// Pod returns the findings about one pod and its claims, including conflicts with
// other pods' claims, but without sums over all pods. On a node with many pods it is
// cheaper than View. An unknown pod has no findings.
func Pod(v *ledger.View, uid string) []Finding { return Planned(v, uid, nil) }

// Planned returns the findings of Pod that concern the container whose claims were planned. Without planned claims, with those
// of several containers, or of the pod as a whole, it is Pod. So a pod with many containers that are planned one after the other is
// checked in a time that grows with their number.
func Planned(v *ledger.View, uid string, planned []ledger.Claim) []Finding {
	p, ok := v.Pod(uid)
	if !ok {
		return nil
	}
	c := &checker{view: v, rules: v.Rules(), allocatable: v.AllocatableCPUs(), expected: 2}
	for i := range planned {
		if c.planned = planned[i].Owner; c.planned.Container == "" || c.planned != planned[0].Owner {
			c.planned = ledger.Owner{}
			break
		}
	}
	c.pod(p)
	if c.devices != nil {
		for o := range v.DeviceHolders() {
			if o != p {
				c.checkDevices(o)
			}
		}
	}
	c.overlaps()
	findings := slices.DeleteFunc(c.findings, func(f Finding) bool { return f.Owner.Pod != uid && f.Other.Pod != uid })
	slices.SortStableFunc(findings, func(a, b Finding) int { return strings.Compare(a.Text, b.Text) })
	return findings
}

// pod checks one pod alone, and stores its claims for the comparison with others.
func (c *checker) pod(p *ledger.Pod) {
	c.record(p)
	c.names, c.owner, c.from = p.Pod.Names(), ledger.Owner{}, 0
	for c.planned != (ledger.Owner{}) && c.from < len(p.Claims) && p.Claims[c.from].Owner != c.planned {
		c.from++
	}
	c.to = c.from
	for c.to < len(p.Claims) && (c.planned == ledger.Owner{} || p.Claims[c.to].Owner == c.planned) {
		c.to++
	}
	for i := range p.Claims {
		if c.checks(i) {
			c.claim(p, i)
		}
		c.compare(p, i)
	}
	c.podMemory(p)
}

// add stores a finding about a claim, or about an owner if the claim is empty.
func (c *checker) add(kind Kind, rule Rule, owner, other ledger.Owner, resource, format string, args ...any) {
	c.findings = append(c.findings, Finding{
		Kind: kind, Rule: rule, Owner: owner, Other: other, Resource: resource,
		Text: fmt.Sprintf(format, args...),
	})
}

// lost adds a finding about CPUs that an owner cannot run on any more.
func (c *checker) lost(rule Rule, claim *ledger.Claim, cpus cpuset.Set, why string) {
	subject := fmt.Sprintf("CPUs %s of %s are %s", cpus, claim.Owner, why)
	c.findings = append(c.findings, Finding{
		Kind: Policy, Rule: rule, Owner: claim.Owner, Resource: claim.Resource,
		Text: fmt.Sprintf("%s: it runs on %s", subject, c.view.RunsOn(claim.Owner)), subject: subject,
	})
}

func (c *checker) record(p *ledger.Pod) {
	uid := p.UID()
	if uid == "" || strings.Contains(uid, "/") {
		c.add(Structural, RuleRecord, ledger.Owner{Pod: uid}, ledger.Owner{}, "", "pod uid %q is empty or has a slash", uid)
	}
}

// find looks up the container of an owner, nil for the pod as a whole, and
// reports whether the owner is known. Claims are in order of their owners, so
// the last answer is often the next one.
func (c *checker) find(p *ledger.Pod, o ledger.Owner) (*workload.Container, bool) {
	if o == c.owner && o != (ledger.Owner{}) { // that of nobody is the owner before the first claim
		return c.container, true
	}
	at := c.names.At(o.Container)
	if o.Pod != p.UID() || o.Container != "" && at < 0 {
		return nil, false
	}
	var container *workload.Container
	if at >= 0 {
		container = &p.Pod.Containers[at]
	}
	c.owner, c.container = o, container
	return container, true
}

// claim checks one claim by itself.
func (c *checker) claim(p *ledger.Pod, i int) {
	claim := &p.Claims[i]
	if _, ok := c.find(p, claim.Owner); !ok {
		c.add(Structural, RuleOwner, claim.Owner, ledger.Owner{Pod: p.UID()}, claim.Resource,
			"claim of %s on %s in the record of pod %s has no owner there", claim.Owner, claim.Resource, p.UID())
		return
	}
	if i > 0 && ledger.CompareClaims(p.Claims[i-1], *claim) >= 0 {
		c.add(Structural, RuleDuplicate, claim.Owner, ledger.Owner{}, claim.Resource,
			"provider %s has two claims of %s on %s, or the claims are out of order", claim.Provider, claim.Owner, claim.Resource)
	}
	payloads := 0
	if claim.CPUs != nil {
		payloads++
		c.cpus(p, i)
	}
	if len(claim.Memory) > 0 {
		payloads++
	}
	if claim.Devices != nil {
		payloads++
		c.deviceClaim(p, i)
	}
	if len(claim.Opaque) > 0 {
		payloads++
	}
	if payloads != 1 {
		c.add(Structural, RulePayload, claim.Owner, ledger.Owner{}, claim.Resource,
			"claim of %s on %s has %d payloads, not one", claim.Owner, claim.Resource, payloads)
	}
}

// cpus checks a CPU claim.
func (c *checker) cpus(p *ledger.Pod, i int) {
	claim := &p.Claims[i]
	use, set := claim.CPUs.Use, claim.CPUs.Set
	pod := claim.Owner.Container == ""
	switch use {
	case ledger.CPUExclusive, ledger.CPUPodExclusive, ledger.CPUPodShared:
		pod = !pod
	case ledger.CPUPod:
	default:
		pod = false
	}
	if !pod || set.IsEmpty() {
		c.add(Structural, RulePayload, claim.Owner, ledger.Owner{}, claim.Resource,
			"%s cannot hold CPUs %q for use %q", claim.Owner, set, use)
		return
	}
	if claim.CPUs.OfNode() {
		if !set.IsSubsetOf(c.allocatableTo(p)) {
			c.external(p, claim)
		}
	} else if podCPUs := podCPUs(p); !set.IsSubsetOf(podCPUs) {
		c.add(Structural, RuleContained, claim.Owner, ledger.Owner{Pod: p.UID()}, claim.Resource,
			"CPUs %s of %s are not part of its pod's CPUs %q", set, claim.Owner, podCPUs)
	}
}

// sharedCPUs reports CPUs that two claims of a pod have and may not share.
func (c *checker) sharedCPUs(p *ledger.Pod, claim, o *ledger.Claim) {
	if claim.CPUs != nil && o.CPUs != nil && claim.CPUs.Set.Overlaps(o.CPUs.Set) && !MayShareCPUs(p, c.names, claim, o) {
		c.add(Structural, RuleCPUOverlap, claim.Owner, o.Owner, claim.Resource,
			"CPUs %s belong to %s (%s) and to %s (%s)", claim.CPUs.Set.Intersect(o.CPUs.Set),
			claim.Owner, claim.Provider, o.Owner, o.Provider)
	}
}

// checks returns whether a claim of the current pod is checked.
func (c *checker) checks(i int) bool { return c.from <= i && i < c.to }

// compare compares a claim with later ones of its pod, if one of both is checked.
func (c *checker) compare(p *ledger.Pod, i int) {
	from, to := i+1, len(p.Claims)
	if !c.checks(i) {
		from, to = max(from, c.from), c.to
	}
	for j := from; j < to; j++ {
		c.sharedCPUs(p, &p.Claims[i], &p.Claims[j])
		c.sharedDevices(p, &p.Claims[i], &p.Claims[j])
	}
}

// allocatableTo returns the CPUs that a pod or a resource claim may have.
func (c *checker) allocatableTo(p *ledger.Pod) cpuset.Set {
	if p.Pod.ResourceClaim == nil {
		return c.allocatable
	}
	return c.rules.ClaimCPUs.Intersect(c.rules.Machine.CPUs())
}

// sharing reports containers without CPUs of their own if no CPU is shared.
func (c *checker) sharing() {
	if !c.view.SharedCPUs().IsEmpty() {
		return
	}
	var first ledger.Owner
	more := 0
	for p := range c.view.Pods() {
		for _, container := range p.Pod.Walk() {
			owner := ledger.Owner{Pod: p.UID(), Container: container.Name}
			switch set, _, _ := c.view.ContainerCPUs(owner); {
			case !set.IsEmpty():
			case first == ledger.Owner{}:
				first = owner
			default:
				more++
			}
		}
	}
	if first == (ledger.Owner{}) {
		return
	}
	text := fmt.Sprintf("no CPU is shared: %s and %d other containers without CPUs of their own ", first, more)
	if common := c.view.CommonCPUs(); common.IsEmpty() {
		text += "may run on exclusive CPUs of others"
	} else {
		text += fmt.Sprintf("run on the reserved CPUs %s", common)
	}
	c.add(Policy, RuleShared, first, ledger.Owner{}, string(workload.CPU), "%s", text)
}

// external returns why CPUs are not allocatable under the current rules.
func (c *checker) external(p *ledger.Pod, claim *ledger.Claim) {
	m, set := c.rules.Machine, claim.CPUs.Set
	if gone := set.Minus(m.CPUs()).Minus(m.Offline()); !gone.IsEmpty() {
		c.lost(RuleVanished, claim, gone, "not on this machine")
	}
	if off := set.Intersect(m.Offline()); !off.IsEmpty() {
		c.lost(RuleOffline, claim, off, "offline")
	}
	if p.Pod.ResourceClaim != nil {
		if foreign := set.Intersect(m.CPUs()).Minus(c.rules.ClaimCPUs); !foreign.IsEmpty() {
			c.add(Policy, RuleReserved, claim.Owner, ledger.Owner{}, claim.Resource,
				"CPUs %s of %s are not among those of resource claims (dra.cpus)", foreign, claim.Owner)
		}
		return
	}
	if reserved := set.Intersect(c.rules.ReservedCPUs).Intersect(m.CPUs()); !reserved.IsEmpty() {
		c.add(Policy, RuleReserved, claim.Owner, ledger.Owner{}, claim.Resource,
			"CPUs %s of %s are reserved", reserved, claim.Owner)
	}
}

// podCPUs returns the CPUs that a pod holds as a whole.
func podCPUs(p *ledger.Pod) cpuset.Set {
	var set cpuset.Set
	for i := range p.Claims {
		if c := &p.Claims[i]; c.CPUs != nil && c.CPUs.Use == ledger.CPUPod {
			set = set.Union(c.CPUs.Set)
		}
	}
	return set
}

// MayShareCPUs returns whether two claims of a pod with these containers may have CPUs in common: a part and its
// pod's set; two sharers of that set; an init container and later containers; an init
// container and a sidecar that shares the remaining CPUs of the pod's set, although both
// run at the same time (the kubelet divides the set like this, KEP-5526).
func MayShareCPUs(p *ledger.Pod, names workload.Names, a, b *ledger.Claim) bool {
	feeds := func(o ledger.Owner) bool {
		at := names.At(o.Container)
		return at >= 0 && p.Pod.Containers[at].Role.Feeds()
	}
	switch {
	case a.Owner.Container == "" || b.Owner.Container == "":
		return !a.CPUs.OfNode() || !b.CPUs.OfNode()
	case a.CPUs.Use == ledger.CPUPodShared:
		return b.CPUs.Use == ledger.CPUPodShared || feeds(b.Owner) || passesOn(p, names, a.Owner, b.Owner)
	case b.CPUs.Use == ledger.CPUPodShared:
		return feeds(a.Owner) || passesOn(p, names, a.Owner, b.Owner)
	}
	return passesOn(p, names, a.Owner, b.Owner)
}

// passesOn returns whether the first of two containers, in the order of Walk, passes its
// claims on to later ones.
func passesOn(p *ledger.Pod, names workload.Names, a, b ledger.Owner) bool {
	first, second := names.At(a.Container), names.At(b.Container)
	if first < 0 || 0 <= second && second < first {
		first = second
	}
	return a != b && first >= 0 && p.Pod.Containers[first].Role.Feeds()
}

// overlaps reports pods whose CPUs overlap, each with the earlier ones.
func (c *checker) overlaps() {
	contested := c.view.ContestedCPUs()
	if contested.IsEmpty() {
		return
	}
	var before []*ledger.Pod
	compare := func(p *ledger.Pod) {
		set := p.HeldCPUs()
		if !set.Overlaps(contested) {
			return
		}
		for _, o := range before {
			if both := set.Intersect(o.HeldCPUs()); !both.IsEmpty() {
				c.add(Structural, RuleCPUOverlap, ledger.Owner{Pod: o.UID()}, ledger.Owner{Pod: p.UID()}, string(workload.CPU),
					"CPUs %s belong to pod %s and to pod %s", both, o.UID(), p.UID())
			}
		}
		before = append(before, p)
	}
	for p := range c.view.Pods() {
		compare(p)
	}
	for u := range c.view.UnknownLivePods() {
		compare(u.Held())
	}
}

// deviceClaim compares a device claim with other pods.
func (c *checker) deviceClaim(p *ledger.Pod, i int) {
	claim := &p.Claims[i]
	if !claim.Devices.InOrder() {
		c.add(Structural, RulePayload, claim.Owner, ledger.Owner{}, claim.Resource,
			"claim of %s on %s names no devices, or not in strict order of their ids", claim.Owner, claim.Resource)
		return
	}
	c.holdDevices(p, claim)
}

// sharedDevices reports devices that two claims of a pod have and may not share.
func (c *checker) sharedDevices(p *ledger.Pod, claim, o *ledger.Claim) {
	if claim.Devices == nil || o.Devices == nil || o.Resource != claim.Resource || passesOn(p, c.names, claim.Owner, o.Owner) {
		return
	}
	for _, dev := range claim.Devices.Devices {
		if has(o.Devices, dev.ID) {
			c.add(Structural, RuleDeviceOverlap, claim.Owner, o.Owner, claim.Resource,
				"device %s of %s belongs to %s and to %s", dev.ID, claim.Resource, claim.Owner, o.Owner)
		}
	}
}

// holdDevices stores the holder of a claim's devices, or reports that they are taken.
func (c *checker) holdDevices(p *ledger.Pod, claim *ledger.Claim) {
	if c.devices == nil {
		c.devices = make(map[deviceKey]*ledger.Pod, c.expected)
	}
	for _, dev := range claim.Devices.Devices {
		key := deviceKey{claim.Resource, dev.ID}
		if o, taken := c.devices[key]; taken && o != p {
			c.sharedDevice(o, claim, dev)
		} else {
			c.devices[key] = p
		}
	}
}

// checkDevices compares a pod's devices with the stored holders, without storing them.
func (c *checker) checkDevices(p *ledger.Pod) {
	for i := range p.Claims {
		claim := &p.Claims[i]
		if claim.Devices == nil {
			continue
		}
		for _, dev := range claim.Devices.Devices {
			if o, taken := c.devices[deviceKey{claim.Resource, dev.ID}]; taken {
				c.sharedDevice(o, claim, dev)
			}
		}
	}
}

func (c *checker) sharedDevice(holder *ledger.Pod, claim *ledger.Claim, dev ledger.Device) {
	c.add(Structural, RuleDeviceOverlap, ledger.Owner{Pod: holder.UID()}, claim.Owner, claim.Resource,
		"device %s of %s belongs to pod %s and to %s", dev.ID, claim.Resource, holder.UID(), claim.Owner)
}

// has returns whether a device is in d.
func has(d *ledger.Devices, id string) bool {
	return slices.ContainsFunc(d.Devices, func(dev ledger.Device) bool { return dev.ID == id })
}

func (c *checker) binding(b ledger.Binding) {
	p, ok := c.view.Pod(b.Owner.Pod)
	if !ok || p.Pod.Container(b.Owner.Container) == nil {
		c.add(Structural, RuleOwner, b.Owner, ledger.Owner{}, "", "container id %s is bound to %s, which is not known", b.ID, b.Owner)
	}
}
