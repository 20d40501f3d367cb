package rpc

import (
	"context"
	"slices"
	"sync"

	"github.com/berthd/berth/managers/errdefs"
)

// maxQueued is how many costly calls of one user wait.
const maxQueued = 8

// costly are the calls that take more processor time than others, by full name: those that decide on a pod without
// placing it, and those that look at all pods. Of the triable methods only the trial is one.
var costly = map[string]bool{
	"/berth.admission.v1.AdmissionService/Admit":      true,
	"/berth.admission.v1.AdmissionService/Resize":     true,
	"/berth.allocation.v1.AllocationService/List":     true,
	"/berth.cgroup.v1.CgroupService/List":             true,
	"/berth.cgroup.v1.CgroupService/Plan":             true,
	"/berth.cgroup.v1.PodCgroupService/ListPods":      true,
	"/berth.cpu.v1.CPUService/GetState":               true,
	"/berth.cpu.v1.CPUService/GetTopologyHints":       true,
	"/berth.device.v1.DeviceService/GetState":         true,
	"/berth.device.v1.DeviceService/GetTopologyHints": true,
	"/berth.device.v1.DeviceService/ListResources":    true,
	"/berth.inspect.v1.InspectService/Check":          true,
	"/berth.inspect.v1.InspectService/Dump":           true,
	"/berth.inspect.v1.InspectService/Export":         true,
	"/berth.inspect.v1.InspectService/GetTrace":       true,
	"/berth.inspect.v1.InspectService/Import":         true,
	"/berth.inspect.v1.InspectService/StreamDump":     true,
	"/berth.memory.v1.MemoryService/GetState":         true,
	"/berth.memory.v1.MemoryService/GetTopologyHints": true,
	"/berth.topology.v1.TopologyService/Merge":        true,
	"/berth.topology.v1.TopologyService/SetPolicy":    true,
	"/v1.PodResourcesLister/GetAllocatableResources":  true,
	"/v1.PodResourcesLister/List":                     true,
}

// isCostly reports whether a call takes a slot. What an agent does for good takes none: it waits for nobody who looks.
func isCostly(method string, req any) bool {
	if !costly[method] || !slices.Contains(triable, method) {
		return costly[method]
	}
	r, ok := req.(requirer)
	return ok && r.GetDryRun()
}

// slots are how many costly calls of users other than root run at a time. A user has one of them at most, and users
// take turns.
type slots struct {
	mu    sync.Mutex
	free  int
	users map[user]*turn // those who have a slot or wait
	order []user         // those who wait, the next one first
}

// turn is what a user has of the slots.
type turn struct {
	running bool
	waiting []chan struct{}
}

func newSlots(n int) *slots { return &slots{free: n, users: map[user]*turn{}} }

// enter waits for a slot; leave gives it back. An error of class Exhausted says that too many calls of the user wait.
func (s *slots) enter(ctx context.Context, u user, who Peer) (leave func(), err error) {
	leave = func() { s.leave(u) }
	s.mu.Lock()
	t := s.users[u]
	if t == nil {
		t = &turn{}
		s.users[u] = t
	}
	if len(t.waiting) == maxQueued {
		s.mu.Unlock()
		err := errdefs.Exhaustedf("%d costly calls (dry runs, hints, lists, dumps) of %s wait for the one before them already", maxQueued, who).Coded(errdefs.TooManyCalls)
		err.RetryAfter = retryAfter
		return nil, err
	}
	ready := make(chan struct{})
	if t.waiting = append(t.waiting, ready); len(t.waiting) == 1 && !t.running {
		s.order = append(s.order, u)
	}
	s.admit()
	s.mu.Unlock()
	select {
	case <-ready:
		return leave, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	if i := slices.Index(t.waiting, ready); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
		s.tidy(u, t)
		s.mu.Unlock()
		return nil, context.Cause(ctx)
	}
	s.mu.Unlock()
	leave() // it was ready just now
	return nil, context.Cause(ctx)
}

// takeSlot waits until a call has a slot and its user has read enough of the earlier answers.
// While the user has not, others have the slot.
func (t *ticket) takeSlot(ctx context.Context) (leave func(), err error) {
	for {
		if err := t.awaitReading(ctx); err != nil {
			return nil, err
		}
		leave, err := t.slots.enter(ctx, t.user, t.who)
		if err != nil || t.load.answers.has() {
			return leave, err
		}
		leave()
	}
}

func (s *slots) leave(u user) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.users[u]
	t.running = false
	s.free++
	if len(t.waiting) > 0 {
		s.order = append(s.order, u)
	}
	s.tidy(u, t)
	s.admit()
}

// admit gives free slots to those whose turn it is. The caller holds mu.
func (s *slots) admit() {
	for s.free > 0 && len(s.order) > 0 {
		t := s.users[s.order[0]]
		s.order = s.order[1:]
		close(t.waiting[0])
		t.waiting, t.running = t.waiting[1:], true
		s.free--
	}
}

// tidy forgets a user who neither runs nor waits. The caller holds mu.
func (s *slots) tidy(u user, t *turn) {
	if len(t.waiting) > 0 {
		return
	}
	if i := slices.Index(s.order, u); i >= 0 {
		s.order = slices.Delete(s.order, i, i+1)
	}
	if !t.running {
		delete(s.users, u)
	}
}
