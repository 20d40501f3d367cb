package hintproxy

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// registerAs registers a provider of no resources, which listens at an endpoint.
func (s *stage) registerAs(ctx context.Context, uid uint32, name, endpoint string) error {
	return s.registry.Register(ctx, ledger.ExternalProvider{Name: name, Endpoint: endpoint, Deadline: deadline},
		Caller{UID: uid, Trusted: uid == 0})
}

// registered lists the providers of the ledger.
func (s *stage) registered() (names []string) {
	for o := range s.ledger.View().ExternalProviders() {
		names = append(names, o.Name)
	}
	return names
}

// Users have a few registrations each, and all of them together a few more. Names in the configuration do
// not count, so no user displaces a required provider.
func TestRegistrationsAreLimited(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{Required: []string{"wanted"}, Allowed: []Allowance{{Provider: "allowed", UID: 1}}})
	sc, _ := s.serveScript(slotsOf("all"))
	sc.set(func(sc *script) { // it is every provider
		sc.commit = func(context.Context, *hintv1.CommitRequest) (*hintv1.CommitResponse, error) {
			return &hintv1.CommitResponse{}, nil
		}
	})
	register := func(uid uint32, name string, want errdefs.Class) {
		t.Helper()
		err := s.registerAs(patient(t), uid, name, "/all")
		if want == 0 && err != nil || want != 0 && errdefs.ClassOf(err) != want {
			t.Errorf("user %d registers %s: %v", uid, name, err)
		}
	}
	for uid := range uint32(maxRegistrations / maxOfUser) {
		for i := range maxOfUser {
			register(uid+1, fmt.Sprintf("p-%d-%d", uid, i), 0)
		}
		register(uid+1, "one-more", errdefs.Exhausted)
		register(uid+1, fmt.Sprintf("p-%d-0", uid), 0) // it has it already
	}
	register(100, "of-another-user", errdefs.Exhausted)
	register(1, "allowed", 0)
	register(100, "wanted", 0)
	if n := len(s.registered()); n != maxRegistrations+2 {
		t.Errorf("%d registrations", n)
	}
	s.endpoints.mu.Lock()
	defer s.endpoints.mu.Unlock()
	// One for each user: the process behind a socket is checked for the user.
	if n, users := s.endpoints.dialed["/all"], maxRegistrations/maxOfUser+1; n != users {
		t.Errorf("%d connections to one endpoint of %d users", n, users)
	}
}

// A name that is registered again and again keeps one connection.
func TestRegisteredAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	s.serveScript(slotsOf("slots"))
	for i := range 20 {
		if err := s.registry.Register(patient(t), ledger.ExternalProvider{
			Name: "slots", Endpoint: "/slots", Deadline: deadline, Index: i, Resources: []string{string(slot)},
		}, Caller{UID: 7}); err != nil {
			t.Fatal(err)
		}
	}
	s.registry.mu.Lock()
	earlier, held := len(s.registry.earlier), s.registry.proxies["slots"].conn
	s.registry.mu.Unlock()
	s.eventually("only two proxies have the connection", func() bool {
		s.registry.connections.mu.Lock()
		defer s.registry.connections.mu.Unlock()
		return held.users <= 2
	})
	s.endpoints.mu.Lock()
	defer s.endpoints.mu.Unlock()
	if n := s.endpoints.dialed["/slots"]; n != 1 || earlier != 1 {
		t.Errorf("%d connections, %d earlier proxies", n, earlier)
	}
	if trace, err := s.admit("adm", wantingSlots("pod", 1, slot)); err != nil {
		t.Errorf("%v, %+v", err, trace)
	}
}

// A user who registers and unregisters one name after the other keeps a few proxies, and none once their admissions must have ended.
func TestRegistrationsComeAndGo(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{false, true} {
		lease := time.Hour
		if ends {
			lease = time.Millisecond
		}
		s := newStage(t, Config{Lease: lease})
		sc, _ := s.serveScript(slotsOf("all"))
		sc.set(func(sc *script) { // it is every provider
			sc.commit = func(context.Context, *hintv1.CommitRequest) (*hintv1.CommitResponse, error) {
				return &hintv1.CommitResponse{}, nil
			}
		})
		for i := range 3 * maxOfUser {
			name := fmt.Sprintf("p-%d", i)
			if err := s.registerAs(patient(t), 7, name, "/all"); err != nil {
				t.Fatal(err)
			}
			if err := s.registry.Unregister(patient(t), name, Caller{UID: 7}); err != nil {
				t.Fatal(err)
			}
		}
		want := maxOfUser
		if ends {
			want = 0
		}
		s.eventually("the others have ended", func() bool {
			s.registry.mu.Lock()
			earlier := len(s.registry.earlier)
			s.registry.mu.Unlock()
			s.registry.connections.mu.Lock()
			defer s.registry.connections.mu.Unlock()
			users := 0
			for _, c := range s.registry.connections.open {
				users += c.users
			}
			return earlier == want && users == want
		})
	}
}

// A provider that is silent while it registers delays nobody but its own user.
func TestSilentRegistrationDelaysNobody(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	sc, _ := s.serveScript(slotsOf("silent"))
	asked := make(chan struct{}, 1)
	sc.set(func(sc *script) {
		sc.commit = func(ctx context.Context, _ *hintv1.CommitRequest) (*hintv1.CommitResponse, error) {
			select {
			case asked <- struct{}{}:
			default:
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	s.serveScript(slotsOf("good"))
	ctx, cancel := context.WithCancel(t.Context())
	waits, second := make(chan error, 1), make(chan error, 1)
	go func() { waits <- s.registerAs(ctx, 7, "silent", "/silent") }()
	<-asked
	go func() { second <- s.registerAs(ctx, 7, "other", "/good") }()
	for _, uid := range []uint32{0, 8} {
		if err := s.registerAs(patient(t), uid, "good", "/good"); err != nil {
			t.Errorf("user %d registers: %v", uid, err)
		}
		if err := s.registry.Unregister(patient(t), "good", Caller{UID: uid}); err != nil {
			t.Errorf("user %d unregisters: %v", uid, err)
		}
	}
	if names := s.registered(); len(names) != 0 {
		t.Errorf("registered: %q", names)
	}
	cancel()
	for _, c := range []chan error{waits, second} {
		if err := <-c; err == nil {
			t.Error("the user with the silent provider has registered")
		}
	}
}

// A connected provider that is silent later delays no registration and no removal.
func TestSilentProviderIsRemoved(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	sc, _ := s.serveScript(slotsOf("slots"))
	s.register("slots", func(o *ledger.ExternalProvider) { o.Required = false })
	asked := make(chan struct{})
	sc.set(func(sc *script) {
		sc.commit = func(ctx context.Context, _ *hintv1.CommitRequest) (*hintv1.CommitResponse, error) {
			close(asked)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	if _, err := s.admit("adm", wantingSlots("pod", 1, slot)); err != nil {
		t.Fatal(err)
	}
	<-asked // the provider never confirms the commit
	if err := s.registry.Unregister(patient(t), "slots", self); err != nil {
		t.Error(err)
	}
	if leases, names := s.leases(), s.registered(); len(leases)+len(names) != 0 {
		t.Errorf("leases %q, providers %q", leases, names)
	}
	s.timeUp()
}

// Registrations end with the role of their user, whether it lost the role while berthd ran or before the start.
func TestRegistrationEndsWithTheRole(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	for _, name := range []string{"mine", "yours"} {
		s.serveScript(slotsOf(name))
	}
	for uid, name := range map[uint32]string{7: "mine", 8: "yours"} {
		if err := s.registerAs(patient(t), uid, name, "/"+name); err != nil {
			t.Fatal(err)
		}
	}
	s.revoked.Store(uint32(7), true)
	if err := s.registry.EndRegistrations(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names := s.registered(); len(names) != 1 || names[0] != "yours" {
		t.Errorf("registered: %q", names)
	}
	if err := s.registerAs(patient(t), 7, "mine", "/mine"); errdefs.ClassOf(err) != errdefs.PermissionDenied {
		t.Errorf("register without the role: %v", err)
	}
	s.revoked.Store(uint32(8), true)
	s.restart()
	if list := s.registry.List(); len(list) != 0 {
		t.Errorf("after the start: %+v", list)
	}
	s.eventually("the ledger has none", func() bool { return len(s.registered()) == 0 })
}

// A provider that stays away loses its registration, unless pods hold its claims or it is required.
func TestRegistrationEndsWithItsLease(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	var stops []func()
	for _, name := range []string{"needed", "holding", "away", "here"} {
		_, stop := s.serveScript(slotsOf(name))
		s.register(name, func(o *ledger.ExternalProvider) {
			o.Required, o.Resources = name == "needed", []string{"example.com/" + name}
		})
		if name != "here" {
			stops = append(stops, stop)
		}
	}
	held := ledger.Claim{Owner: ledger.Owner{Pod: "pod", Container: "c"}, Provider: "holding", Resource: "example.com/holding",
		Opaque: []byte{1}}
	if _, err := s.ledger.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutPod(&ledger.Pod{Pod: *wantingSlots("pod", 1, "example.com/holding"), AdmissionID: "a", Claims: []ledger.Claim{held}})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, stop := range stops {
		stop()
	}
	s.eventually("they are away", func() bool {
		return s.status("needed").State == Away && s.status("holding").State == Away && s.status("away").State == Away
	})
	for _, step := range []struct {
		passes time.Duration
		want   string
	}{{registrationLease - time.Second, "away here holding needed"}, {time.Second, "here holding needed"}} {
		s.clock.advance(step.passes)
		if err := s.registry.EndRegistrations(t.Context()); err != nil {
			t.Fatal(err)
		}
		if names := strings.Join(s.registered(), " "); names != step.want {
			t.Errorf("registered: %q, want %q", names, step.want)
		}
	}
	s.remove("pod")
	if err := s.registry.EndRegistrations(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names := strings.Join(s.registered(), " "); names != "here needed" {
		t.Errorf("registered: %q", names)
	}
}

// However many advisory providers answer slowly, an admission takes no longer than with one.
func TestAdvisoryProvidersShareTheirTime(t *testing.T) {
	t.Parallel()
	const slow = 1500 * time.Millisecond
	s := newStage(t, Config{})
	for i := range maxOfUser {
		name := fmt.Sprintf("slow-%d", i)
		sc, _ := s.serveScript(slotsOf(name))
		sc.set(func(sc *script) {
			sc.hints = func(context.Context, *hintv1.GetHintsRequest) (*hintv1.GetHintsResponse, error) {
				s.clock.advance(slow)
				return &hintv1.GetHintsResponse{}, nil
			}
		})
		if err := s.registerAs(patient(t), 7, name, "/"+name); err != nil {
			t.Fatal(err)
		}
	}
	before := s.clock.Now()
	ctx := hint.WithCalls(t.Context(), &hint.Calls{})
	pod, trace := wantingSlots("pod", 1, slot), &ledger.Trace{}
	if _, err := s.theBus().Hints(ctx, s.ledger.View(), hint.Request{Pod: pod, Container: 0}, trace); err != nil {
		t.Fatal(err)
	}
	noted := 0
	for _, step := range trace.Steps {
		if step.Kind == ledger.StepNoted && strings.Contains(step.Text, "have used it up") {
			noted++
		}
	}
	if took := s.clock.Now().Sub(before); took != 2*slow || noted != maxOfUser-2 {
		t.Errorf("it took %s, and %d providers are noted", took, noted)
	}
}
