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

	"github.com/berthd/berth/managers/errdefs"
)

// TestSlots: a user has one at a time, users take turns, and who asks for too much is told.
func TestSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		greedy, modest := user{id: 1}, user{id: 2}
		first, err := s.enter(t.Context(), greedy, Peer{})
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		release := make(chan struct{})
		enter := func(u user, name string) {
			go func() {
				leave, err := s.enter(t.Context(), u, Peer{UID: u.id})
				if err != nil {
					t.Error(err)
					return
				}
				<-release
				order = append(order, name)
				leave()
			}()
			synctest.Wait()
		}
		for i := range maxQueued {
			enter(greedy, fmt.Sprint("greedy ", i))
		}
		_, err = s.enter(t.Context(), greedy, Peer{UID: 1})
		fe := new(errdefs.Error)
		if !errors.As(err, &fe) || fe.Class != errdefs.Exhausted || fe.RetryAfter == 0 {
			t.Errorf("one more than may wait: %v", err)
		}
		enter(modest, "modest")
		first()
		for range maxQueued + 1 {
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

// TestSlotsGivenUp: whoever stops waiting takes nothing along.
func TestSlotsGivenUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 11), 1, 40).Draw(rt, "steps")
		n := rapid.IntRange(1, 3).Draw(rt, "slots")
		synctest.Test(t, func(t *testing.T) {
			s := newSlots(n)
			type call struct {
				u      user
				cancel context.CancelFunc
				leave  chan struct{}
				in     bool
			}
			var calls []*call
			var mu sync.Mutex // guards running and in
			running := map[user]int{}
			count := func(c *call, in bool, by int) {
				mu.Lock()
				defer mu.Unlock()
				c.in = in
				running[c.u] += by
			}
			for _, step := range steps {
				switch u := (user{id: uint32(step % 3)}); {
				case step < 6:
					ctx, cancel := context.WithCancel(t.Context())
					c := &call{u: u, cancel: cancel, leave: make(chan struct{})}
					calls = append(calls, c)
					go func() {
						leave, err := s.enter(ctx, u, Peer{})
						if err != nil {
							return
						}
						count(c, true, 1)
						<-c.leave
						count(c, false, -1)
						leave()
					}()
				case len(calls) > 0:
					c := calls[step%len(calls)]
					calls = slices.DeleteFunc(calls, func(o *call) bool { return o == c })
					if step%2 == 0 {
						c.cancel()
					}
					close(c.leave)
				}
				synctest.Wait()
				total := 0
				for u, n := range running {
					if total += n; n > 1 {
						t.Errorf("user %v runs %d", u, n)
					}
				}
				if total > n {
					t.Errorf("%d run, there are %d slots", total, n)
				}
				// Nobody waits while a slot is free for them.
				for u, turn := range s.users {
					if s.free > 0 && len(turn.waiting) > 0 && !turn.running {
						t.Errorf("user %v waits beside %d free slots", u, s.free)
					}
				}
			}
			for _, c := range calls {
				c.cancel()
				close(c.leave)
			}
			synctest.Wait()
			if len(s.users) != 0 || len(s.order) != 0 || s.free != n {
				t.Errorf("left: %v, %v, %d free", s.users, s.order, s.free)
			}
		})
	})
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
		if _, ok := RoleOf(name); !ok {
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
		wait(t.Context(), 3) // there is room, and somebody before it
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
