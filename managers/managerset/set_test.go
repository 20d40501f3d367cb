package managerset_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
)

// external is a provider that has no opinion.
type external struct{ name string }

func (o external) Name() string { return o.name }
func (external) Hints(context.Context, *ledger.View, hint.Request) ([]hint.ResourceAnswer, error) {
	return nil, nil
}

func (external) Plan(context.Context, *ledger.View, hint.Request, hint.Hint) ([]ledger.Claim, error) {
	return nil, nil
}

func (external) Prepare(_ context.Context, _ string, _ hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
	return claims, nil
}

// build makes a set of the static CPU policy with n reserved CPUs.
func build(t *testing.T, digest string, reserved int64) *managerset.Set {
	t.Helper()
	shape, err := machine.ParseShape("2s4c")
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.New(shape)
	if err != nil {
		t.Fatal(err)
	}
	p, err := managerset.New(managerset.Config{
		CPU:      cpu.Config{Policy: cpu.PolicyStatic, ReservedMilliCPU: reserved * 1000},
		Topology: topology.Config{Policy: topology.Restricted, Scope: hint.ContainerScope},
		Digest:   digest,
	}, m)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// activate makes a set active.
func activate(t *testing.T, p *managerset.Set) *managerset.Managers {
	t.Helper()
	s, err := managerset.NewManagers(p, device.New(device.NewInventory(nil, time.Time{}), nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// names calls a set's providers and lists those that answered.
func names(t *testing.T, p *managerset.Set, view *ledger.View) (out []string) {
	t.Helper()
	replies, err := p.Bus.Hints(t.Context(), view, hint.Request{Pod: &ledgertest.Pod("a", "main").Pod, Container: 0}, &ledger.Trace{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range replies {
		out = append(out, r.Provider)
	}
	return out
}

func TestBuiltInProvidersInOrder(t *testing.T) {
	t.Parallel()
	p := build(t, "a", 1)
	l := ledgertest.New(t, p.Rules)
	if got := names(t, activate(t, p).On(l.View()), l.View()); !slices.Equal(got, []string{"device", "cpu", "memory"}) {
		t.Errorf("asked %v", got)
	}
	if p.Rules.ReservedCPUs != p.CPU.Reserved() || p.Rules.ConfigDigest != "a" {
		t.Errorf("rules %+v", p.Rules)
	}
}

func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	good := build(t, "a", 1)
	for name, cfg := range map[string]managerset.Config{
		"cpu":      {CPU: cpu.Config{Policy: "dynamic"}, Topology: topology.Config{Policy: topology.None}},
		"memory":   {Memory: memory.Config{Policy: "dynamic"}, Topology: topology.Config{Policy: topology.None}},
		"topology": {Topology: topology.Config{Policy: "dynamic"}},
	} {
		_, err := managerset.New(cfg, good.Rules.Machine)
		if err == nil || errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReplacement goes through the steps of a replacement and checks at each of them
// which set decides on the views that are still in use.
func TestReplacement(t *testing.T) {
	t.Parallel()
	first, second := build(t, "a", 1), build(t, "b", 2)
	l := ledgertest.New(t, first.Rules)
	old := l.View()
	s := activate(t, first)
	expect := func(when string, view *ledger.View, want *managerset.Set) {
		t.Helper()
		if got := s.On(view); got.CPU != want.CPU {
			t.Errorf("%s: the managers of %q decides on a view of %q", when, got.Rules.ConfigDigest, view.Rules().ConfigDigest)
		}
	}
	if err := s.Stage(second); err != nil {
		t.Fatal(err)
	}
	expect("before the commit", old, first)
	now, err := l.SetRules(t.Context(), second.Rules)
	if err != nil {
		t.Fatal(err)
	}
	expect("after the commit", now, second)
	expect("after the commit", old, first)
	s.Activate(second.Rules)
	expect("activated", now, second)
	if got := s.On(old); got != nil {
		t.Errorf("the managers of %q decide on a view of before", got.Rules.ConfigDigest)
	}
	if view, set := s.InForce(l.View); view != now || set != s.On(now) {
		t.Errorf("the managers of %q are in force, on a view of %q", set.Rules.ConfigDigest, view.Rules().ConfigDigest)
	}
	stale := true
	if view, _ := s.InForce(func() *ledger.View {
		if stale {
			stale = false
			return old
		}
		return l.View()
	}); view != now {
		t.Error("the managers in force are those of a view of before")
	}

	// A change that was not committed leaves the former set.
	if err := s.Stage(first); err != nil {
		t.Fatal(err)
	}
	s.Activate(second.Rules)
	expect("given up", now, second)
	s.Activate(build(t, "nobody", 1).Rules)
	expect("activated by mistake", now, second)
}

// TestOtherMachine: with the same configuration, the machine of the view says which set decides.
func TestOtherMachine(t *testing.T) {
	t.Parallel()
	first := build(t, "a", 1)
	less, err := first.Rules.Machine.Without(cpuset.Of(3))
	if err != nil {
		t.Fatal(err)
	}
	second, err := managerset.New(managerset.Config{
		CPU:      cpu.Config{Policy: cpu.PolicyStatic, ReservedMilliCPU: 1000},
		Topology: topology.Config{Policy: topology.Restricted, Scope: hint.ContainerScope}, Digest: "a",
	}, less)
	if err != nil {
		t.Fatal(err)
	}
	l := ledgertest.New(t, first.Rules)
	s, old := activate(t, first), l.View()
	if err := s.Stage(second); err != nil {
		t.Fatal(err)
	}
	now, err := l.SetRules(t.Context(), second.Rules)
	if err != nil {
		t.Fatal(err)
	}
	if s.On(old).CPU != first.CPU || s.On(now).CPU != second.CPU {
		t.Error("the managers of another machine decide")
	}
	s.Activate(now.Rules())
	if s.On(old) != nil || s.Of(first.Rules) != nil {
		t.Error("the former managers are still there")
	}
}

// TestExternalProviders join every set, also one that was built before they came.
func TestExternalProviders(t *testing.T) {
	t.Parallel()
	first, second := build(t, "a", 1), build(t, "b", 2)
	l := ledgertest.New(t, first.Rules)
	s := activate(t, first)
	if err := s.SetExternal([]hint.Entry{{Provider: external{"net"}, Mode: hint.Advisory}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Stage(second); err != nil {
		t.Fatal(err)
	}
	want := []string{"device", "cpu", "memory", "net"}
	if got := names(t, s.On(l.View()), l.View()); !slices.Equal(got, want) {
		t.Errorf("asked %v", got)
	}
	now, err := l.SetRules(t.Context(), second.Rules)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, s.On(now), now); !slices.Equal(got, want) {
		t.Errorf("asked %v", got)
	}
	trial, err := s.Join(build(t, "c", 3))
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, trial, now); !slices.Equal(got, want) {
		t.Errorf("without an activation: asked %v", got)
	}
	if err := s.SetExternal([]hint.Entry{{Provider: external{"cpu"}, Mode: hint.Advisory}}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("a second provider called cpu: %v", err)
	}
	if got := names(t, s.On(now), now); !slices.Equal(got, want) {
		t.Errorf("after the mistake: asked %v", got)
	}
	if err := s.SetExternal(nil); err != nil || len(names(t, s.On(now), now)) != 3 {
		t.Errorf("gone: %v", err)
	}
}
