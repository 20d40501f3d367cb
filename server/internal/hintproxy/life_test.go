package hintproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
)

// leases lists the admissions that wait for a confirmation.
func (s *stage) leases() (ids []string) {
	for l := range s.ledger.View().Leases() {
		ids = append(ids, l.AdmissionID)
	}
	return ids
}

// expectUsage waits until a provider has reserved and holds what it should.
func (s *stage) expectUsage(k *keeper, reserved, held []string) {
	s.t.Helper()
	var r, h []string
	defer func() {
		if s.t.Failed() {
			s.t.Logf("reserved %q, held %q; want %q and %q", r, h, reserved, held)
		}
	}()
	s.eventually("the provider's usage", func() bool {
		r, h = k.usage()
		return slices.Equal(r, reserved) && slices.Equal(h, held)
	})
}

func TestCommitIsConfirmedAndRemovalNotified(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	k := slotsOf("slots")
	s.serveScript(k)
	s.register("slots")
	if _, err := s.admit("adm", wantingSlots("pod", 2, slot)); err != nil {
		t.Fatal(err)
	}
	s.expectUsage(k, nil, []string{"pod"})
	s.eventually("the lease is taken out of the ledger", func() bool { return len(s.leases()) == 0 })
	s.remove("pod")
	s.expectUsage(k, nil, nil)
	// All four slots are there for the next one.
	if _, err := s.admit("adm2", wantingSlots("next", 4, slot)); err != nil {
		t.Error(err)
	}
}

// Between the ledger's commit and the provider's confirmation the lease is in the
// ledger; a provider that fails to confirm is called until it does.
func TestUnconfirmedCommit(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	k := slotsOf("slots")
	sc, _ := s.serveScript(k)
	s.register("slots")
	sc.set(func(s *script) { s.commit = failing })
	if _, err := s.admit("adm", wantingSlots("pod", 1, slot)); err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		for _, call := range sc.heard() {
			if call == "commit" {
				n++
			}
		}
		return n
	}
	before := count()
	s.eventually("it is asked again and again", func() bool { return count() >= before+3 })
	if got := s.leases(); !slices.Equal(got, []string{"adm"}) {
		t.Errorf("leases %q", got)
	}
	if st := s.status("slots"); len(st.Leases) != 1 || st.Leases[0].AdmissionID != "adm" {
		t.Errorf("status %+v", st)
	}
	// It cannot reserve against unknown allocations: they are sent first.
	if _, err := s.admit("adm2", wantingSlots("other", 1, slot)); err == nil || !strings.Contains(err.Error(), "firmware") {
		t.Errorf("an admission while the provider does not confirm: %v", err)
	}
	sc.set(func(s *script) { s.commit = nil })
	s.expectUsage(k, nil, []string{"pod"})
	s.eventually("the lease is taken out of the ledger", func() bool { return len(s.leases()) == 0 })
}

// berthd ends between its commit and the confirmation: the next one confirms.
func TestCrashBeforeConfirmation(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	k := slotsOf("slots")
	sc, _ := s.serveScript(k)
	s.register("slots")
	sc.set(func(s *script) { s.commit = failing })
	if _, err := s.admit("adm", wantingSlots("pod", 1, slot)); err != nil {
		t.Fatal(err)
	}
	s.end()
	if got := s.leases(); !slices.Equal(got, []string{"adm"}) {
		t.Fatalf("leases %q", got)
	}
	reserved, held := k.usage()
	if !slices.Equal(reserved, []string{"adm"}) || len(held) != 0 {
		t.Fatalf("reserved %q, held %q", reserved, held)
	}
	sc.set(func(s *script) { s.commit = nil })
	s.restart()
	s.expectUsage(k, nil, []string{"pod"})
	s.eventually("the lease is taken out of the ledger", func() bool { return len(s.leases()) == 0 })
	if _, err := s.admit("adm2", wantingSlots("next", 1, slot)); err != nil {
		t.Error(err)
	}
}

// berthd ends between a reservation and its commit: the next one frees what was
// reserved before it admits anybody, and without one the lease does.
func TestCrashBeforeCommit(t *testing.T) {
	t.Parallel()
	reserve := func(s *stage) {
		s.t.Helper()
		pod := wantingSlots("pod", 4, slot)
		draft := ledger.NewDraft(s.ledger.View())
		draft.PutPod(&ledger.Pod{Pod: *pod})
		req := hint.Request{Pod: pod}
		var trace ledger.Trace
		if err := s.theBus().Plan(s.t.Context(), draft, req, hint.Hint{Any: true}, &trace); err != nil {
			s.t.Fatal(err)
		}
		if err := s.theBus().Prepare(s.t.Context(), "adm", draft, req, &trace); err != nil {
			s.t.Fatal(err)
		}
		if got := slices.Collect(draft.View().Leases()); len(got) != 1 || !got[0].Expires.Equal(s.clock.Now().Add(time.Minute)) {
			s.t.Errorf("leases of the draft %+v", got)
		}
		s.end()
	}
	t.Run("another berthd", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Config{})
		k := slotsOf("slots")
		s.serveProvider(k)
		s.register("slots")
		reserve(s)
		s.restart()
		s.eventually("it is connected", func() bool { return s.status("slots").State == Connected })
		s.expectUsage(k, nil, nil)
		if _, err := s.admit("adm2", wantingSlots("next", 4, slot)); err != nil {
			t.Error(err)
		}
	})
	t.Run("no other berthd", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Config{})
		k := slotsOf("slots")
		server, _ := s.serveProvider(k)
		s.register("slots")
		reserve(s)
		s.clock.advance(time.Minute - 1)
		if next, ok := server.Expire(); !ok || !next.Equal(s.clock.Now().Add(1)) {
			t.Errorf("the next lease ends %v, %v", next, ok)
		}
		s.expectUsage(k, []string{"adm"}, nil)
		s.clock.advance(1)
		if _, ok := server.Expire(); ok {
			t.Error("a lease is left")
		}
		s.expectUsage(k, nil, nil)
	})
}

// The provider dies between a reservation and the commit. The admission stands; the
// provider that comes back knows nothing and accepts the list.
func TestProviderDiesBeforeCommit(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	first := slotsOf("slots")
	sc, stop := s.serveScript(first)
	s.register("slots")
	sc.set(grants(func(*hintv1.ReserveResponse) {}))
	sc.set(func(sc *script) {
		sc.commit = func(context.Context, *hintv1.CommitRequest) (*hintv1.CommitResponse, error) {
			go stop() // dies on the first word after the reservation
			return nil, errors.New("dying")
		}
	})
	if _, err := s.admit("adm", wantingSlots("pod", 1, slot)); err != nil {
		t.Fatal(err)
	}
	s.eventually("it is away", func() bool { return s.status("slots").State == Away })
	if _, err := s.admit("x", wantingSlots("x", 1, slot)); errdefs.ClassOf(err) != errdefs.Unavailable ||
		!strings.Contains(err.Error(), "provider slots") {
		t.Errorf("while the provider is away: %v", err)
	}
	if got := s.leases(); !slices.Equal(got, []string{"adm"}) {
		t.Errorf("leases %q", got)
	}
	second := slotsOf("slots")
	s.serveScript(second)
	s.expectUsage(second, nil, []string{"pod"})
	s.eventually("the lease is taken out of the ledger", func() bool { return len(s.leases()) == 0 })
	if _, err := s.admit("y", wantingSlots("y", 1, slot)); err != nil {
		t.Error(err)
	}
}

// An abort that cannot be delivered is delivered later, and before the next
// reservation.
func TestAbortIsDelivered(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	k := slotsOf("slots")
	sc, _ := s.serveScript(k)
	s.register("slots")
	sc.set(func(s *script) { s.abort = failing })
	sc.set(grants(func(r *hintv1.ReserveResponse) { r.GetReservation().Grants = nil }))
	if _, err := s.admit("adm", wantingSlots("pod", 1, slot)); err == nil {
		t.Fatal("admitted")
	}
	sc.set(func(s *script) { s.abort, s.reserve = nil, nil })
	s.expectUsage(k, nil, nil)
	// No provider is called about an admission that reserved nothing.
	before := len(sc.heard())
	s.theBus().Abort(t.Context(), "unknown")
	if heard := sc.heard()[before:]; slices.Contains(heard, "abort") {
		t.Errorf("heard %q", heard)
	}
}

// A pod that is admitted holds what it holds, also when something that was reserved once
// more for its admission is given up: the provider gets its allocations again.
func TestAbortOfAnAdmittedPod(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	k := slotsOf("slots")
	sc, _ := s.serveScript(k)
	s.register("slots")
	pod := wantingSlots("pod", 1, slot)
	if _, err := s.admit("adm", pod); err != nil {
		t.Fatal(err)
	}
	s.expectUsage(k, nil, []string{"pod"})
	draft := ledger.NewDraft(s.ledger.View())
	if err := s.theBus().Prepare(t.Context(), "adm", draft, hint.Request{Pod: pod}, &ledger.Trace{}); err != nil {
		t.Fatal(err)
	}
	s.expectUsage(k, []string{"adm"}, []string{"pod"})
	before := len(sc.heard())
	s.theBus().Abort(t.Context(), "adm")
	if heard := sc.heard()[before:]; !slices.Equal(heard, []string{"abort", "commit"}) {
		t.Errorf("heard %q, want an abort and all allocations", heard)
	}
	s.expectUsage(k, nil, []string{"pod"})
}

func TestRegister(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{Connect: 50 * time.Millisecond})
	s.builtIn = []hint.Entry{{Provider: &hinttest.Slots{Called: "cpu"}, Mode: hint.Required}}
	if err := s.publish(nil); err != nil {
		t.Fatal(err)
	}
	good := ledger.ExternalProvider{Name: "slots", Endpoint: "/slots", Deadline: time.Second, Resources: []string{string(slot)}}
	change := func(f func(*ledger.ExternalProvider)) ledger.ExternalProvider { o := good; f(&o); return o }
	for field, o := range map[string]ledger.ExternalProvider{
		"provider":     change(func(o *ledger.ExternalProvider) { o.Name = "cpu" }),
		"endpoint":     change(func(o *ledger.ExternalProvider) { o.Endpoint = "slots.sock" }),
		"deadline":     change(func(o *ledger.ExternalProvider) { o.Deadline = time.Hour }),
		"resources[1]": change(func(o *ledger.ExternalProvider) { o.Resources = []string{string(slot), "cpu"} }),
		"resources":    change(func(o *ledger.ExternalProvider) { o.Resources = make([]string, 100) }),
	} {
		fe := new(errdefs.Error)
		if err := s.registry.Register(t.Context(), o, self); !errors.As(err, &fe) || fe.Class != errdefs.Invalid ||
			fe.Fields[0].Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, name := range []string{"", "Slots", "-a", "a-", "a.b", strings.Repeat("a", 64)} {
		if err := s.registry.Register(t.Context(), change(func(o *ledger.ExternalProvider) { o.Name = name }),
			self); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if err := s.registry.Register(t.Context(), change(func(o *ledger.ExternalProvider) { o.Endpoint = "/" + strings.Repeat("x", 107) }),
		self); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("long path: %v", err)
	}
	err := s.registry.Register(t.Context(), good, self)
	if errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), " at /slots") {
		t.Errorf("nobody there: %v", err)
	}
	if got := s.registry.List(); len(got) != 1 || !got[0].BuiltIn || s.ledger.View().Generation() != 0 {
		t.Errorf("something was registered: %+v", got)
	}
}

// What answers at the endpoint is another provider.
func TestRegisterSomebodyElse(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	s.serveProvider(slotsOf("chairs"))
	err := s.registry.Register(patient(t), ledger.ExternalProvider{Name: "slots", Endpoint: "/chairs"}, self)
	if errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), `this is provider chairs, not "slots"`) {
		t.Errorf("%v", err)
	}
	if code, _ := errdefs.CodeOf(err, errdefs.Unavailable); code != "PROVIDER_FAILED" {
		t.Errorf("code %s", code)
	}
}

// A resource has one provider: who is there first has it.
func TestResourceHasOneProvider(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	for _, name := range []string{"slots", "benches"} {
		s.serveScript(slotsOf(name))
	}
	refused := func(name, resource, text string) {
		t.Helper()
		before := s.ledger.View().Generation()
		err := s.registry.Register(t.Context(), ledger.ExternalProvider{Name: name, Endpoint: "/" + name, Deadline: deadline,
			Resources: []string{resource}}, self)
		if errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), text) {
			t.Errorf("%s for %s: %v, want a refusal with %q", name, resource, err, text)
		}
		if s.ledger.View().Generation() != before {
			t.Error("the ledger has changed")
		}
	}
	s.plugins.Store("example.com/gpu", true)
	refused("slots", "example.com/gpu", "a device plugin serves example.com/gpu")
	s.register("slots", func(o *ledger.ExternalProvider) { o.Resources = []string{string(slot)} })
	refused("benches", string(slot), "provider slots serves "+string(slot))
	if by, ok := s.servedBy(slot); !ok || by != "slots" {
		t.Errorf("%s is served by %q, %v", slot, by, ok)
	}
	// Its own registration is no obstacle, and after it nothing is.
	s.register("slots", func(o *ledger.ExternalProvider) { o.Resources = []string{string(slot), "example.com/sofa"} })
	if err := s.registry.Unregister(t.Context(), "slots", self); err != nil {
		t.Fatal(err)
	}
	s.register("benches", func(o *ledger.ExternalProvider) { o.Resources = []string{string(slot)} })
}

// A provider that named no resources does not speak of a plugin's.
func TestPluginsResourceIsNotItsOwn(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	s.serveScript(slotsOf("slots"))
	s.register("slots", func(o *ledger.ExternalProvider) { o.Resources = nil })
	s.plugins.Store(string(slot), true)
	if _, err := s.admit("a", wantingSlots("a", 1, slot)); err == nil || !strings.Contains(err.Error(), "not its own") {
		t.Errorf("%v, want a wrong answer", err)
	}
}

// A known provider is on the bus from the start on, connected or not.
func TestRegistrationsStay(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	sc, stop := s.serveScript(slotsOf("slots"))
	s.register("slots", func(o *ledger.ExternalProvider) { o.Index = 3 })
	s.serveScript(slotsOf("benches"))
	s.register("benches", func(o *ledger.ExternalProvider) { o.Index, o.Required, o.Resources = 5, false, nil })
	s.end()
	stop()
	s.restart()
	_, err := s.admit("adm", wantingSlots("pod", 1, slot))
	if errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), "provider slots cannot be called") {
		t.Errorf("%v", err)
	}
	var names []string
	for _, e := range s.theBus().Entries() {
		names = append(names, e.Provider.Name()+" "+string(e.Mode))
	}
	if want := []string{"slots required", "benches advisory"}; !slices.Equal(names, want) {
		t.Errorf("bus %q, want %q", names, want)
	}
	if len(sc.heard()) == 0 {
		t.Error("the first one was never asked")
	}
	s.serveScript(slotsOf("slots"))
	s.eventually("it is found again", func() bool { return s.status("slots").State == Connected })
	if _, err := s.admit("adm", wantingSlots("pod", 1, slot)); err != nil {
		t.Error(err)
	}
}

// Registering again with the same words changes nothing; with others it replaces.
func TestRegisterAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	k := slotsOf("slots")
	s.serveScript(k)
	s.register("slots")
	generation, bus := s.ledger.View().Generation(), s.theBus()
	s.register("slots")
	if s.ledger.View().Generation() != generation || s.theBus() != bus {
		t.Error("the same registration again changed something")
	}
	// An admission that began before continues with what it began with.
	pod := wantingSlots("pod", 1, slot)
	draft := ledger.NewDraft(s.ledger.View())
	draft.PutPod(&ledger.Pod{Pod: *pod})
	req := hint.Request{Pod: pod}
	var trace ledger.Trace
	if err := bus.Plan(t.Context(), draft, req, hint.Hint{Any: true}, &trace); err != nil {
		t.Fatal(err)
	}
	s.register("slots", func(o *ledger.ExternalProvider) { o.Index = 1 })
	if s.theBus() == bus {
		t.Error("another registration did not change the bus")
	}
	if err := bus.Prepare(t.Context(), "adm", draft, req, &trace); err != nil {
		t.Errorf("with the bus of before: %v", err)
	}
	bus.Abort(t.Context(), "adm")
	s.expectUsage(k, nil, nil)
	if _, err := s.admit("next", wantingSlots("next", 1, slot)); err != nil {
		t.Error(err)
	}
	s.expectUsage(k, nil, []string{"next"})
	s.eventually("the lease is taken out of the ledger", func() bool { return len(s.leases()) == 0 })
}

func TestUnregister(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	sc, _ := s.serveScript(slotsOf("slots"))
	s.register("slots", func(o *ledger.ExternalProvider) { o.Required = false })
	sc.set(func(s *script) { s.commit = failing })
	if _, err := s.admit("adm", wantingSlots("pod", 1, slot)); err != nil {
		t.Fatal(err)
	}
	if err := s.registry.Unregister(t.Context(), "slots", self); err != nil {
		t.Fatal(err)
	}
	if got := s.leases(); len(got) != 0 || len(s.registry.List()) != 0 || len(s.theBus().Entries()) != 0 {
		t.Errorf("left: leases %q, providers %+v", got, s.registry.List())
	}
	if pod, _ := s.ledger.View().Pod("pod"); len(pod.Claims) != 1 {
		t.Error("the pod lost its claim with the provider")
	}
	if err := s.registry.Unregister(t.Context(), "slots", self); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("again: %v", err)
	}
	if _, err := s.admit("other", wantingSlots("other", 1, slot)); err != nil {
		t.Errorf("without the provider: %v", err)
	}
}

// What the configuration requires is missing until it registers, and is required
// whatever it reports itself.
func TestRequiredByConfiguration(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{Required: []string{"slots"}})
	s.serveScript(slotsOf("slots"))
	_, err := s.admit("adm", wantingSlots("pod", 1, slot))
	if errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(),
		"provider slots cannot be called yet: the configuration requires it") {
		t.Errorf("%v", err)
	}
	if st := s.status("slots"); st.State != Away || !st.Required {
		t.Errorf("status %+v", st)
	}
	s.register("slots", func(o *ledger.ExternalProvider) { o.Required = false })
	if st := s.status("slots"); st.State != Connected || !st.Required {
		t.Errorf("status %+v", st)
	}
	if _, err := s.admit("adm", wantingSlots("pod", 1, slot)); err != nil {
		t.Error(err)
	}
	if err := s.registry.Unregister(t.Context(), "slots", self); err != nil {
		t.Fatal(err)
	}
	if _, err := s.admit("adm2", wantingSlots("pod2", 1, slot)); err == nil {
		t.Error("admitted without a required provider")
	}
}

// Providers come and go while admissions run; nothing is lost or left.
func TestProvidersComeAndGoUnderLoad(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	k := slotsOf("slots")
	s.serveScript(k)
	s.register("slots")
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 20 {
			o := ledger.ExternalProvider{Name: "slots", Endpoint: "/slots", Required: true, Deadline: deadline, Index: i % 3,
				Resources: []string{string(slot)}}
			if err := s.registry.Register(patient(t), o, self); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 40 {
		id := fmt.Sprint(i)
		if _, err := s.admit(id, wantingSlots(id, 2, slot)); err != nil {
			t.Errorf("admission %s: %v", id, err)
		}
		s.remove(id)
	}
	wg.Wait()
	s.expectUsage(k, nil, nil)
	s.eventually("no lease is left", func() bool { return len(s.leases()) == 0 })
}

// A registration belongs to the user who made it, a name of the configuration's to the
// user that it has there, and only the configuration makes a provider required.
func TestRegistrationsBelongToUsers(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{Allowed: []Allowance{{Provider: "benches", UID: 7}}})
	const owner, other = 5, 6
	k := slotsOf("slots")
	s.serveScript(k)
	s.serveScript(slotsOf("benches"))
	o := ledger.ExternalProvider{Name: "slots", Endpoint: "/slots", Deadline: deadline, Resources: []string{string(slot)}}
	denied := func(what string, err error, text string) {
		t.Helper()
		code, _ := errdefs.CodeOf(err, errdefs.PermissionDenied)
		if errdefs.ClassOf(err) != errdefs.PermissionDenied || !strings.Contains(err.Error(), text) || code != "NOT_PERMITTED" {
			t.Errorf("%s: %v, want a refusal with %q", what, err, text)
		}
	}
	required := o
	required.Required = true
	denied("required", s.registry.Register(t.Context(), required, Caller{UID: owner}), "providers.external.required")
	denied("required, by root", s.registry.Register(t.Context(), required, self), "providers.external.required")
	benches := ledger.ExternalProvider{Name: "benches", Endpoint: "/benches", Deadline: deadline}
	denied("a name of another's", s.registry.Register(t.Context(), benches, Caller{UID: owner}), "has this name for user 7, not for user 5")
	if err := s.registry.Register(patient(t), benches, Caller{UID: 7}); err != nil {
		t.Error(err)
	}
	if err := s.registry.Register(patient(t), o, Caller{UID: owner}); err != nil {
		t.Fatal(err)
	}
	moved := o
	moved.Endpoint = "/elsewhere"
	denied("replaced by another", s.registry.Register(t.Context(), moved, Caller{UID: other}), "was registered by user 5")
	denied("the same by another", s.registry.Register(t.Context(), o, Caller{UID: other}), "was registered by user 5")
	denied("unregistered by another", s.registry.Unregister(t.Context(), "slots", Caller{UID: other}), "was registered by user 5")
	if st := s.status("slots"); st.UID != owner || st.Endpoint != "/slots" || st.State != Connected {
		t.Errorf("status %+v", st)
	}
	// A registration from before the configuration gave the name to a user is left out.
	s.end()
	s.config.Allowed = append(s.config.Allowed, Allowance{Provider: "slots", UID: other})
	s.restart()
	if _, known := s.servedBy(slot); known {
		t.Error("the provider of the wrong user is there after a start")
	}
	if err := s.registry.Register(patient(t), o, Caller{UID: other}); err != nil {
		t.Error(err)
	}
	if err := s.registry.Unregister(t.Context(), "slots", self); err != nil {
		t.Errorf("root: %v", err)
	}
}

// TestConfirmedOnAKnownConnection: a provider gets its allocations only once it is noted
// that the connection is there. What it confirmed before would be forgotten then, and a
// provider that has just registered would be away for a moment.
func TestConfirmedOnAKnownConnection(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	sc, _ := s.serveScript(slotsOf("slots"))
	p, err := s.registry.newProxy(ledger.ExternalProvider{Name: "slots", Endpoint: "/slots", Deadline: deadline}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.release()
	p.conn.Connect()
	s.eventually("it is connected", func() bool { return p.conn.GetState() == connectivity.Ready })
	if err := p.attempt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if heard := sc.heard(); len(heard) > 0 {
		t.Errorf("told before: %q", heard)
	}
	ctx, cancel := context.WithCancel(t.Context())
	watching := make(chan struct{})
	go func() { defer close(watching); p.watch(ctx) }()
	<-p.wake
	if err := p.attempt(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-watching
	if st := p.status(); st.State != Connected {
		t.Errorf("status %+v", st)
	}
}
