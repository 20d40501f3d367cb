package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"pgregory.net/rapid"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/managers/errdefs"
)

// TestSlots: a user has one at a time, users take turns, and too many calls are refused.
func TestSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		greedy, modest := user{id: 1}, user{id: 2}
		if err := s.enter(t.Context(), greedy, Peer{}); err != nil {
			t.Fatal(err)
		}
		var order []string
		release := make(chan struct{})
		enter := func(u user, name string) {
			go func() {
				if err := s.enter(t.Context(), u, Peer{UID: u.id}); err != nil {
					t.Error(err)
					return
				}
				<-release
				order = append(order, name)
				s.leave(u)
			}()
			synctest.Wait()
		}
		const queued = 8 // as docs/security.md promises
		for i := range queued {
			enter(greedy, fmt.Sprint("greedy ", i))
		}
		err := s.enter(t.Context(), greedy, Peer{UID: 1})
		fe := new(errdefs.Error)
		if !errors.As(err, &fe) || fe.Class != errdefs.Exhausted || fe.RetryAfter == 0 || fe.Code != "TOO_MANY_CALLS" {
			t.Errorf("one more than may wait: %v", err)
		}
		enter(modest, "modest")
		s.leave(greedy)
		for range queued + 1 {
			release <- struct{}{}
			synctest.Wait()
		}
		// greedy's next was let in before modest came, and the one after that behind modest.
		if at := slices.Index(order, "modest"); at > 1 {
			t.Errorf("order %q", order)
		}
		if len(s.users) != 0 || len(s.order) != 0 || s.free != 1 {
			t.Errorf("left: %v, %v, %d", s.users, s.order, s.free)
		}
	})
}

// TestSlotsGivenUp: a call that stops waiting takes no slot, and a paused call leaves
// the slot to others.
func TestSlotsGivenUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 17), 1, 60).Draw(rt, "steps")
		n := rapid.IntRange(1, 3).Draw(rt, "slots")
		synctest.Test(t, func(t *testing.T) {
			h := &slotHistory{slots: newSlots(n), begun: map[user]int{}, running: map[user]int{}}
			for _, step := range steps {
				switch i := step / 6; {
				case step < 6:
					h.begin(t.Context(), user{id: uint32(step % 3)})
				case len(h.calls) > 0 && i == 1:
					h.finish(step % len(h.calls))
				case len(h.calls) > 0: // pauses and resumes
					c := h.calls[step%len(h.calls)]
					go func() { c.toggle <- struct{}{} }()
				}
				synctest.Wait()
				h.check(t, n)
			}
			for len(h.calls) > 0 {
				h.finish(0)
			}
			synctest.Wait()
			if s := h.slots; len(s.users) != 0 || len(s.order) != 0 || s.free != n {
				t.Errorf("left: %v, %v, %d free", s.users, s.order, s.free)
			}
		})
	})
}

// slotHistory are calls that come for slots, pause, resume and go.
type slotHistory struct {
	slots *slots
	calls []*slotCall

	mu             sync.Mutex
	begun, running map[user]int // guarded by mu
}

type slotCall struct {
	user   user
	cancel context.CancelFunc
	toggle chan struct{}
}

func (h *slotHistory) count(of map[user]int, u user, by int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of[u] += by
}

func (h *slotHistory) begin(ctx context.Context, u user) {
	ctx, cancel := context.WithCancel(ctx)
	c := &slotCall{u, cancel, make(chan struct{})}
	h.calls = append(h.calls, c)
	go func() {
		if h.slots.enter(ctx, u, Peer{}) != nil {
			for range c.toggle {
			}
			return
		}
		h.count(h.begun, u, 1)
		h.count(h.running, u, 1)
		runs := true
		for range c.toggle {
			switch {
			case runs:
				h.count(h.running, u, -1)
				h.slots.pause(u)
				runs = false
			case h.slots.resume(ctx, u) == nil:
				h.count(h.running, u, 1)
				runs = true
			}
		}
		if runs {
			h.count(h.running, u, -1)
		}
		h.count(h.begun, u, -1)
		h.slots.leave(u)
	}()
}

// finish ends a call, which may wait.
func (h *slotHistory) finish(i int) {
	c := h.calls[i]
	h.calls = slices.Delete(h.calls, i, i+1)
	c.cancel()
	synctest.Wait() // it has taken what was sent
	close(c.toggle)
}

// check compares what runs with what may.
func (h *slotHistory) check(t *testing.T, n int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	total := 0
	for u, begun := range h.begun {
		if total += h.running[u]; begun > 1 {
			t.Errorf("user %v has begun %d", u, begun)
		}
	}
	if total > n || total+h.slots.free != n {
		t.Errorf("%d run, %d slots of %d are free", total, h.slots.free, n)
	}
	// No call waits while a slot is free.
	for u, turn := range h.slots.users {
		if h.slots.free > 0 && (turn.resuming != nil || len(turn.waiting) > 0 && turn.state == noSlot) {
			t.Errorf("user %v waits beside %d free slots", u, h.slots.free)
		}
	}
}

// TestCostlyMethods are there, and those that could be costly are looked at.
func TestCostlyMethods(t *testing.T) {
	t.Parallel()
	var names []string
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				names = append(names, "/"+string(s.FullName())+"/"+string(s.Methods().Get(j).Name()))
			}
		}
		return true
	})
	for name := range costly {
		if _, ok := access.RoleOf(name); !ok {
			t.Errorf("%s has no role", name)
		}
		if !slices.Contains(names, name) && name[:4] != "/v1." { // those are not linked into this test
			t.Errorf("there is no %s", name)
		}
	}
}

// TestRoom: what is taken never exceeds what there is, those who wait come in order, and
// who gives up takes nothing.
func TestRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &room{left: 10}
		if err := r.enter(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		var order []int
		wait := func(ctx context.Context, amount int) {
			go func() {
				if r.enter(ctx, amount) == nil {
					order = append(order, amount)
				}
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		wait(ctx, 10)
		wait(t.Context(), 3) // there is room, and another call before it
		wait(t.Context(), 2)
		if len(order) != 0 {
			t.Errorf("overtaken: %v", order)
		}
		cancel()
		synctest.Wait()
		if !slices.Equal(order, []int{3}) {
			t.Errorf("after the first gave up: %v", order)
		}
		r.leave(7)
		synctest.Wait()
		if !slices.Equal(order, []int{3, 2}) || r.left != 5 || len(r.waiting) != 0 {
			t.Errorf("in the end: %v, %d left", order, r.left)
		}
	})
}
