package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// deviceState has the devices that plugins have listed, and their owners.
type deviceState struct {
	Devices map[string][]listedDevice `json:"devices"`
	// Allocated by resource; more than PodDevices only in hand-made states.
	Allocated  map[string][]string `json:"allocated"`
	PodDevices podDevices          `json:"pod_devices"`
}

type listedDevice struct {
	ID      string      `json:"id"`
	Healthy bool        `json:"healthy"`
	NUMA    vector.Mask `json:"numa"`
}

// podDevices are ids of devices by pod, container and resource. deviceClaim is such a path, as
// one text in JSON.
type (
	podDevices  map[string]containerDevices
	deviceClaim struct{ pod, container, resource string }
	// containerDevices are the devices of a pod by container and resource.
	containerDevices map[string]map[string][]string
)

func (c deviceClaim) MarshalText() ([]byte, error) {
	return []byte(c.pod + "/" + c.container + " " + c.resource), nil
}

// claims returns the devices by path, in order.
func (p podDevices) claims() map[deviceClaim][]string {
	out := map[deviceClaim][]string{}
	for uid, containers := range p {
		for container, resources := range containers {
			for resource, ids := range resources {
				out[deviceClaim{uid, container, resource}] = slices.Sorted(slices.Values(ids))
			}
		}
	}
	return out
}

// devicePlugin is how a plugin behaves.
type devicePlugin struct {
	Preferred bool     `json:"preferred_allocation_available"`
	Answer    []string `json:"preferred_answer"`
	PrefError string   `json:"preferred_error"`
	AllocErr  string   `json:"allocate_error"`
}

// preferredCall is a question to a plugin.
type preferredCall struct {
	Available   []string `json:"available"`
	MustInclude []string `json:"must_include"`
	Size        int      `json:"size"`
}

// scripted answers as the recorded plugins did, and records its calls.
type scripted struct {
	plugins map[string]devicePlugin
	calls   map[string]preferredCall
}

func (s *scripted) Preferred(_ context.Context, resource string, available, must []string, size int) ([]string, error) {
	s.calls[resource] = preferredCall{available, append([]string{}, must...), size}
	p := s.plugins[resource]
	if p.PrefError != "" {
		return nil, errors.New(p.PrefError)
	}
	return p.Answer, nil
}

func (s *scripted) Allocate(_ context.Context, resource string, ids []string) ([]byte, error) {
	if text := s.plugins[resource].AllocErr; text != "" {
		return nil, errors.New(text)
	}
	return []byte(strings.Join(ids, ",")), nil
}

// deviceBench is the device manager in a recorded state.
type deviceBench struct {
	*device.Manager
	view    *ledger.View
	plugins *scripted
}

func (s deviceState) bench(nodes []int, pod *workload.Pod, plugins map[string]devicePlugin) (*deviceBench, error) {
	m, err := deviceMachine(nodes)
	if err != nil {
		return nil, err
	}
	inv, known, err := s.inventory(plugins)
	if err != nil {
		return nil, err
	}
	records := seeded(pod)
	s.seed(records, known)
	fake := &scripted{plugins, map[string]preferredCall{}}
	return &deviceBench{device.New(inv, fake), records.on(ledger.Empty(ledger.Rules{Machine: m})), fake}, nil
}

// inventory has the listed devices. known are the devices by resource and id.
func (s deviceState) inventory(plugins map[string]devicePlugin) (*device.Inventory, map[string]map[string]ledger.Device, error) {
	inv := device.NewInventory(nil, time.Time{})
	known := map[string]map[string]ledger.Device{}
	for _, name := range slices.Sorted(maps.Keys(s.Devices)) {
		known[name] = map[string]ledger.Device{}
		var list []device.Device
		for _, d := range s.Devices[name] {
			list = append(list, device.Device{ID: d.ID, Healthy: d.Healthy, Nodes: d.NUMA.Mask, Topology: d.NUMA.Named})
			known[name][d.ID] = ledger.Device{ID: d.ID, Nodes: d.NUMA.Mask, Topology: d.NUMA.Named}
		}
		session := inv.Registered(name, device.Options{Preferred: plugins[name].Preferred}, time.Time{})
		if !inv.Listed(session, list, time.Time{}) {
			return nil, nil, fmt.Errorf("list of %s was not taken", name)
		}
	}
	return inv, known, nil
}

// deviceMachine is a machine that has nodes and little else.
func deviceMachine(nodes []int) (*machine.Topology, error) {
	if len(nodes) == 0 {
		nodes = []int{0}
	}
	snapshot := machine.Snapshot{CPUs: []machine.CPU{{Node: nodes[0]}}}
	for _, id := range nodes {
		snapshot.Nodes = append(snapshot.Nodes, machine.Node{ID: id})
	}
	return machine.New(snapshot)
}

// seed adds the claims of the devices' owners. Other allocated devices belong to the pod nobody.
func (s deviceState) seed(records seed, known map[string]map[string]ledger.Device) {
	owned := map[string]map[string]bool{}
	hold := func(uid, container, resource string, ids []string) {
		claim := ledger.Claim{Provider: device.Name, Resource: resource, Devices: &ledger.Devices{}}
		for _, id := range ids {
			d, listed := known[resource][id]
			if !listed {
				d.ID = id
			}
			put(owned, resource, id, true)
			claim.Devices.Devices = append(claim.Devices.Devices, d)
		}
		records.hold(uid, container, claim)
	}
	for c, ids := range s.PodDevices.claims() {
		hold(c.pod, c.container, c.resource, ids)
	}
	for resource, ids := range s.Allocated {
		leaked := slices.DeleteFunc(slices.Sorted(slices.Values(ids)), func(id string) bool { return owned[resource][id] })
		if len(leaked) > 0 {
			hold(nobody, "c", resource, leaked)
		}
	}
}

// deviceHints: where the devices of a container, and of a pod, could be.
var deviceHints = Define("device_hints", Plan[deviceHintsIn, recordedHints, podHints]{
	Decide:  decideDeviceHints,
	Compare: compareHints[deviceHintsIn],
	Differs: deviceHintsDiffer,
	Unread:  []string{"state.reusable"}, // follows from what containers hold
})

type deviceHintsIn struct {
	NUMANodes []int       `json:"numa_nodes"`
	Pod       vector.Pod  `json:"pod"`
	State     deviceState `json:"state"`
}

func decideDeviceHints(_ *Env, in deviceHintsIn) (podHints, error) {
	b, err := in.State.bench(in.NUMANodes, in.Pod.Pod, nil)
	if err != nil {
		return podHints{}, err
	}
	return hintsFor(b, in.Pod.Pod, func(*workload.Pod, string) *ledger.View { return b.view })
}

// deviceHintsDiffer judges hints where the reference crashed on an allocation of a removed
// device. The recordings do not contain the device's nodes, so the holder's hints only need to
// exist.
func deviceHintsDiffer(_ *Env, in deviceHintsIn, want recordedHints, got podHints) (string, error) {
	if want.Panic == "" {
		return "", errors.New("the reference did not crash")
	}
	for _, c := range in.Pod.Walk() {
		for resource, hints := range got.ContainerHints[c.Name] {
			if hints != nil && len(hints) == 0 && !in.State.refused(in.NUMANodes, in.Pod.UID, c, resource) {
				return "", fmt.Errorf("container %s cannot have %s, although enough devices are free", c.Name, resource)
			}
			for _, h := range hints {
				if h.NUMA.IsEmpty() || !h.NUMA.IsSubsetOf(numa.Of(in.NUMANodes...)) {
					return "", fmt.Errorf("container %s: nodes %v are not of the machine", c.Name, h.NUMA)
				}
			}
		}
	}
	return "D4", nil
}

// refused reports whether a container must be refused. It owns a removed device, or another
// number than it requests; too few devices are near nodes of the machine; or a device left by an
// init container is near none.
func (s deviceState) refused(nodes []int, uid string, c *workload.Container, resource string) bool {
	near := map[string]bool{}
	for _, d := range s.Devices[resource] {
		near[d.ID] = d.NUMA.Overlaps(numa.Of(nodes...))
	}
	n := int(c.Limits[workload.Resource(resource)])
	if have := s.PodDevices[uid][c.Name][resource]; len(have) > 0 {
		return len(have) != n || slices.ContainsFunc(have, func(id string) bool { return !near[id] })
	}
	var owned []string
	for _, resources := range s.PodDevices[uid] {
		owned = append(owned, resources[resource]...)
	}
	free := 0
	for _, d := range s.Devices[resource] {
		if d.NUMA.Named && !near[d.ID] && slices.Contains(owned, d.ID) {
			return true
		}
		if d.Healthy && near[d.ID] && !slices.Contains(s.Allocated[resource], d.ID) {
			free++
		}
	}
	return free < n
}

// deviceAllocate: the choice of a container's devices.
var deviceAllocate = Define("device_allocate", Plan[deviceAllocateIn, deviceAllocateWant, deviceAllocateGot]{
	Decide:  decideDeviceAllocate,
	Compare: compareDeviceAllocate,
	Differs: deviceAllocateDiffers,
	Unsound: deviceAllocateUnsound,
	// All of these follow from what containers hold, or do not change.
	Unread: []string{"before.reusable", "after.allocated", "after.devices", "after.reusable"},
})

type deviceAllocateIn struct {
	deviceHintsIn
	Container string                  `json:"container"`
	Plugins   map[string]devicePlugin `json:"plugins"`
	Affinity  vector.Affinity         `json:"affinity"`
	Before    deviceState             `json:"before"`
}

type deviceAllocateWant struct {
	Result struct {
		OK      bool                `json:"ok"`
		Error   *vector.Error       `json:"error"`
		Devices map[string][]string `json:"devices"`
		Choices map[string][]struct {
			Step string   `json:"step"`
			Pool []string `json:"pool"`
			Take int      `json:"take"`
		} `json:"choices"`
		PreferredCall map[string]preferredCall `json:"preferred_call"`
	} `json:"result"`
	After *struct {
		PodDevices podDevices `json:"pod_devices"`
	} `json:"after"`
}

type deviceAllocateGot struct {
	Error         *vector.Error            `json:"error"`
	Devices       map[string][]string      `json:"devices"`
	PreferredCall map[string]preferredCall `json:"preferred_call"`
	PodDevices    map[deviceClaim][]string `json:"pod_devices"`
}

func decideDeviceAllocate(_ *Env, in deviceAllocateIn) (got deviceAllocateGot, err error) {
	pod := in.Pod.Pod
	b, err := in.Before.bench(in.NUMANodes, pod, in.Plugins)
	if err != nil {
		return got, err
	}
	ctx, req := context.Background(), request(pod, in.Container)
	claims, refusal := b.Plan(ctx, b.view, req, in.Affinity.Hint())
	if refusal == nil {
		claims, refusal = b.Prepare(ctx, "admission", req, claims)
	}
	draft := ledger.NewDraft(b.view)
	if refusal == nil {
		draft.AddClaims(pod.UID, claims...)
	}
	got = deviceAllocateGot{deviceError(refusal), map[string][]string{}, b.plugins.calls, map[deviceClaim][]string{}}
	for c := range draft.View().Claims() {
		if c.Owner == req.Owner() {
			got.Devices[c.Resource] = c.Devices.IDs()
		}
		if c.Owner.Pod != nobody {
			got.PodDevices[deviceClaim{c.Owner.Pod, c.Owner.Container, c.Resource}] = c.Devices.IDs()
		}
	}
	return got, nil
}

// deviceTexts map error texts to the recordings' classes, as clients of the kubelet do.
var deviceTexts = []struct{ class, text string }{
	{"changed_request", "changed request for resource"},
	{"unregistered", "cannot allocate unregistered device"},
	{"no_healthy", "no healthy devices present; cannot allocate unhealthy devices"},
	{"allocated_unhealthy", "previously allocated devices are no longer healthy; cannot allocate unhealthy devices"},
	{"not_enough_devices", "requested number of devices unavailable for"},
	{adviceFailed, "GetPreferredAllocation rpc failed"},
	{"empty_response", "no containers return in allocation response"},
}

func deviceError(err error) *vector.Error {
	for _, t := range deviceTexts {
		if err != nil && strings.Contains(err.Error(), t.text) {
			return recordedError(err, t.class)
		}
	}
	return recordedError(err, "")
}

func compareDeviceAllocate(_ deviceAllocateIn, want deviceAllocateWant, got deviceAllocateGot) string {
	w := want.Result
	switch {
	case w.OK != (got.Error == nil):
		return "verdict"
	case !w.OK && w.Error.Class != got.Error.Class:
		return "error"
	case !w.OK:
		return ""
	}
	for resource, steps := range w.Choices {
		left := slices.Clone(got.Devices[resource])
		for _, s := range steps {
			before := len(left)
			left = slices.DeleteFunc(left, func(id string) bool { return slices.Contains(s.Pool, id) })
			if before-len(left) != s.Take {
				return fmt.Sprintf("choice of %s: %d of step %s", resource, before-len(left), s.Step)
			}
		}
		if len(left) > 0 {
			return fmt.Sprintf("choice of %s: %q are in no step", resource, left)
		}
	}
	if w.Devices != nil && len(w.Devices) != len(got.Devices) {
		return "resources"
	}
	for resource, call := range w.PreferredCall {
		if !reflect.DeepEqual(call, got.PreferredCall[resource]) {
			return "preferred call of " + resource
		}
	}
	if want.After != nil {
		after := want.After.PodDevices.claims()
		maps.DeleteFunc(after, func(_ deviceClaim, ids []string) bool { return len(ids) == 0 })
		if !maps.EqualFunc(after, got.PodDevices, slices.Equal[[]string]) {
			return "state"
		}
	}
	return ""
}

// deviceAllocateUnsound: no pod is refused for lack of advice.
func deviceAllocateUnsound(_ *Env, _ deviceAllocateIn, want deviceAllocateWant) string {
	if e := want.Result.Error; e != nil && e.Class == adviceFailed {
		return "a pod is refused because of a failed GetPreferredAllocation"
	}
	return ""
}

// adviceFailed is the class of a refusal because of a failed GetPreferredAllocation.
const adviceFailed = "preferred_rpc_failed"

// deviceAllocateDiffers judges a choice where the reference crashed while it reused a removed
// device, or refused the pod because a plugin's GetPreferredAllocation failed. Every chosen device is
// listed and has no other owner. After a crash, a refusal for lack of devices is accepted. After a
// failure, the choice is that for a plugin without a preference.
func deviceAllocateDiffers(env *Env, in deviceAllocateIn, want deviceAllocateWant, got deviceAllocateGot) (string, error) {
	class := ""
	if e := want.Result.Error; e != nil {
		class = e.Class
	}
	id := map[string]string{"panic": "D4", adviceFailed: "D26"}[class]
	if id == "" {
		return "", errors.New("the reference did not crash, and no GetPreferredAllocation failed")
	}
	c := in.Pod.Container(in.Container)
	if c == nil {
		return "", fmt.Errorf("the pod has no container %q", in.Container)
	}
	if class != "panic" {
		if got.Error != nil {
			return "", fmt.Errorf("refused because of a failed GetPreferredAllocation: %s", got.Error.Message)
		}
		silent := in
		silent.Plugins = map[string]devicePlugin{}
		for resource, p := range in.Plugins {
			p.Preferred = p.Preferred && p.PrefError == ""
			silent.Plugins[resource] = p
		}
		alone, err := decideDeviceAllocate(env, silent)
		if err != nil || !reflect.DeepEqual(alone.Devices, got.Devices) {
			return "", fmt.Errorf("without a preference %q are chosen (%w), and not %q", alone.Devices, err, got.Devices)
		}
	}
	short, sick := false, false
	for resource, list := range in.Before.Devices {
		amount, wanted := c.Limits[workload.Resource(resource)]
		n := int(amount)
		usable := in.Before.usable(in.Pod, in.Container, resource)
		short = short || len(usable) < n
		healthy := 0
		for _, d := range list {
			if d.Healthy {
				healthy++
			}
		}
		sick = sick || wanted && healthy == 0
		if got.Error != nil {
			continue
		}
		chosen := slices.Compact(slices.Sorted(slices.Values(got.Devices[resource])))
		if len(chosen) != n || len(got.Devices[resource]) != n {
			return "", fmt.Errorf("%d devices of %s are wanted, %q chosen", n, resource, got.Devices[resource])
		}
		for _, id := range chosen {
			if !slices.Contains(usable, id) {
				return "", fmt.Errorf("%s of %s is gone, or not to be had", id, resource)
			}
		}
	}
	if e := got.Error; e != nil && !(e.Class == "not_enough_devices" && short || e.Class == "no_healthy" && sick) {
		return "", fmt.Errorf("refused, although there are enough devices: %s", got.Error.Message)
	}
	return id, nil
}

// usable are the listed devices that a container may get: healthy and free ones, and those that
// earlier init containers left unused.
func (s deviceState) usable(pod vector.Pod, container, resource string) (ids []string) {
	left := map[string]bool{}
	for _, c := range pod.Walk() {
		if c.Name == container {
			break
		}
		for _, id := range s.PodDevices[pod.UID][c.Name][resource] {
			left[id] = c.Role.Feeds()
		}
	}
	for _, d := range s.Devices[resource] {
		if left[d.ID] || d.Healthy && !slices.Contains(s.Allocated[resource], d.ID) {
			ids = append(ids, d.ID)
		}
	}
	return ids
}
