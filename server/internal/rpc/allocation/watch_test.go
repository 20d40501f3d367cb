package allocation_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/internal/rpc/allocation"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

const gpu = "example.com/gpu"

// bench is the service over a ledger and an inventory that a test changes.
// wholeMachine is the machine of a bench, with all CPUs online.
var wholeMachine = machinetest.Build("1s1n8c1t")

type bench struct {
	t       *testing.T
	ctx     context.Context
	ledger  *ledger.Ledger
	inv     *device.Inventory
	history *allocation.History
	client  allocationv1.AllocationServiceClient
}

func newBench(t *testing.T, limit int) *bench {
	t.Helper()
	b := newLazyBench(t, limit)
	b.run()
	return b
}

// run has the history's task make events until the test ends.
func (b *bench) run() {
	b.t.Helper()
	ctx, end := context.WithCancel(b.ctx)
	ended := make(chan error, 1)
	go func() { ended <- b.history.Run(ctx) }()
	b.t.Cleanup(func() {
		if end(); <-ended != nil {
			b.t.Error("the history's task does not end well")
		}
	})
}

// newLazyBench is a bench where events are made when they are read.
func newLazyBench(t *testing.T, limit int) *bench {
	t.Helper()
	return newBenchOf(t, limit, journal.Options{Journal: ledgertest.NewJournal(), Rules: ledger.Rules{Machine: wholeMachine}})
}

// newBenchOf is newLazyBench on a ledger.
func newBenchOf(t *testing.T, limit int, o journal.Options) *bench {
	t.Helper()
	b := &bench{t: t, inv: device.NewInventory(nil, time.Unix(0, 0))}
	var cancel context.CancelFunc
	b.ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	b.history = allocation.NewHistory(limit, inventory{b.inv})
	b.ledger, _ = ledgertest.Open(t, o)
	b.ledger.Follow(b.history.Committed)
	b.history.Start(b.ledger.View())
	b.client = allocationv1.NewAllocationServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		allocationv1.RegisterAllocationServiceServer(s, allocation.New(allocation.Config{}, allocation.Parts{
			Engine: &engine{ledger: b.ledger}, Ledger: history.Ledger{Ledger: b.ledger}, Paths: paths{},
			Inventory: inventory{b.inv}, History: b.history,
		}))
	}))
	return b
}

// commit changes the ledger and returns the revision.
func (b *bench) commit(change func(d *ledger.Draft)) uint64 {
	b.t.Helper()
	view, err := b.ledger.Update(b.ctx, func(d *ledger.Draft) error { change(d); return nil })
	if err != nil {
		b.t.Fatal(err)
	}
	return view.Revision()
}

func (b *bench) put(uid string, claims ...ledger.Claim) uint64 {
	b.t.Helper()
	return b.commit(func(d *ledger.Draft) { d.PutPod(ledgertest.With(ledgertest.Pod(uid, "main"), claims...)) })
}

// reader is a stream of which a test reads events one by one: line by line.
type reader struct {
	grpc.ServerStreamingClient[allocationv1.WatchResponse]
	lines []string
	// revision of the last message, and whether one was marked as current.
	revision uint64
	caughtUp bool
}

func (b *bench) watch(from uint64) *reader {
	b.t.Helper()
	return b.watchFor(&allocationv1.WatchRequest{FromRevision: from})
}

func (b *bench) watchFor(req *allocationv1.WatchRequest) *reader {
	b.t.Helper()
	s, err := b.client.Watch(b.ctx, req)
	if err != nil {
		b.t.Fatal(err)
	}
	return &reader{ServerStreamingClient: s}
}

// next reads an event as a line.
func (r *reader) next() (string, error) {
	for len(r.lines) == 0 {
		m, err := r.Recv()
		if err != nil {
			return "", err
		}
		r.lines, r.revision = lines(m), m.GetRevision()
	}
	line := r.lines[0]
	r.lines = r.lines[1:]
	return line, nil
}

// lines prints the events of a message, each in one line.
func lines(m *allocationv1.WatchResponse) (out []string) {
	for _, e := range m.GetEvents() {
		out = append(out, fmt.Sprintf("%d %s", e.GetRevision(), text(e)))
	}
	if len(out) == 0 && !m.GetInitial() {
		out = append(out, fmt.Sprintf("%d bookmark", m.GetRevision()))
	}
	return out
}

func text(e *allocationv1.Event) string {
	binding := func(b *allocationv1.ContainerBinding) string {
		return fmt.Sprintf("%s %s/%s", b.GetContainerId(), b.GetPodUid(), b.GetContainerName())
	}
	switch e := e.GetEvent().(type) {
	case *allocationv1.Event_Added:
		return "added " + e.Added.GetUid()
	case *allocationv1.Event_Removed:
		return "removed " + e.Removed.GetUid()
	case *allocationv1.Event_Changed:
		return "changed " + e.Changed.GetUid()
	case *allocationv1.Event_Bound:
		return "bound " + binding(e.Bound)
	case *allocationv1.Event_Unbound:
		return "unbound " + binding(e.Unbound)
	case *allocationv1.Event_SharedCpus:
		return "shared_cpus " + e.SharedCpus.GetList()
	case *allocationv1.Event_DeviceResource:
		r := e.DeviceResource
		return fmt.Sprintf("resource %s %s %d/%d %v", r.GetName(), convert.Word(r.GetPluginState()), r.GetCapacity(), r.GetAllocatable(),
			r.GetUnhealthyDevices())
	case *allocationv1.Event_DeviceHealth:
		d := e.DeviceHealth
		var holders []string
		for _, h := range d.GetHolders() {
			holders = append(holders, convert.OwnerOf(h).String())
		}
		return fmt.Sprintf("device_health %s %s %q %v", d.GetResource(), d.GetDevice().GetId(), convert.Word(d.GetDevice().GetHealth()),
			holders)
	case *allocationv1.Event_Policy:
		text := "policy reserved " + e.Policy.GetReservedCpus().GetList()
		if e.Policy.GetOverridden() {
			text += fmt.Sprintf(" set at %d", e.Policy.GetSetTime().GetSeconds())
		}
		return text
	case *allocationv1.Event_Machine:
		return "machine " + e.Machine.GetCpus().GetList() + " without " + e.Machine.GetOfflineCpus().GetList()
	}
	return "nothing"
}

// expect reads exactly these events.
func (b *bench) expect(s *reader, want ...string) {
	b.t.Helper()
	for i, w := range want {
		got, err := s.next()
		if err != nil {
			b.t.Fatalf("event %d: %v, want %q", i, err, w)
		}
		if got != w {
			b.t.Fatalf("event %d: %q, want %q", i, got, w)
		}
	}
}

// bookmark reads up to a revision, to a bookmark for the first time, and returns what
// came before.
func (b *bench) bookmark(s *reader, revision uint64) (lines []string) {
	b.t.Helper()
	for {
		line, err := s.next()
		if err != nil {
			b.t.Fatalf("%v, after %q", err, lines)
		}
		if strings.HasSuffix(line, " bookmark") {
			s.caughtUp = true
		} else {
			lines = append(lines, line)
		}
		if len(s.lines) == 0 && s.caughtUp && s.revision >= revision {
			return lines
		}
	}
}

// TestCommitsMakeNoEvents: what commits have left to do is done for a reader, and
// not before, however much it is.
func TestCommitsMakeNoEvents(t *testing.T) {
	t.Parallel()
	b := newLazyBench(t, 3000)
	var made atomic.Int64
	b.history.BeforeEvents(func(uint64) { made.Add(1) })
	first := b.put("a")
	var want []string
	for n := range allocation.LongQueue - 1 {
		revision := b.put("a", ledgertest.Exclusive("main", fmt.Sprint(n%7+1)))
		want = append(want, fmt.Sprintf("%d changed a", revision))
	}
	if n := made.Load(); n != 0 {
		t.Errorf("commits have made the events of %d", n)
	}
	got := b.bookmark(b.watch(first), b.ledger.View().Revision())
	if got = slices.DeleteFunc(got, func(l string) bool { return strings.Contains(l, "shared_cpus") }); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if n := made.Load(); n != allocation.LongQueue {
		t.Errorf("the events of %d commits were made, want those of %d", n, allocation.LongQueue)
	}
	b.history.Close()
	if err := b.history.Run(canceled(b.ctx)); err != nil {
		t.Error(err)
	}
}

// TestCommitsWakeNobodyElse: without any reader a commit wakes no goroutine, until there is
// a pile for the task.
func TestCommitsWakeNobodyElse(t *testing.T) {
	t.Parallel()
	b := newLazyBench(t, 1000)
	moved := b.history.Moved()
	for range allocation.Pile - 1 {
		b.put("a")
	}
	if b.history.Due() {
		t.Error("the task is woken before there is a pile")
	}
	b.put("a")
	if !b.history.Due() {
		t.Error("the task is not woken by a pile")
	}
	select {
	case <-moved:
		t.Error("readers are woken where there are none")
	default:
	}
}

// TestRunMakesEvents: without any reader, pile by pile.
func TestRunMakesEvents(t *testing.T) {
	t.Parallel()
	b := newLazyBench(t, 1000)
	made := make(chan uint64, 4*allocation.Pile)
	b.history.BeforeEvents(func(revision uint64) { made <- revision })
	for range allocation.Pile { // before the task, and after it
		b.put("a")
	}
	b.run()
	for want := range uint64(3 * allocation.Pile) {
		select {
		case revision := <-made:
			if revision != want+1 {
				t.Fatalf("the events of revision %d were made, want those of %d", revision, want+1)
			}
		case <-b.ctx.Done():
			t.Fatal("nobody makes events")
		}
		b.put("a")
	}
}

// TestCommitsWaitForNobodysEvents: while events are made, commits come and go,
// and their changes are sent in order after that, without another commit.
func TestCommitsWaitForNobodysEvents(t *testing.T) {
	t.Parallel()
	for _, reads := range []bool{false, true} {
		t.Run(fmt.Sprint("reads=", reads), func(t *testing.T) {
			t.Parallel()
			const last = 102
			b := newLazyBench(t, 1000)
			begun, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			wait := func(event <-chan struct{}, what string) {
				select {
				case <-event:
				case <-b.ctx.Done():
					t.Error(what)
				}
			}
			b.history.BeforeEvents(func(revision uint64) {
				switch revision {
				case 2:
					close(begun)
					wait(release, "commits wait for events")
				case last:
					close(ended)
				}
			})
			first := 2
			if !reads {
				first = allocation.Pile
			}
			var want []string
			for range first {
				want = append(want, fmt.Sprintf("%d changed a", b.put("a")))
			}
			want = want[1:] // the first is no change
			var s *reader
			if reads {
				s = b.watch(1)
			} else {
				b.run()
			}
			wait(begun, "nobody makes events")
			for range last - first {
				want = append(want, fmt.Sprintf("%d changed a", b.put("a")))
			}
			close(release)
			wait(ended, "nobody makes the events of what came meanwhile")
			if !reads {
				s, want = b.watch(1), append(want, fmt.Sprintf("%d bookmark", last))
			} else {
				want = slices.Insert(want, 1, "2 bookmark") // then the reader had caught up
			}
			b.expect(s, want...)
		})
	}
}

// TestCommitsThatWaitTooLong: only so many commits wait for their events, and who
// wants to know of the ones before them hears that.
func TestCommitsThatWaitTooLong(t *testing.T) {
	t.Parallel()
	b := newLazyBench(t, allocation.LongQueue+16)
	for range 2 { // so often that events of both sides of the gap would be cut
		for range allocation.LongQueue/2 + 5 {
			b.put("a")
		}
		if err := b.history.Read(1); err != nil {
			t.Fatal(err)
		}
	}
	first := b.ledger.View().Revision()
	var want []string
	for range allocation.LongQueue + 5 {
		want = append(want, fmt.Sprintf("%d changed a", b.put("a")))
	}
	last := b.ledger.View().Revision()
	for _, from := range []uint64{1, first - 1, first, first + 4} {
		_, err := b.watch(from).Recv()
		rpctest.Failure{Code: codes.OutOfRange, Reason: "REVISION_COMPACTED", Message: fmt.Sprintf(
			"events after revision %d are not kept any more, only those after %d: list, and watch from the list's revision", from,
			first+5)}.Check(t, err)
	}
	if got := b.bookmark(b.watch(first+5), last); !slices.Equal(got, want[5:]) {
		t.Errorf("%q\nwant %q", got, want[5:])
	}
	b.put("a") // and it continues as before
	b.expect(b.watch(last), fmt.Sprintf("%d changed a", last+1), fmt.Sprintf("%d bookmark", last+1))
	b.expect(b.watch(first+5), want[5])
}

// canceled is a context that has ended.
func canceled(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

func TestWatchFromTheBeginning(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	b.put("b")
	b.put("a", ledgertest.Exclusive("main", "2-3"))
	s := b.watch(0)
	b.expect(s, "2 added a", "2 added b", "2 shared_cpus 0-1,4-7", "2 policy reserved ", "2 machine 0-7 without ", "2 bookmark")
	b.commit(func(d *ledger.Draft) {
		d.Bind(ledger.Binding{ID: "c1", Owner: ledger.Owner{Pod: "a", Container: "main"}})
	})
	b.expect(s, "3 bound c1 a/main")
	b.put("a", ledgertest.Exclusive("main", "3-4"))
	b.expect(s, "4 changed a", "4 shared_cpus 0-2,5-7")
	b.commit(func(d *ledger.Draft) { d.RemovePod("a") })
	b.expect(s, "5 unbound c1 a/main", "5 removed a", "5 shared_cpus 0-7")
	b.commit(func(d *ledger.Draft) { d.PutResource(ledger.SeenResource{Name: gpu}) })
	b.expect(s, "6 bookmark")
}

func TestWatchFromARevision(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	first := b.put("a")
	s := b.watch(first)
	b.expect(s, "1 bookmark")
	b.put("b")
	b.expect(s, "2 added b")
	b.commit(func(d *ledger.Draft) { d.RemovePod("a") })
	// The same reader comes back with the last revision it got.
	again := b.watch(2)
	b.expect(again, "3 removed a", "3 bookmark")
	b.expect(b.watch(1), "2 added b", "3 removed a", "3 bookmark")
	b.expect(b.watch(3), "3 bookmark")
}

// TestWatchReportsAllocations checks the content of an event beyond its kind.
func TestWatchReportsAllocations(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	session := b.inv.Registered(gpu, device.Options{}, time.Unix(1, 0))
	b.inv.Listed(session, []device.Device{{ID: "g0", Healthy: true}}, time.Unix(2, 0))
	s := b.watch(0)
	b.bookmark(s, 0)
	b.put("a", ledgertest.Devices("main", gpu, "g0", "g9"))
	e, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	devices := e.GetEvents()[0].GetAdded().GetContainers()[0].GetClaims()[0].GetDevice().GetDevices()
	if len(devices) != 2 || devices[0].GetHealth() != typesv1.Health_HEALTH_HEALTHY || len(devices[0].GetHealthHistory()) != 0 ||
		devices[1].GetHealth() != typesv1.Health_HEALTH_UNSPECIFIED {
		t.Errorf("devices %v", devices)
	}
	got, err := b.client.Get(b.ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	history := got.GetPod().GetContainers()[0].GetClaims()[0].GetDevice().GetDevices()[0].GetHealthHistory()
	if len(history) != 1 || history[0].GetHealth() != typesv1.Health_HEALTH_HEALTHY || history[0].GetTime().GetSeconds() != 2 {
		t.Errorf("history %v", history)
	}
}

func TestWatchRefusesWhatIsGone(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4)
	for range 20 {
		b.put("a")
	}
	refuse := func(from uint64, message string) {
		t.Helper()
		_, err := b.watch(from).Recv()
		rpctest.Failure{Code: codes.OutOfRange, Reason: "REVISION_COMPACTED", Message: message}.Check(t, err)
	}
	refuse(1, "events after revision 1 are not kept any more, only those after 16: list, and watch from the list's revision")
	refuse(15, "events after revision 15 are not kept any more, only those after 16: list, and watch from the list's revision")
	refuse(21, "revision 21 is of another ledger, this one is at 20: list, and watch from the list's revision")
	b.expect(b.watch(16), "17 changed a", "18 changed a", "19 changed a", "20 changed a", "20 bookmark")
}

// TestWatchAfterARestart: a reader that knows the last revision before a restart learns of the machine
// and the policy of the start, because a start changes them without a revision of its own.
func TestWatchAfterARestart(t *testing.T) {
	t.Parallel()
	less, err := wholeMachine.Without(cpuset.Of(7))
	if err != nil {
		t.Fatal(err)
	}
	j := ledgertest.NewJournal()
	before, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: ledger.Rules{Machine: wholeMachine}})
	for _, uid := range []string{"a", "b"} {
		if _, err := before.Update(t.Context(),
			func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod(uid, "main")); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	b := newBenchOf(t, 100, journal.Options{Journal: j.Reopen(), Rules: ledger.Rules{Machine: less, ReservedCPUs: cpuset.Of(0)}})
	if _, err := b.watch(1).Recv(); status.Code(err) != codes.OutOfRange {
		t.Errorf("%v, want OUT_OF_RANGE", err)
	}
	start := []string{"2 shared_cpus 0-6", "2 policy reserved 0", "2 machine 0-7 without 7"}
	b.expect(b.watch(2), append(start, "2 bookmark")...)
	b.expect(b.watchFor(&allocationv1.WatchRequest{FromRevision: 2,
		Types: []allocationv1.EventType{allocationv1.EventType_EVENT_TYPE_MACHINE}}), start[2], "2 bookmark")
	b.takeOffline(cpuset.Set{})
	// The events of the start come before those of later commits.
	b.expect(b.watch(2), append(start, "3 shared_cpus 0-7", "3 machine 0-7 without ", "3 bookmark")...)
	b.expect(b.watch(3), "3 bookmark")
}

// TestSlowReaderIsDropped lets a reader sleep over more events than are kept. It
// gets what it had room for and then an error to start over, and no other reader
// waited for it.
func TestSlowReaderIsDropped(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4)
	slow, quick := b.watch(0), b.watch(0)
	b.bookmark(slow, 0)
	b.bookmark(quick, 0)
	// Claims make events large enough that the connection's buffers are soon full.
	var ids []string
	for i := range 500 {
		ids = append(ids, fmt.Sprintf("%0200d", i))
	}
	var last uint64
	for range 30 {
		last = b.put("a", ledgertest.Devices("main", gpu, ids...))
		if _, err := quick.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	var seen uint64
	for {
		m, err := slow.Recv()
		if err != nil {
			if status.Code(err) != codes.OutOfRange {
				t.Errorf("%v, want OUT_OF_RANGE", err)
			}
			break
		}
		for _, e := range m.GetEvents() {
			if seen != 0 && e.GetRevision() > seen+1 {
				t.Errorf("revision %d after %d", e.GetRevision(), seen)
			}
			seen = e.GetRevision()
		}
	}
	if seen >= last {
		t.Errorf("the reader was not slow: it has seen %d of %d", seen, last)
	}
}

func TestWatchDevices(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	session := b.inv.Registered(gpu, device.Options{}, time.Unix(1, 0))
	b.inv.Listed(session, []device.Device{{ID: "g0", Healthy: true}, {ID: "g1"}}, time.Unix(1, 0))
	b.put("a", ledgertest.Devices("main", gpu, "g0"))
	s := b.watch(1)
	b.expect(s, "1 resource example.com/gpu connected 2/1 [g1]", "1 bookmark")
	b.inv.Listed(session, []device.Device{{ID: "g0"}, {ID: "g1"}}, time.Unix(2, 0))
	b.expect(s, "1 resource example.com/gpu connected 2/0 [g0 g1]", `1 device_health example.com/gpu g0 "unhealthy" [a/main]`)
	b.inv.Listed(session, []device.Device{{ID: "g1", Healthy: true}}, time.Unix(3, 0))
	b.expect(s, "1 resource example.com/gpu connected 1/1 []",
		`1 device_health example.com/gpu g0 "" [a/main]`, `1 device_health example.com/gpu g1 "healthy" []`)
	b.inv.Gone(session, time.Unix(4, 0))
	b.expect(s, "1 resource example.com/gpu stopped 1/0 [g1]", `1 device_health example.com/gpu g1 "unhealthy" []`)
	b.inv.Registered("example.com/nic", device.Options{}, time.Unix(5, 0))
	b.expect(s, "1 resource example.com/nic connected 0/0 []") // known before its first list
	session = b.inv.Registered(gpu, device.Options{}, time.Unix(5, 0))
	b.inv.Listed(session, []device.Device{{ID: "g1", Healthy: true}}, time.Unix(5, 0))
	// A reader may find the registration and the list in one or in two steps.
	for {
		line, err := s.next()
		if err != nil {
			t.Fatal(err)
		}
		if line == `1 device_health example.com/gpu g1 "healthy" []` {
			break
		}
		if !strings.HasPrefix(line, "1 resource example.com/gpu connected ") {
			t.Errorf("%q", line)
		}
	}
	b.put("b")
	b.expect(s, "2 added b")
	b.inv.Gone(session, time.Unix(6, 0))
	b.expect(s, "2 resource example.com/gpu stopped 1/0 [g1]", `2 device_health example.com/gpu g1 "unhealthy" []`)
	b.inv.Forget(gpu)
	b.expect(s, "2 resource example.com/gpu forgotten 0/0 []", `2 device_health example.com/gpu g1 "" []`)
}

func TestStreamsEndWithBerth(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	s := b.watch(0)
	b.bookmark(s, 0)
	b.history.Close()
	b.history.Close()
	_, err := s.Recv()
	rpctest.Failure{Code: codes.Unavailable, Reason: "SHUTTING_DOWN", Retry: true, Message: "berthd ends"}.Check(t, err)
	b.put("a") // commits still work
}

// TestRing: a history of few events drops the oldest, one by one, and reports it. The events
// that it keeps reach filtered and other readers unchanged, although they are kept encoded.
func TestRing(t *testing.T) {
	t.Parallel()
	const limit = 5
	b := newBench(t, limit)
	var want []string
	for i := range 3 * limit {
		want = append(want, fmt.Sprintf("%d added p%d", b.put(fmt.Sprintf("p%d", i)), i))
		if err := b.history.Read(b.ledger.View().Revision()); err != nil {
			t.Fatal(err)
		}
	}
	last := b.ledger.View().Revision()
	if err := b.history.Read(last - limit - 1); errdefs.ClassOf(err) != errdefs.Gone {
		t.Errorf("events before the kept ones: %v", err)
	}
	kept := want[len(want)-limit:]
	for _, req := range []*allocationv1.WatchRequest{
		{FromRevision: last - limit},
		{FromRevision: last - limit, Types: []allocationv1.EventType{allocationv1.EventType_EVENT_TYPE_ADDED}},
	} {
		if got := b.bookmark(b.watchFor(req), last); !slices.Equal(got, kept) {
			t.Errorf("%v: %q, want %q", req, got, kept)
		}
	}
}
