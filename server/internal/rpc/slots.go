package rpc

import (
	"context"
	"slices"
	"sync"

	"github.com/berthd/berth/managers/errdefs"
)

// maxQueued is how many costly calls of one user wait.
const maxQueued = 8

// costly are the calls that use more processor time than others, by full name: trial decisions
// about a pod, and reads of all pods. A triable method is costly only as a trial.
var costly = map[string]bool{
	"/berth.admission.v1.AdmissionService/Admit":      true,
	"/berth.admission.v1.AdmissionService/Defragment": true,
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
	"/berth.fit.v1.FitService/Fit":                    true,
	"/berth.fit.v1.FitService/GetFreeResources":       true,
	"/berth.inspect.v1.InspectService/Check":          true,
	"/berth.inspect.v1.InspectService/Dump":           true,
	"/berth.inspect.v1.InspectService/Export":         true,
	"/berth.inspect.v1.InspectService/GetTrace":       true,
	"/berth.inspect.v1.InspectService/Import":         true,
	"/berth.inspect.v1.InspectService/ListHistory":    true,
	"/berth.inspect.v1.InspectService/StreamBundle":   true,
	"/berth.inspect.v1.InspectService/StreamDump":     true,
	"/berth.memory.v1.MemoryService/GetState":         true,
	"/berth.memory.v1.MemoryService/GetTopologyHints": true,
	"/berth.topology.v1.TopologyService/Merge":        true,
	"/berth.topology.v1.TopologyService/SetPolicy":    true,
	"/v1.PodResourcesLister/GetAllocatableResources":  true,
	"/v1.PodResourcesLister/List":                     true,
}

// isCostly reports whether a call needs a slot. An agent's changes need none, so they never wait
// for readers.
func isCostly(method string, req any) bool {
	if !costly[method] || !slices.Contains(triable, method) {
		return costly[method]
	}
	r, ok := req.(requirer)
	return ok && r.GetDryRun()
}

// slots limit the number of simultaneous costly calls of users other than root. A user has at
// most one call that has begun, and users take turns. A call that waits for something other than
// a processor is paused. Other users can have its slot, and its user begins no other call.
type slots struct {
	quiet quiet

	mu    sync.Mutex
	free  int
	users map[user]*turn // users with a call that has begun or waits
	order []user         // users that wait for a slot, the next one first
}

// turn is what a user has of the slots.
type turn struct {
	state    slotState
	resuming chan struct{} // of the paused call, if it continues; closed when it has a slot
	waiting  []chan struct{}
}

// slotState is what a call has, or the one that a user has begun.
type slotState int

const (
	noSlot slotState = iota // the call has not begun
	hasSlot
	pausedSlot
)

func newSlots(n int) *slots { return &slots{free: n, users: map[user]*turn{}} }

// enter waits until a call may begin, with a slot. leave ends it. An error of class Exhausted
// means that too many calls of the user wait.
func (s *slots) enter(ctx context.Context, u user, who Peer) error {
	s.mu.Lock()
	t := s.users[u]
	if t == nil {
		t = &turn{}
		s.users[u] = t
	}
	if len(t.waiting) == maxQueued {
		s.mu.Unlock()
		err := errdefs.Exhaustedf("%d costly calls (dry runs, hints, lists, dumps) of %s wait for the one before them already", maxQueued,
			who).Coded(errdefs.TooManyCalls)
		err.RetryAfter = retryAfter
		return err
	}
	ready := make(chan struct{})
	if t.waiting = append(t.waiting, ready); len(t.waiting) == 1 && t.state == noSlot {
		s.order = append(s.order, u)
	}
	s.admit()
	s.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(t.waiting, ready); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
		s.tidy(u, t)
	} else { // it was ready just now
		s.end(u, t)
	}
	return context.Cause(ctx)
}

// leave ends the call of a user that has begun.
func (s *slots) leave(u user) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(u, s.users[u])
}

// end is leave for callers that hold mu.
func (s *slots) end(u user, t *turn) {
	if t.state == hasSlot {
		s.free++
	}
	t.state = noSlot
	if len(t.waiting) > 0 {
		s.order = append(s.order, u)
	}
	s.tidy(u, t)
	s.admit()
}

// pause gives the slot of a user's call to others until it resumes or ends.
func (s *slots) pause(u user) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[u].state = pausedSlot
	s.free++
	s.admit()
}

// resume waits for a slot for the paused call of a user. It stays paused if ctx ends.
func (s *slots) resume(ctx context.Context, u user) error {
	s.mu.Lock()
	t, ready := s.users[u], make(chan struct{})
	t.resuming = ready
	s.order = append(s.order, u)
	s.admit()
	s.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.resuming == nil { // it was ready just now
		return nil
	}
	t.resuming = nil
	s.tidy(u, t)
	return context.Cause(ctx)
}

// admit gives free slots to the next users. The caller holds mu.
func (s *slots) admit() {
	for s.free > 0 && len(s.order) > 0 {
		t := s.users[s.order[0]]
		s.order = s.order[1:]
		if t.resuming != nil {
			close(t.resuming)
			t.resuming = nil
		} else {
			close(t.waiting[0])
			t.waiting = t.waiting[1:]
		}
		t.state = hasSlot
		s.free--
	}
}

// tidy removes a user's entries that are no longer needed. The caller holds mu.
func (s *slots) tidy(u user, t *turn) {
	waits := t.resuming != nil || t.state == noSlot && len(t.waiting) > 0
	if i := slices.Index(s.order, u); i >= 0 && !waits {
		s.order = slices.Delete(s.order, i, i+1)
	}
	if t.state == noSlot && len(t.waiting) == 0 {
		delete(s.users, u)
	}
}

// takeSlot waits until a call has a slot, and its user has read enough of the earlier answers. While the user has not,
// others have the slot. leave restores what the call had before.
func (t *ticket) takeSlot(ctx context.Context) (leave func(), err error) {
	switch t.slotState() {
	case hasSlot:
		return func() {}, nil
	case pausedSlot:
		return t.pauseSlot, t.resumeSlot(ctx)
	}
	t.endTurn()
	for {
		if err := t.awaitReading(ctx); err != nil {
			return nil, err
		}
		if err := t.slots.enter(ctx, t.user, t.who); err != nil {
			return nil, err
		}
		t.setSlot(hasSlot, noSlot)
		err := t.slots.quiet.await(ctx)
		if err == nil && t.load.answers.has() {
			return t.leaveSlot, nil
		}
		if t.leaveSlot(); err != nil {
			return nil, err
		}
	}
}

func (t *ticket) slotState() slotState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.slot
}

// setSlot notes what the call has now, if it had one of from before.
func (t *ticket) setSlot(to slotState, from ...slotState) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(from, t.slot) {
		return false
	}
	t.slot = to
	return true
}

// leaveSlot lets the next costly call of the user begin. It may be called again.
func (t *ticket) leaveSlot() {
	if t.setSlot(noSlot, hasSlot, pausedSlot) {
		t.slots.leave(t.user)
	}
}

// pauseSlot lets others have the slot, if the call has one.
func (t *ticket) pauseSlot() {
	if t.setSlot(pausedSlot, hasSlot) {
		t.slots.pause(t.user)
	}
}

// resumeSlot waits for a slot, if the call is paused.
func (t *ticket) resumeSlot(ctx context.Context) error {
	if t.slotState() != pausedSlot {
		return nil
	}
	if err := t.slots.resume(ctx, t.user); err != nil {
		return err
	}
	t.setSlot(hasSlot, pausedSlot)
	return t.slots.quiet.await(ctx)
}
