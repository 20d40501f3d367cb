package hintproxy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
)

// failPublishing sets the error of all calls of Publish; nil ends it.
func (s *stage) failPublishing(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

// expectProviders checks that the ledger, the bus and the list of providers have the same names.
func (s *stage) expectProviders(step string, want ...string) {
	s.t.Helper()
	var bus, listed []string
	for _, e := range s.theBus().Entries() {
		bus = append(bus, e.Provider.Name())
	}
	for _, st := range s.registry.List() {
		listed = append(listed, st.Name)
	}
	if !slices.Equal(s.registered(), want) || !slices.Equal(bus, want) || !slices.Equal(listed, want) {
		s.t.Errorf("%s: ledger %q, bus %q, list %q, want %q", step, s.registered(), bus, listed, want)
	}
}

// A registration or its end is in the ledger and on the bus, or in neither.
func TestLedgerAndBusHaveTheSameProviders(t *testing.T) {
	t.Parallel()
	errPublish, errCommit := errors.New("no bus"), errors.New("no disk")
	s := newStage(t, Config{})
	for _, name := range []string{"first", "second"} {
		s.serveScript(slotsOf(name))
	}
	first := func(index int) error {
		return s.registry.Register(patient(t), ledger.ExternalProvider{
			Name: "first", Endpoint: "/first", Deadline: deadline, Index: index, Resources: []string{string(slot)},
		}, self)
	}
	second := func() error { return s.registerAs(patient(t), 0, "second", "/second") }
	remove := func() error { return s.registry.Unregister(patient(t), "first", self) }
	if err := first(1); err != nil {
		t.Fatal(err)
	}
	for step, call := range map[string]func() error{"register": second, "register again": func() error { return first(2) },
		"unregister": remove} {
		s.failPublishing(errPublish)
		if err := call(); !errors.Is(err, errPublish) {
			t.Errorf("%s without a bus: %v", step, err)
		}
		s.failPublishing(nil)
		s.expectProviders(step+" without a bus", "first")
		s.journal.FailNext(1, errCommit)
		if err := call(); !errors.Is(err, errCommit) {
			t.Errorf("%s without a disk: %v", step, err)
		}
		s.expectProviders(step+" without a disk", "first")
		if _, err := s.admit(step, wantingSlots(strings.ReplaceAll(step, " ", "-"), 1, slot)); err != nil {
			t.Errorf("admit after %s: %v", step, err)
		}
		if st := s.status("first"); st.Index != 1 {
			t.Errorf("%s has changed the registration: %+v", step, st)
		}
	}
	for _, call := range []func() error{second, remove} {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	s.expectProviders("at the end", "second")
}

// A provider of the ledger that cannot be on the bus does not prevent a start. It is reported and can be removed.
func TestStoredProviderDoesNotPreventAStart(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	for _, name := range []string{"first", "taken", "third"} {
		s.serveScript(slotsOf(name))
		if err := s.registerAs(patient(t), 7, name, "/"+name); err != nil {
			t.Fatal(err)
		}
	}
	// The next version of berthd has a provider of that name.
	s.builtIn = []hint.Entry{{Provider: &hinttest.Slots{Called: "taken"}, Mode: hint.Required}}
	s.restart()
	s.eventually("the others are used", func() bool {
		return s.status("first").State == Connected && s.status("third").State == Connected
	})
	if names := s.registered(); !slices.Equal(names, []string{"first", "taken", "third"}) {
		t.Errorf("the ledger has %q", names)
	}
	list := s.registry.List()
	if last := list[len(list)-1]; len(list) != 4 || last.Name != "taken" || last.State != Away || last.UID != 7 ||
		!strings.Contains(last.Message, "two hint providers") {
		t.Errorf("listed: %+v", list)
	}
	if log := s.log.String(); strings.Count(log, "a registered hint provider is not used") != 1 ||
		!strings.Contains(log, "provider=taken") {
		t.Errorf("log: %s", log)
	}
	if err := s.registry.Unregister(t.Context(), "taken", Caller{UID: 8}); errdefs.ClassOf(err) != errdefs.PermissionDenied {
		t.Errorf("another user removes it: %v", err)
	}
	if err := s.registry.Unregister(t.Context(), "taken", Caller{UID: 7}); err != nil {
		t.Error(err)
	}
	if list := s.registry.List(); len(list) != 3 || len(s.registered()) != 2 {
		t.Errorf("left: %+v", list)
	}
}
