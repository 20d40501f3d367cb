package hintserver_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/hintprovider/hintserver"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slots is a provider that notes what it hears of admissions.
type slots struct {
	hinttest.Slots

	mu      sync.Mutex
	heard   []string
	prepare func([]ledger.Claim) ([]ledger.Claim, error)
	commit  error
}

func newSlots() *slots {
	return &slots{Slots: hinttest.Slots{At: map[string]int{"a": 0, "b": 1, "c": 1}}}
}

func (s *slots) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = append(s.heard, fmt.Sprintf(format, args...))
}

// said returns the calls since the last time.
func (s *slots) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.Join(s.heard, ", ")
	s.heard = nil
	return text
}

func (s *slots) Prepare(_ context.Context, id string, req hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
	s.note("prepare %s for %s", id, req.Owner())
	if s.prepare != nil {
		return s.prepare(slices.Clone(claims))
	}
	return claims, nil
}

func (s *slots) Abort(_ context.Context, id string) { s.note("abort %s", id) }

func (s *slots) Committed(_ context.Context, view *ledger.View) error {
	var held []string
	for c := range view.Claims() {
		held = append(held, c.Owner.String()+" "+strings.Join(c.Devices.IDs(), "+"))
	}
	s.note("committed %q", held)
	return s.commit
}

// clock is moved by hand.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

type stage struct {
	t *testing.T
	*slots
	clock  *clock
	server *hintserver.Server
}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, slots: newSlots(), clock: &clock{time.Unix(1000, 0)}}
	s.server = hintserver.NewServer(s.slots, s.clock.Now)
	return s
}

// commit sends the pods' allocations; the first one describes the machine.
func (s *stage) commit(change ...func(*hintv1.CommitRequest)) error {
	s.t.Helper()
	text, err := machinetest.Build("1s2n4c1t").Marshal()
	if err != nil {
		s.t.Fatal(err)
	}
	req := &hintv1.CommitRequest{Provider: "slots", MachineSnapshotJson: text}
	for _, c := range change {
		c(req)
	}
	_, err = s.server.Commit(s.t.Context(), req)
	return err
}

func pod(n int64) *typesv1.Pod {
	q := workload.Quantities{hinttest.SlotResource: n}
	return convert.Pod(&workload.Pod{UID: "p", Containers: []workload.Container{{Name: "c", Requests: q, Limits: q}}})
}

// allocated is a pod that has slot a.
func allocated(uid string) *hintv1.ProviderAllocation {
	return &hintv1.ProviderAllocation{AdmissionId: "adm-" + uid, PodUid: uid, Claims: []*typesv1.Claim{{
		PodUid: uid, ContainerName: "c", Provider: "slots", Resource: string(hinttest.SlotResource),
		Payload: &typesv1.Claim_Device{Device: &typesv1.DeviceClaim{Devices: []*typesv1.Device{{Id: "a"}}}},
	}}}
}

func hintRequest(n int64, held ...*hintv1.ProviderAllocation) *hintv1.HintRequest {
	return &hintv1.HintRequest{Provider: "slots", Pod: pod(n), ContainerName: "c", Allocations: &hintv1.AllocationUpdate{Changed: held}}
}

// reserve requests a slot under an admission.
func (s *stage) reserve(id string) (*hintv1.ReserveResponse, error) {
	s.t.Helper()
	resp, err := s.server.Plan(s.t.Context(), &hintv1.PlanRequest{Request: hintRequest(1)})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.server.Reserve(s.t.Context(), &hintv1.ReserveRequest{
		Provider: "slots", AdmissionId: id, Pod: pod(1), ContainerName: "c", Claims: resp.GetPlan().GetClaims(),
		Lease: durationpb.New(time.Minute),
	})
}

func (s *stage) expect(want string) {
	s.t.Helper()
	if got := s.said(); got != want {
		s.t.Errorf("heard %q, want %q", got, want)
	}
}

func TestCallsInOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, err := s.server.GetHints(t.Context(), &hintv1.GetHintsRequest{Request: hintRequest(1)})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "Commit comes first") {
		t.Errorf("hints before the machine is known: %v", err)
	}
	if err := s.commit(); err != nil {
		t.Fatal(err)
	}
	s.expect(`committed []`)
	hints, err := s.server.GetHints(t.Context(), &hintv1.GetHintsRequest{Request: hintRequest(2, allocated("other"))})
	if err != nil || len(hints.GetTopologyHints()) != 1 || len(hints.GetTopologyHints()[0].GetHints()) != 2 {
		t.Errorf("two slots, one taken: %v, %v", hints, err)
	}
	if _, err := s.reserve("adm"); err != nil {
		t.Fatal(err)
	}
	if err := s.commit(func(r *hintv1.CommitRequest) {
		r.MachineSnapshotJson, r.Allocations = nil, &hintv1.AllocationUpdate{Sequence: 2,
			Changed: []*hintv1.ProviderAllocation{allocated("p")}}
	}); err != nil {
		t.Fatal(err)
	}
	s.expect(`prepare adm for p/c, committed ["p/c a"]`)
}

func TestBadCalls(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	if err := s.commit(); err != nil {
		t.Fatal(err)
	}
	s.said()
	ctx := t.Context()
	other := func(q *hintv1.HintRequest, change func(*hintv1.HintRequest)) *hintv1.HintRequest { change(q); return q }
	for name, row := range map[string]struct {
		call func() error
		code codes.Code
		text string
	}{
		"another provider's hints": {func() error {
			_, err := s.server.GetHints(ctx, &hintv1.GetHintsRequest{Request: other(hintRequest(1),
				func(q *hintv1.HintRequest) { q.Provider = "x" })})
			return err
		}, codes.NotFound, `this is provider slots, not "x"`},
		"another provider's commit": {func() error { return s.commit(func(r *hintv1.CommitRequest) { r.Provider = "x" }) },
			codes.NotFound, `not "x"`},
		"another provider's abort": {func() error {
			_, err := s.server.Abort(ctx, &hintv1.AbortRequest{AdmissionId: "a"})
			return err
		}, codes.NotFound, `not ""`},
		"another provider's reservation": {func() error {
			_, err := s.server.Reserve(ctx, &hintv1.ReserveRequest{})
			return err
		}, codes.NotFound, `not ""`},
		"no request": {func() error {
			_, err := s.server.Plan(ctx, &hintv1.PlanRequest{})
			return err
		}, codes.NotFound, `not ""`},
		"no pod": {func() error {
			_, err := s.server.GetHints(ctx, &hintv1.GetHintsRequest{Request: other(hintRequest(1),
				func(q *hintv1.HintRequest) { q.Pod = nil })})
			return err
		}, codes.InvalidArgument, "pod.metadata.uid"},
		"no such container": {func() error {
			_, err := s.server.GetHints(ctx, &hintv1.GetHintsRequest{Request: other(hintRequest(1),
				func(q *hintv1.HintRequest) { q.ContainerName = "x" })})
			return err
		}, codes.InvalidArgument, `no container "x"`},
		"bad allocations": {func() error {
			_, err := s.server.GetHints(ctx, &hintv1.GetHintsRequest{Request: hintRequest(1, &hintv1.ProviderAllocation{})})
			return err
		}, codes.InvalidArgument, "allocations.changed[0].pod_uid"},
		"bad affinity": {func() error {
			_, err := s.server.Plan(ctx, &hintv1.PlanRequest{Request: hintRequest(1),
				Affinity: &typesv1.TopologyHint{NumaNodes: &typesv1.NUMANodeSet{}}})
			return err
		}, codes.InvalidArgument, "affinity.numa_nodes"},
		"bad claims": {func() error {
			_, err := s.server.Reserve(ctx, &hintv1.ReserveRequest{Provider: "slots", Pod: pod(1), ContainerName: "c",
				Claims: make([]*typesv1.Claim, 1)})
			return err
		}, codes.InvalidArgument, "claims[0]"},
		"bad machine": {func() error {
			return s.commit(func(r *hintv1.CommitRequest) { r.MachineSnapshotJson = []byte("{}") })
		}, codes.InvalidArgument, ""},
	} {
		if err := row.call(); status.Code(err) != row.code || !strings.Contains(err.Error(), row.text) {
			t.Errorf("%s: %v, want %s with %q", name, err, row.code, row.text)
		}
	}
	s.expect("")
}

func TestRefusalsAreAnswers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	if err := s.commit(); err != nil {
		t.Fatal(err)
	}
	plan, err := s.server.Plan(t.Context(), &hintv1.PlanRequest{Request: hintRequest(9)})
	if err != nil || plan.GetRefusal().GetReason() != string(errdefs.UnexpectedAdmissionError) ||
		!strings.HasPrefix(plan.GetRefusal().GetMessage(), "9 slots are wanted") {
		t.Errorf("%v, %v", plan, err)
	}
	s.prepare = func([]ledger.Claim) ([]ledger.Claim, error) {
		e := errdefs.Refuse("", "the slot is wet")
		e.Resource = "r"
		return nil, fmt.Errorf("look at it: %w", e)
	}
	reserved, err := s.reserve("adm")
	want := &hintv1.Refusal{Message: "look at it: the slot is wet", Resource: "r"}
	if err != nil || !proto.Equal(reserved.GetRefusal(), want) {
		t.Errorf("%v, %v; want %v", reserved, err, want)
	}
}

func TestFailuresAreErrors(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	if err := s.commit(); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		prepare func([]ledger.Claim) ([]ledger.Claim, error)
		code    codes.Code
	}{
		{func([]ledger.Claim) ([]ledger.Claim, error) { return nil, errors.New("boom") }, codes.Internal},
		{func([]ledger.Claim) ([]ledger.Claim, error) { return nil, errdefs.Unavailablef("away") }, codes.Unavailable},
		{func([]ledger.Claim) ([]ledger.Claim, error) { return nil, context.DeadlineExceeded }, codes.DeadlineExceeded},
		// Mistakes of the provider's: a claim too few, and bytes of another form.
		{func([]ledger.Claim) ([]ledger.Claim, error) { return nil, nil }, codes.Unknown},
		{func(c []ledger.Claim) ([]ledger.Claim, error) {
			c[0].Devices.Response = []byte("no message")
			return c, nil
		}, codes.Internal},
	} {
		s.prepare = row.prepare
		if _, err := s.reserve("adm"); status.Code(err) != row.code {
			t.Errorf("%v, want %s", err, row.code)
		}
	}
	s.slots.commit = errdefs.Unavailablef("the switch does not answer")
	if err := s.commit(); status.Code(err) != codes.Unavailable {
		t.Errorf("commit: %v", err)
	}
}

// Edits have the wire form of a device plugin's answer, so that whatever reads the
// ledger's claims reads them too.
func TestEditsAreAPluginsAnswer(t *testing.T) {
	t.Parallel()
	text, err := hintserver.Edits(&typesv1.ContainerEdits{
		Envs: map[string]string{"A": "1"}, Annotations: map[string]string{"b": "2"},
		Mounts:     []*typesv1.Mount{{ContainerPath: "/c", HostPath: "/h", ReadOnly: true}},
		Devices:    []*typesv1.DeviceNode{{ContainerPath: "/dev/c", HostPath: "/dev/h", Permissions: "rw"}},
		CdiDevices: []*typesv1.CDIDevice{{Name: "v/c=d"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := new(pluginapi.ContainerAllocateResponse)
	if err := proto.Unmarshal(text, got); err != nil {
		t.Fatal(err)
	}
	want := &pluginapi.ContainerAllocateResponse{
		Envs: map[string]string{"A": "1"}, Annotations: map[string]string{"b": "2"},
		Mounts:     []*pluginapi.Mount{{ContainerPath: "/c", HostPath: "/h", ReadOnly: true}},
		Devices:    []*pluginapi.DeviceSpec{{ContainerPath: "/dev/c", HostPath: "/dev/h", Permissions: "rw"}},
		CdiDevices: []*pluginapi.CDIDevice{{Name: "v/c=d"}},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestLeases(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	if err := s.commit(); err != nil {
		t.Fatal(err)
	}
	reserve := func(id string) {
		t.Helper()
		if _, err := s.reserve(id); err != nil {
			t.Fatal(err)
		}
		s.said()
	}
	s.said()
	if _, ok := s.server.Expire(); ok {
		t.Error("a lease without a reservation")
	}
	reserve("one")
	s.clock.now = s.clock.now.Add(30 * time.Second)
	reserve("two")
	s.clock.now = s.clock.now.Add(29 * time.Second)
	if next, ok := s.server.Expire(); !ok || !next.Equal(time.Unix(1060, 0)) {
		t.Errorf("next %v, %v", next, ok)
	}
	s.expect("")
	s.clock.now = s.clock.now.Add(time.Second)
	if next, ok := s.server.Expire(); !ok || !next.Equal(time.Unix(1090, 0)) {
		t.Errorf("next %v, %v", next, ok)
	}
	s.expect("abort one")
	reserve("two") // renews
	s.clock.now = time.Unix(1100, 0)
	if _, ok := s.server.Expire(); !ok {
		t.Error("a renewed lease has ended")
	}
	if _, err := s.server.Abort(t.Context(), &hintv1.AbortRequest{Provider: "slots", AdmissionId: "two"}); err != nil {
		t.Fatal(err)
	}
	s.expect("abort two")
	if _, ok := s.server.Expire(); ok {
		t.Error("an aborted lease is left")
	}

	// Commits end leases: of those that hold now without an abort, of those whose
	// pods have gone again with one, and of all others at a start of berthd.
	reserve("adm-p")
	reserve("gone")
	reserve("open")
	if err := s.commit(func(r *hintv1.CommitRequest) {
		r.Allocations, r.CommittedAdmissions = &hintv1.AllocationUpdate{Sequence: 2,
			Changed: []*hintv1.ProviderAllocation{allocated("p")}}, []string{"adm-p", "gone"}
	}); err != nil {
		t.Fatal(err)
	}
	s.expect(`committed ["p/c a"], abort gone`)
	if err := s.commit(func(r *hintv1.CommitRequest) { r.DiscardReservations = true }); err != nil {
		t.Fatal(err)
	}
	s.expect(`committed [], abort open`)
	if _, ok := s.server.Expire(); ok {
		t.Error("a lease is left")
	}
}

// TestUpdates: lists are changed by updates, and a list that the server does not have is an
// error that makes berthd send everything.
func TestUpdates(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	update := func(u *hintv1.AllocationUpdate, partial bool) error {
		return s.commit(func(r *hintv1.CommitRequest) {
			r.Allocations, r.Partial = u, partial
			if u.GetBaseSequence() != 0 {
				r.MachineSnapshotJson = nil
			}
		})
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(update(&hintv1.AllocationUpdate{Sequence: 1}, true))
	s.expect(``) // it is not complete
	must(update(&hintv1.AllocationUpdate{Sequence: 2, BaseSequence: 1, Changed: []*hintv1.ProviderAllocation{allocated("p")}}, false))
	s.expect(`committed ["p/c a"]`)
	must(update(&hintv1.AllocationUpdate{Sequence: 3, BaseSequence: 2, RemovedPodUids: []string{"p", "unknown"}}, false))
	s.expect(`committed []`)
	free := func(base uint64) (int, error) {
		resp, err := s.server.GetHints(t.Context(), &hintv1.GetHintsRequest{Request: &hintv1.HintRequest{
			Provider: "slots", Pod: pod(1), ContainerName: "c", Allocations: &hintv1.AllocationUpdate{BaseSequence: base},
		}})
		if err != nil {
			return 0, err
		}
		return len(resp.GetTopologyHints()[0].GetHints()), nil
	}
	older, err := free(2) // a question that was sent before the last commit
	must(err)
	newest, err := free(3)
	must(err)
	if older >= newest {
		t.Errorf("%d hints while a slot is taken, %d afterwards", older, newest)
	}
	for _, base := range []uint64{4, 99} {
		if _, err := free(base); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("based on list %d: %v", base, err)
		}
	}
	for i := range uint64(20) {
		must(update(&hintv1.AllocationUpdate{Sequence: 4 + i, BaseSequence: 3 + i}, false))
	}
	if _, err := free(3); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("based on a list that is too old: %v", err)
	}
}
