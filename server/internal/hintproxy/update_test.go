package hintproxy

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/hintprovider/hintserver"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// opaque is the allocation of a pod with one claim.
func opaque(uid string, payload []byte) *hintv1.ProviderAllocation {
	return &hintv1.ProviderAllocation{AdmissionId: "adm-" + uid, PodUid: uid, Claims: []*typesv1.Claim{{
		PodUid: uid, ContainerName: "c", Provider: "slots", Resource: string(slot), Payload: &typesv1.Claim_Opaque{Opaque: payload},
	}}}
}

// apply is what a provider does with an update.
func apply(lists map[uint64][]*hintv1.ProviderAllocation, u *hintv1.AllocationUpdate) ([]*hintv1.ProviderAllocation, bool) {
	base, ok := lists[u.GetBaseSequence()]
	if !ok && u.GetBaseSequence() != 0 {
		return nil, false
	}
	byUID := map[string]*hintv1.ProviderAllocation{}
	for _, a := range base {
		byUID[a.GetPodUid()] = a
	}
	for _, uid := range u.GetRemovedPodUids() {
		delete(byUID, uid)
	}
	for _, a := range u.GetChanged() {
		byUID[a.GetPodUid()] = a
	}
	out := []*hintv1.ProviderAllocation{}
	for _, a := range byUID {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *hintv1.ProviderAllocation) int {
		return bytes.Compare([]byte(a.GetPodUid()), []byte(b.GetPodUid()))
	})
	return out, true
}

// TestDifference: a provider that applies the parts of a difference has the new list.
func TestDifference(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) []*hintv1.ProviderAllocation {
			out := []*hintv1.ProviderAllocation{}
			for i := range 8 {
				if size := rapid.SampledFrom([]int{0, 1, 2, maxPart / 3, maxPart + 1}).Draw(t, fmt.Sprint(name, i)); size > 0 {
					out = append(out, opaque(fmt.Sprint("p", i), bytes.Repeat([]byte{1}, size)))
				}
			}
			return out
		}
		from, to := draw("from"), draw("to")
		sequence := rapid.SampledFrom([]uint64{0, 5}).Draw(t, "sequence")
		if sequence == 0 {
			from = nil
		}
		lists := map[uint64][]*hintv1.ProviderAllocation{5: from}
		var got []*hintv1.ProviderAllocation
		for _, part := range parts(difference(from, sequence, to), 6) {
			var ok bool
			if got, ok = apply(lists, part); !ok {
				t.Fatalf("part %d is based on %d", part.GetSequence(), part.GetBaseSequence())
			}
			if n := proto.Size(part); n > maxPart+1024 && len(part.GetChanged()) > 1 {
				t.Fatalf("a part has %d bytes", n)
			}
			lists[part.GetSequence()] = got
		}
		if !slices.EqualFunc(got, to, func(a, b *hintv1.ProviderAllocation) bool { return proto.Equal(a, b) }) {
			t.Fatalf("got %d allocations, want %d", len(got), len(to))
		}
	})
}

// TestBytesOfAQuestion: the size of a question does not grow with the allocations on the node.
func TestBytesOfAQuestion(t *testing.T) {
	t.Parallel()
	var sizes []int
	for _, n := range []int{64, 1000} {
		var acknowledged []*hintv1.ProviderAllocation
		for i := range n {
			acknowledged = append(acknowledged, opaque(fmt.Sprintf("pod-%06d", i), make([]byte, 1024)))
		}
		p := &proxy{registration: ledger.ExternalProvider{Name: "slots"}, presence: presence{introduced: true},
			confirmations: confirmations{acknowledged: acknowledged, sequence: 7}}
		q := &question{req: hint.Request{Pod: wantingSlots("new", 1, slot)},
			all: append(slices.Clone(acknowledged), opaque("pod-new", make([]byte, 1024)))}
		before := proto.Size(&hintv1.GetHintsRequest{Request: &hintv1.HintRequest{Provider: "slots", ContainerName: "c",
			Allocations: &hintv1.AllocationUpdate{Changed: q.all}}})
		after := proto.Size(&hintv1.GetHintsRequest{Request: p.request(q)})
		t.Logf("%d claims of 1 KiB: %d bytes with all allocations, %d with the difference", n, before, after)
		sizes = append(sizes, after)
	}
	if sizes[0] != sizes[1] {
		t.Errorf("questions have %v bytes", sizes)
	}
}

// recorded is a provider that keeps the requests, and may have lost its lists.
type recorded struct {
	*hintserver.Server

	mu      sync.Mutex
	lost    int // calls that fail because the list is lost; guarded by mu
	commits []*hintv1.CommitRequest
	hints   []*hintv1.GetHintsRequest
}

func (r *recorded) missing() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost == 0 {
		return nil
	}
	r.lost--
	return status.Error(codes.FailedPrecondition, "the list is lost")
}

func (r *recorded) GetHints(ctx context.Context, m *hintv1.GetHintsRequest) (*hintv1.GetHintsResponse, error) {
	r.mu.Lock()
	r.hints = append(r.hints, m)
	r.mu.Unlock()
	if err := r.missing(); err != nil {
		return nil, err
	}
	return r.Server.GetHints(ctx, m)
}

func (r *recorded) Commit(ctx context.Context, m *hintv1.CommitRequest) (*hintv1.CommitResponse, error) {
	r.mu.Lock()
	r.commits = append(r.commits, m)
	r.mu.Unlock()
	if m.GetAllocations().GetBaseSequence() != 0 {
		if err := r.missing(); err != nil {
			return nil, err
		}
	}
	return r.Server.Commit(ctx, m)
}

// lose makes the next calls fail that are based on a list.
func (r *recorded) lose(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost, r.commits, r.hints = n, nil, nil
}

// seen returns the bases of the recorded commits and questions.
func (r *recorded) seen() (commits, hints []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.commits {
		commits = append(commits, m.GetAllocations().GetBaseSequence())
	}
	for _, m := range r.hints {
		hints = append(hints, m.GetRequest().GetAllocations().GetBaseSequence())
	}
	return commits, hints
}

// expectConfirmed waits until a provider has and holds what it should, and its answer to the last list has come. Before that, a question
// has the list of an earlier answer, or everything.
func (s *stage) expectConfirmed(k *keeper, provider string, held ...string) {
	s.t.Helper()
	s.expectUsage(k, nil, held)
	s.eventually("the list is confirmed", func() bool {
		view, p := s.ledger.View(), s.proxy(provider)
		if p.owes(p.leases(view)) {
			return false
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		acknowledged, sequence := p.list()
		missing := difference(acknowledged, sequence, convert.ProviderAllocations(view, provider))
		return sequence != 0 && !p.again && len(missing.GetChanged())+len(missing.GetRemovedPodUids()) == 0
	})
}

// proxy returns the proxy of a provider.
func (s *stage) proxy(provider string) *proxy {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	return s.registry.proxies[provider]
}

// TestListsOfAProvider: a provider gets everything once for a connection, then differences,
// and everything again when it has lost its list.
func TestListsOfAProvider(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	k := slotsOf("slots")
	r := &recorded{Server: hintserver.NewServer(k, s.clock.Now)}
	stop := s.endpoints.serve("/slots", func(g grpc.ServiceRegistrar) { hintv1.RegisterHintProviderServiceServer(g, r) })
	s.register("slots")
	s.expectConfirmed(k, "slots")
	if commits, _ := r.seen(); len(commits) == 0 || commits[0] != 0 {
		t.Fatalf("the first commits are based on %v", commits)
	}
	r.lose(0)
	admit := func(uid string) {
		t.Helper()
		if _, err := s.admit("adm-"+uid, wantingSlots(uid, 1, slot)); err != nil {
			t.Fatal(err)
		}
	}
	admit("a")
	s.expectConfirmed(k, "slots", "a")
	if commits, hints := r.seen(); slices.Contains(commits, 0) || slices.Contains(hints, 0) {
		t.Errorf("after the first one, commits are based on %v, questions on %v", commits, hints)
	}
	// A question finds the list lost: everything is sent, and the question once more.
	r.lose(1)
	admit("b")
	s.expectConfirmed(k, "slots", "a", "b")
	if commits, hints := r.seen(); !slices.Contains(commits, 0) || len(hints) < 2 || slices.Contains(hints, 0) {
		t.Errorf("after a lost list, commits are based on %v, questions on %v", commits, hints)
	}
	// A commit finds the list lost.
	r.lose(1)
	s.remove("a")
	s.expectConfirmed(k, "slots", "b")
	if commits, _ := r.seen(); len(commits) < 2 || commits[0] == 0 || commits[1] != 0 {
		t.Errorf("after a lost list, commits are based on %v", commits)
	}
	// The list is lost twice: the question has everything itself.
	r.lose(2)
	admit("twice")
	s.expectConfirmed(k, "slots", "b", "twice")
	if _, hints := r.seen(); len(hints) < 3 || hints[0] == 0 || hints[1] == 0 || hints[2] != 0 {
		t.Errorf("after two lost lists, questions are based on %v", hints)
	}
	s.remove("twice")
	s.expectConfirmed(k, "slots", "b")
	// A provider that never answers fails after two repetitions.
	r.lose(1 << 30)
	if _, err := s.admit("adm-c", wantingSlots("c", 1, slot)); err == nil {
		t.Error("admitted by a provider that knows nothing")
	}
	if _, hints := r.seen(); len(hints) != 3 {
		t.Errorf("%d questions", len(hints))
	}
	s.expectConfirmed(k, "slots", "b")
	// Another process at the endpoint gets everything.
	r.lose(0)
	stop()
	s.eventually("the provider is away", func() bool { return s.status("slots").State == Away })
	stop = s.endpoints.serve("/slots", func(g grpc.ServiceRegistrar) { hintv1.RegisterHintProviderServiceServer(g, r) })
	t.Cleanup(stop)
	s.eventually("the provider is back", func() bool { commits, _ := r.seen(); return len(commits) > 0 })
	if commits, _ := r.seen(); commits[0] != 0 {
		t.Errorf("on a new connection, commits are based on %v", commits)
	}
	s.expectConfirmed(k, "slots", "b")
}

// machines is a provider that records the order of the machines it learns and the questions.
type machines struct {
	*hintserver.Server

	mu    sync.Mutex
	order []string // guarded by mu
}

func (m *machines) add(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.order = append(m.order, what)
}

func (m *machines) Commit(ctx context.Context, req *hintv1.CommitRequest) (*hintv1.CommitResponse, error) {
	if text := req.GetMachineSnapshotJson(); len(text) > 0 {
		learned, err := machine.Load(text)
		if err != nil {
			return nil, err
		}
		m.add(fmt.Sprintf("%s at %t", learned.CPUs(), req.GetAllocations().GetBaseSequence() == 0))
	}
	return m.Server.Commit(ctx, req)
}

func (m *machines) GetHints(ctx context.Context, req *hintv1.GetHintsRequest) (*hintv1.GetHintsResponse, error) {
	m.add("hints")
	return m.Server.GetHints(ctx, req)
}

// TestMachineOfAProvider: a provider learns of a changed machine before the next question about it,
// and without one.
func TestMachineOfAProvider(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	k := slotsOf("slots")
	m := &machines{Server: hintserver.NewServer(k, s.clock.Now)}
	t.Cleanup(s.endpoints.serve("/slots", func(g grpc.ServiceRegistrar) { hintv1.RegisterHintProviderServiceServer(g, m) }))
	s.register("slots")
	become := func(off int) {
		t.Helper()
		rules := s.ledger.View().Rules()
		var err error
		if rules.Machine, err = machinetest.Build(shape).Without(cpuset.Of(off)); err != nil {
			t.Fatal(err)
		}
		if _, err = s.ledger.SetRules(t.Context(), rules); err != nil {
			t.Fatal(err)
		}
	}
	for i, off := range []int{3, 5, 7} {
		become(off)
		if _, err := s.admit(fmt.Sprintf("adm-%d", i), wantingSlots(fmt.Sprintf("p%d", i), 1, slot)); err != nil {
			t.Fatal(err)
		}
	}
	become(15)
	last := "0-14 at true"
	s.eventually("the provider knows the last machine", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return slices.Contains(m.order, last)
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	order := slices.Compact(slices.Clone(m.order))
	want := []string{"0-15 at true", "0-2,4-15 at true", "hints", "0-4,6-15 at true", "hints", "0-6,8-15 at true", "hints", last}
	if !slices.Equal(order, want) {
		t.Errorf("%q, want %q", order, want)
	}
	s.expectUsage(k, nil, []string{"p0", "p1", "p2"})
}
