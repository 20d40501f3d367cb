package allocation_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

// model is what a reader knows that only follows Watch.
type model struct {
	revision uint64
	state    map[string]string
}

// resume opens a stream at the model's revision. What the stream begins with stands in
// place of what was known.
func (m *model) resume(b *bench) *reader {
	old := m.state
	m.state = map[string]string{}
	if m.revision > 0 {
		maps.Copy(m.state, old)
		delete(m.state, "resource "+gpu)
	}
	return b.watch(m.revision)
}

// take follows a message.
func (m *model) take(r *allocationv1.WatchResponse) {
	m.revision = r.GetRevision()
	for _, e := range r.GetEvents() {
		switch e := e.GetEvent().(type) {
		case *allocationv1.Event_Added:
			m.put(e.Added)
			for _, c := range e.Added.GetContainers() {
				for _, id := range c.GetContainerIds() {
					m.state["id "+id] = e.Added.GetUid()
				}
			}
		case *allocationv1.Event_Changed:
			m.put(e.Changed)
		case *allocationv1.Event_Removed:
			delete(m.state, "pod "+e.Removed.GetUid())
		case *allocationv1.Event_Bound:
			m.state["id "+e.Bound.GetContainerId()] = e.Bound.GetPodUid()
		case *allocationv1.Event_Unbound:
			delete(m.state, "id "+e.Unbound.GetContainerId())
		case *allocationv1.Event_SharedCpus:
			m.state["shared"] = e.SharedCpus.GetList()
		case *allocationv1.Event_Machine:
			m.state["offline"] = e.Machine.GetOfflineCpus().GetList()
		case *allocationv1.Event_DeviceResource:
			m.state["resource "+e.DeviceResource.GetName()] = fmt.Sprint(e.DeviceResource.GetAllocatable())
		}
	}
}

func (m *model) put(p *typesv1.PodAllocation) {
	text := ""
	for _, c := range p.GetContainers() {
		for _, claim := range c.GetClaims() {
			text += claim.GetCpu().GetCpus().GetList()
		}
	}
	m.state["pod "+p.GetUid()] = text
}

// truth is what a reader should know.
func truth(b *bench) map[string]string {
	view := b.ledger.View()
	state := map[string]string{
		"shared": view.SharedCPUs().String(), "offline": view.Machine().Offline().String(),
	}
	for p := range view.Pods() {
		text := ""
		for _, c := range p.Claims {
			text += c.CPUs.Set.String()
		}
		state["pod "+p.UID()] = text
	}
	for id := range view.Bindings() {
		state["id "+id.ID] = id.Owner.Pod
	}
	if r, ok := (inventory{b.inv}).Inventory().Resource(gpu); ok {
		state["resource "+gpu] = fmt.Sprint(r.Allocatable())
	}
	return state
}

// until reads messages up to a bookmark at a revision.
func (b *bench) until(r *reader, revision uint64) (messages []*allocationv1.WatchResponse) {
	b.t.Helper()
	for {
		m, err := r.Recv()
		if err != nil {
			b.t.Fatalf("%v, after %d messages", err, len(messages))
		}
		if len(m.GetEvents()) == 0 && !m.GetInitial() && m.GetRevision() == revision {
			return messages
		}
		messages = append(messages, m)
	}
}

// change does one thing at random.
func (b *bench) change(t *rapid.T, session device.Session) {
	view := b.ledger.View()
	uid := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "uid")
	_, known := view.Pod(uid)
	id := rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "id")
	owner := ledger.Owner{Pod: uid, Container: "main"}
	switch op := rapid.IntRange(0, 7).Draw(t, "op"); {
	case op <= 1:
		b.put(uid)
	case op <= 3: // CPUs that no other pod has
		first := 2 * int(uid[0]-'a')
		b.put(uid, ledgertest.Exclusive("main", cpuset.Of(first, first+rapid.IntRange(0, 1).Draw(t, "more")).String()))
	case op == 4 && known:
		b.commit(func(d *ledger.Draft) { d.RemovePod(uid) })
	case op == 5 && known:
		b.commit(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: id, Owner: owner}) })
	case op == 6:
		b.commit(func(d *ledger.Draft) { d.PutResource(ledger.SeenResource{Name: gpu}) })
	case op == 7:
		offline := cpuset.Of(rapid.IntRange(6, 7).Draw(t, "offline"))
		b.takeOffline(offline)
	default:
		b.inv.Listed(session, []device.Device{{ID: "g0", Healthy: rapid.Bool().Draw(t, "healthy")}}, time.Unix(1, 0))
	}
}

// takeOffline takes CPUs of the machine offline, and brings back all others.
func (b *bench) takeOffline(cpus cpuset.Set) {
	b.t.Helper()
	rules := b.ledger.View().Rules()
	var err error
	if rules.Machine, err = wholeMachine.Without(cpus); err != nil {
		b.t.Fatal(err)
	}
	if _, err = b.ledger.SetRules(b.ctx, rules); err != nil {
		b.t.Fatal(err)
	}
}

// TestResumeAtEveryPlace: a reader that stops after any message and comes back with its
// revision ends up knowing everything, and gets every commit after it once: also
// where commits, or what is there at first, come in parts.
func TestResumeAtEveryPlace(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := newLazyBench(t, math.MaxInt)
		b.history.Split(rapid.SampledFrom([]int{1, 200, 1 << 20}).Draw(rt, "longest"))
		commits := map[uint64][]string{}
		b.history.AfterEvents(func(revision uint64, events []*allocationv1.Event) {
			for _, e := range events {
				commits[revision] = append(commits[revision], text(e))
			}
		})
		session := b.inv.Registered(gpu, device.Options{}, time.Unix(1, 0))
		for range rapid.IntRange(1, 5).Draw(rt, "before") {
			b.change(rt, session)
		}
		first := b.put("d")
		check := func(m *model, place int) {
			if want := truth(b); !maps.Equal(m.state, want) {
				rt.Fatalf("resumed after %d messages: %v, want %v", place, m.state, want)
			}
		}
		initial := b.until(b.watch(0), first)
		for place := range len(initial) + 1 {
			m := &model{}
			m.resume(b)
			for _, r := range initial[:place] {
				m.take(r)
			}
			for _, r := range b.until(m.resume(b), first) {
				m.take(r)
			}
			check(m, place)
		}
		begin := &model{state: map[string]string{}}
		for _, r := range initial {
			begin.take(r)
		}
		for range rapid.IntRange(1, 12).Draw(rt, "after") {
			b.change(rt, session)
		}
		last := b.ledger.View().Revision()
		all := b.until(b.watch(first), last)
		for place := range len(all) + 1 {
			m := &model{revision: first, state: begin.state}
			m.resume(b)
			for _, r := range all[:place] {
				m.take(r)
			}
			after := m.revision
			var got, want []string
			for _, r := range b.until(m.resume(b), last) {
				if m.take(r); !r.GetInitial() {
					for _, e := range r.GetEvents() {
						got = append(got, text(e))
					}
				}
			}
			for revision := after + 1; revision <= last; revision++ {
				want = append(want, commits[revision]...)
			}
			if !slices.Equal(got, want) {
				rt.Fatalf("resumed at %d: %q, want %q", after, got, want)
			}
			check(m, place)
		}
	})
}

// TestWatchMissesNothing commits beside readers that come and go, each continuing
// from the last revision that it got.
func TestWatchMissesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1000)
	const commits = 300
	last := b.put("a")
	go func() {
		for i := range commits - 1 {
			uid := fmt.Sprintf("p%d", i%7)
			if i%3 == 2 {
				_, _ = b.ledger.Update(b.ctx, func(d *ledger.Draft) error { d.PutResource(ledger.SeenResource{Name: gpu}); return nil })
				continue
			}
			_, _ = b.ledger.Update(b.ctx, func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod(uid, "main")); return nil })
		}
	}()
	var seen []uint64
	for last < commits {
		ctx, cancel := context.WithCancel(b.ctx)
		s, err := b.client.Watch(ctx, &allocationv1.WatchRequest{FromRevision: last})
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			m, err := s.Recv()
			if err != nil {
				t.Fatalf("after revision %d: %v", last, err)
			}
			last = m.GetRevision()
			for _, e := range m.GetEvents() {
				if !m.GetInitial() {
					seen = append(seen, e.GetRevision())
				}
			}
			if last == commits {
				break
			}
		}
		cancel()
	}
	var want []uint64
	for revision := uint64(2); revision <= commits; revision++ {
		if revision%3 != 1 {
			want = append(want, revision)
		}
	}
	if !slices.Equal(seen, want) {
		t.Errorf("seen %v, want %v", seen, want)
	}
}

// TestLongCommits: a commit of many pods comes in messages that every client takes.
func TestLongCommits(t *testing.T) {
	t.Parallel()
	b := newBench(t, math.MaxInt)
	first := b.put("a")
	const pods = 5000
	last := b.commit(func(d *ledger.Draft) {
		for i := range pods {
			p := ledgertest.Pod(fmt.Sprintf("%0500d", i), "main")
			p.Pod.Name = p.UID()
			d.PutPod(p)
		}
	})
	told := 0
	messages := b.until(b.watch(first), last)
	for i, m := range messages {
		told += len(m.GetEvents())
		if size := proto.Size(m); size > 2<<20 {
			t.Errorf("message %d has %d bytes", i, size)
		}
		if want := m.GetRevision() == last; want != (i == len(messages)-1) {
			t.Errorf("message %d of %d has revision %d", i, len(messages), m.GetRevision())
		}
	}
	if told != pods || len(messages) < 4 {
		t.Errorf("%d pods in %d messages", told, len(messages))
	}
}

func TestWatchFilters(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	put := func(uid, namespace string, claims ...ledger.Claim) {
		p := ledgertest.With(ledgertest.Pod(uid, "main"), claims...)
		p.Pod.Namespace = namespace
		if uid == "a" {
			p.OwnedBy = "kubernetes"
		}
		b.commit(func(d *ledger.Draft) { d.PutPod(p) })
	}
	session := b.inv.Registered(gpu, device.Options{}, time.Unix(1, 0))
	b.inv.Listed(session, []device.Device{{ID: "g0", Healthy: true}}, time.Unix(1, 0))
	put("a", "one")
	put("b", "two", ledgertest.Devices("main", gpu, "g0"))
	all := func() []*allocationv1.WatchRequest {
		return []*allocationv1.WatchRequest{
			{Types: []allocationv1.EventType{allocationv1.EventType_EVENT_TYPE_SHARED_CPUS, allocationv1.EventType_EVENT_TYPE_REMOVED}},
			{Namespace: "one"},
			{Resource: gpu},
			{Resource: "example.com/nic", Types: []allocationv1.EventType{allocationv1.EventType_EVENT_TYPE_CHANGED,
				allocationv1.EventType_EVENT_TYPE_DEVICE_RESOURCE}},
			{Namespace: "two", Resource: gpu},
			{Owner: "kubernetes", Types: []allocationv1.EventType{
				allocationv1.EventType_EVENT_TYPE_ADDED, allocationv1.EventType_EVENT_TYPE_BOUND, allocationv1.EventType_EVENT_TYPE_CHANGED,
			}},
		}
	}
	wants := [][2][]string{
		{{"2 shared_cpus 0-7"}, {"4 shared_cpus 0-1,3-7", "6 removed b"}},
		{
			{"2 added a", "2 shared_cpus 0-7", "2 policy reserved ", "2 machine 0-7 without ",
				"2 resource example.com/gpu connected 1/1 []"},
			{"3 bound c1 a/main", "4 changed a", "4 shared_cpus 0-1,3-7"},
		},
		{
			{"2 added b", "2 shared_cpus 0-7", "2 policy reserved ", "2 machine 0-7 without ",
				"2 resource example.com/gpu connected 1/1 []"},
			{"4 shared_cpus 0-1,3-7", "5 changed b"}, // it held one before
		},
		{nil, nil},
		{
			{"2 added b", "2 shared_cpus 0-7", "2 policy reserved ", "2 machine 0-7 without ",
				"2 resource example.com/gpu connected 1/1 []"},
			{"4 shared_cpus 0-1,3-7", "5 changed b"},
		},
		{{"2 added a"}, {"3 bound c1 a/main", "4 changed a"}},
	}
	var streams []*reader
	for i, req := range all() {
		s := b.watchFor(req)
		if got := b.bookmark(s, 2); !slices.Equal(got, wants[i][0]) {
			t.Errorf("%v begins with %q, want %q", req, got, wants[i][0])
		}
		streams = append(streams, s)
	}
	b.commit(func(d *ledger.Draft) {
		d.Bind(ledger.Binding{ID: "c1", Owner: ledger.Owner{Pod: "a", Container: "main"}})
	})
	put("a", "one", ledgertest.Exclusive("main", "2"))
	put("b", "two")
	b.commit(func(d *ledger.Draft) { d.RemovePod("b") })
	b.put("c", ledgertest.Devices("main", "example.com/fpga", "f0"))
	last := b.commit(func(d *ledger.Draft) { d.PutResource(ledger.SeenResource{Name: gpu}) })
	later := all()
	for i, s := range streams {
		told := func(lines []string) []string {
			return slices.DeleteFunc(lines, func(l string) bool {
				var at int
				return matches(l, "%d bookmark", &at) || matches(l, "%d resource", &at)
			})
		}
		if got := told(b.bookmark(s, last)); !slices.Equal(got, wants[i][1]) {
			t.Errorf("%v goes on with %q, want %q", later[i], got, wants[i][1])
		}
		later[i].FromRevision = 2 // and a reader that comes back gets the same
		if got := told(b.bookmark(b.watchFor(later[i]), last)); !slices.Equal(got, wants[i][1]) {
			t.Errorf("%v comes back to %q, want %q", later[i], got, wants[i][1])
		}
	}
	_, err := b.watchFor(&allocationv1.WatchRequest{Types: []allocationv1.EventType{0, 99}}).Recv()
	rpctest.Failure{Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"types[0]", "types[1]"},
		Message: "request is invalid: types[0]: 0 is no type of event (and 1 more)"}.Check(t, err)
}

func matches(line, format string, to ...any) bool {
	n, err := fmt.Sscanf(line, format, to...)
	return n == len(to) && err == nil
}

// TestWatchReportsPolicyAndMachine: what the managers decide by, and CPUs that come and go.
func TestWatchReportsPolicyAndMachine(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	s := b.watch(b.put("a"))
	rules := b.ledger.View().Rules()
	rules.ReservedCPUs = cpuset.Of(0)
	if _, err := b.ledger.SetOverride(b.ctx, rules, &ledger.Override{Settings: []byte("{}"), SetAt: time.Unix(7, 0)}); err != nil {
		t.Fatal(err)
	}
	b.takeOffline(cpuset.Of(7))
	if _, err := b.ledger.SetOverride(b.ctx, b.ledger.View().Rules(), nil); err != nil {
		t.Fatal(err)
	}
	want := []string{"2 policy reserved 0 set at 7", "3 shared_cpus 0-6", "3 machine 0-7 without 7", "4 policy reserved 0"}
	got := slices.DeleteFunc(b.bookmark(s, 4), func(l string) bool { var at int; return matches(l, "%d bookmark", &at) })
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestCommitsComeTogether: commits that wait for a stream are one message, of which every
// event has the commit that it was in.
func TestCommitsComeTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	first := b.put("a")
	var want []string
	for i := range 5 {
		uid := fmt.Sprint("p", i)
		want = append(want, fmt.Sprintf("%d added %s", b.put(uid), uid))
	}
	last := b.commit(func(d *ledger.Draft) { d.PutResource(ledger.SeenResource{Name: gpu}) })
	messages := b.until(b.watch(first), last)
	got := messages[len(messages)-1]
	if len(messages) != 2 || got.GetRevision() != last || !slices.Equal(lines(got), want) {
		t.Errorf("%d messages, the last one at %d: %q, want %q at %d", len(messages), got.GetRevision(), lines(got), want, last)
	}
}
