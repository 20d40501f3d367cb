package allocation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/internal/rpc"
)

// newReader is a stream that ends when it has the initial state.
type newReader struct {
	grpc.ServerStreamingServer[allocationv1.WatchResponse]
	ctx      context.Context
	sending  func(*rpc.Shared) // before a message of the initial state is read
	added    map[string]bool
	revision uint64
}

var errServed = errors.New("has the initial state")

func (s *newReader) Context() context.Context { return s.ctx }

func (s *newReader) Send(*allocationv1.WatchResponse) error { return errServed }

func (s *newReader) SendMsg(m any) error {
	shared, ok := m.(*rpc.Shared)
	if !ok {
		return fmt.Errorf("%T in the initial state", m)
	}
	s.sending(shared)
	if err := s.ctx.Err(); err != nil {
		return err
	}
	var got allocationv1.WatchResponse
	proto.Merge(&got, shared)
	if !got.GetInitial() || s.revision != 0 {
		return fmt.Errorf("revision %d, initial %v, after revision %d", got.GetRevision(), got.GetInitial(), s.revision)
	}
	s.revision = got.GetRevision()
	for _, e := range got.GetEvents() {
		if p := e.GetAdded(); p != nil {
			s.added[p.GetUid()] = true
		}
	}
	return nil
}

// sameDevices has reported nothing, and stays the same.
type sameDevices struct{ *device.Snapshot }

func (d sameDevices) Inventory() *device.Snapshot { return d.Snapshot }

// watched is a service over a ledger with pods.
type watched struct {
	*service
	t      *testing.T
	ledger *ledger.Ledger
}

func newWatched(t *testing.T, pods int) watched {
	t.Helper()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
	devices := sameDevices{&device.Snapshot{}}
	h := NewHistory(1000, devices)
	h.Start(l.View())
	l.Follow(h.Committed)
	parts := Parts{Ledger: history.Ledger{Ledger: l}, Inventory: devices, History: h}
	w := watched{&service{Parts: parts, starts: starts{root: rootRoom, user: userRoom}}, t, l}
	w.put(0, pods)
	return w
}

// put admits pods of three containers.
func (w watched) put(from, to int) {
	w.t.Helper()
	if _, err := w.ledger.Update(w.t.Context(), func(d *ledger.Draft) error {
		for i := range to - from {
			p := ledgertest.Pod(fmt.Sprint("pod-", from+i), "main", "side", "proxy")
			p.Claims = nil
			d.PutPod(p)
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
}

// held returns the bytes that parts of root's streams take.
func (w watched) held() int {
	w.starts.mu.Lock()
	r := w.starts.users[""]
	w.starts.mu.Unlock()
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// read is a whole stream; it returns what it was served.
func (w watched) read(ctx context.Context, sending func(*rpc.Shared)) (*newReader, error) {
	s := &newReader{ctx: ctx, sending: sending, added: map[string]bool{}}
	err := w.Watch(&allocationv1.WatchRequest{}, s)
	return s, err
}

// TestNewReadersShareTheState: however many readers come at once, each part of the state is
// encoded once, and nothing is left of it afterwards.
func TestNewReadersShareTheState(t *testing.T) {
	t.Parallel()
	const pods, readers = 1000, 200
	w := newWatched(t, pods)
	var mu sync.Mutex
	made, bytes := map[*rpc.Shared]bool{}, 0
	var arrived, ended sync.WaitGroup
	arrived.Add(readers)
	for range readers {
		ended.Go(func() {
			first := true
			s, err := w.read(t.Context(), func(m *rpc.Shared) {
				if first {
					arrived.Done()
					arrived.Wait()
					first = false
				}
				mu.Lock()
				defer mu.Unlock()
				if !made[m] {
					made[m] = true
					bytes += m.Len()
				}
			})
			if !errors.Is(err, errServed) || len(s.added) != pods || s.revision != w.ledger.View().Revision() {
				t.Errorf("%v; %d pods, revision %d", err, len(s.added), s.revision)
			}
		})
	}
	ended.Wait()
	if want := (pods + partPods - 1) / partPods; len(made) != want {
		t.Errorf("%d messages were encoded, want %d", len(made), want)
	}
	if bytes == 0 || bytes > rootRoom {
		t.Errorf("%d bytes were encoded", bytes)
	}
	if len(w.starts.users) != 0 {
		t.Errorf("%d bytes are kept without a reader", w.held())
	}
}

// TestNewReadersWaitForRoom: readers of many revisions that do not read take no more than their
// room. The others wait, and are served when these end or read on.
func TestNewReadersWaitForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pods, readers, limit = 100, 40, 3 * partBytes
		w := newWatched(t, pods)
		w.starts.root = limit
		release, most, sending, served := make(chan struct{}), 0, 0, 0
		var mu sync.Mutex
		stuck, cancel := context.WithCancel(t.Context())
		defer cancel()
		var ended sync.WaitGroup
		for i := range readers {
			ctx := t.Context()
			if i%2 == 0 {
				ctx = stuck
			}
			want := pods + i
			ended.Go(func() {
				s, err := w.read(ctx, func(*rpc.Shared) {
					mu.Lock()
					sending++
					most = max(most, w.held())
					mu.Unlock()
					select {
					case <-release:
					case <-ctx.Done():
					}
				})
				if ctx == stuck {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("ended with %v", err)
					}
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if served++; !errors.Is(err, errServed) || len(s.added) != want {
					t.Errorf("%v; %d pods, want %d", err, len(s.added), want)
				}
			})
			synctest.Wait() // it has its view
			w.put(want, want+1)
		}
		synctest.Wait()
		if sending == 0 || sending == readers {
			t.Errorf("%d of %d streams send", sending, readers)
		}
		cancel()
		synctest.Wait()
		close(release)
		ended.Wait()
		if most == 0 || most > limit {
			t.Errorf("streams held %d bytes, want at most %d", most, limit)
		}
		if served != readers/2 || len(w.starts.users) != 0 {
			t.Errorf("%d readers were served; %d bytes are kept without a reader", served, w.held())
		}
	})
}

// TestNewReadersOfOtherUsers: who reads nothing delays the streams of no other user.
func TestNewReadersOfOtherUsers(t *testing.T) {
	t.Parallel()
	s := starts{root: rootRoom, user: partBytes}
	hostile, leave := s.enter("user 1")
	defer leave()
	st, end := hostile.open(stateKey{filter: "a"}, func() *state { return &state{} })
	defer end()
	taken, err := hostile.pin(t.Context(), st, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer hostile.unpin(taken)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := hostile.pin(canceled, st, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("a second part has room: %v", err)
	}
	for _, user := range []string{"", "user 2"} {
		r, leave := s.enter(user)
		st, end := r.open(stateKey{filter: "a"}, func() *state { return &state{} })
		p, err := r.pin(canceled, st, 0)
		if err != nil {
			t.Fatalf("%q: %v", user, err)
		}
		r.unpin(p)
		end()
		if leave(); r.held != 0 {
			t.Errorf("%q holds %d bytes", user, r.held)
		}
	}
}

// TestPartIsForAllWhoWaitForIt: streams that wait for the same part get it together, whoever waits between them for
// another part, and those that need room get it in the order of their coming.
func TestPartIsForAllWhoWaitForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := starts{user: partBytes}
		r, leave := s.enter("user 1")
		defer leave()
		st, end := r.open(stateKey{}, func() *state { return &state{} })
		defer end()
		taken, err := r.pin(t.Context(), st, 0)
		if err != nil {
			t.Fatal(err)
		}
		var ended sync.WaitGroup
		var mu sync.Mutex
		got := map[string]*part{}
		given := func() (names []string) {
			mu.Lock()
			defer mu.Unlock()
			return slices.Sorted(maps.Keys(got))
		}
		wait := func(ctx context.Context, name string, index int) {
			ended.Go(func() {
				p, err := r.pin(ctx, st, index)
				if err != nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				got[name] = p
			})
			synctest.Wait()
		}
		quits, quit := context.WithCancel(t.Context())
		wait(quits, "quits", 9)
		wait(t.Context(), "first", 1)
		wait(t.Context(), "between", 2)
		wait(t.Context(), "with the first", 1)
		if names := given(); len(names) > 0 {
			t.Errorf("%q need no room", names)
		}
		quit()
		synctest.Wait()
		r.unpin(taken)
		synctest.Wait()
		if names := given(); !slices.Equal(names, []string{"first", "with the first"}) {
			t.Errorf("the part is given to %q", names)
		}
		wait(t.Context(), "later", 1)
		wait(t.Context(), "last", 3)
		if names := given(); !slices.Equal(names, []string{"first", "later", "with the first"}) {
			t.Errorf("the part is given to %q", names)
		}
		for _, name := range []string{"first", "with the first", "later", "between", "last"} {
			if got[name] == nil {
				t.Fatalf("%q has no part", name)
			}
			r.unpin(got[name])
			synctest.Wait()
		}
		ended.Wait()
	})
}
