package admission_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// other makes a change for an engine: the CPU policy with reserved CPUs, or none
// without, under a topology policy.
func other(t *testing.T, h *fixture, reserved cpuset.Set, policy topology.Policy, options ...string) admission.Change {
	t.Helper()
	m := h.ledger.View().Machine()
	cfg := cpu.Config{Options: map[string]string{}, Features: cpu.Features{BetaOptions: true,
		Features: workload.Features{PodLevelResources: true}}}
	if !reserved.IsEmpty() {
		cfg.Policy, cfg.ReservedCPUs = cpu.PolicyStatic, reserved
	}
	for _, o := range options {
		cfg.Options[o] = "true"
	}
	cpus, err := cpu.New(cfg, m)
	must(t, err)
	bus, err := hint.NewBus(nil, []hint.Entry{
		{Provider: device.New(h.inventory, h.plugins), Mode: hint.Required},
		{Provider: cpus, Mode: hint.Required},
	}, nil)
	must(t, err)
	merger, err := topology.New(topology.Config{Policy: policy, Scope: hint.ContainerScope}, m.NodeMask(), m.Distances())
	must(t, err)
	return admission.Change{
		Rules: ledger.Rules{
			Machine: m, ReservedCPUs: cpus.Reserved(), StrictReservation: cpus.StrictReservation(), ConfigDigest: "changed",
		},
		Bus: bus, Policy: merger, Override: &ledger.Override{Settings: json.RawMessage(`{}`)},
	}
}

// fates lists what becomes of pods, each with its message.
func fates(o admission.Outlook) (out []string) {
	for _, p := range o.Pods {
		text := p.Pod.UID() + " " + string(p.Fate)
		for _, f := range p.Findings {
			text += " [" + string(f.Rule) + "]"
		}
		if p.Message != "" {
			text += ": " + p.Message
		}
		out = append(out, text)
	}
	return out
}

func TestForesee(t *testing.T) {
	t.Parallel()
	shared := workload.Pod{UID: "shared", Name: "shared", Namespace: "default", Containers: []workload.Container{{Name: "main"}}}
	for _, row := range []struct {
		name   string
		change func(t *testing.T, h *fixture) admission.Change
		want   []string
	}{
		{"nothing changes", func(t *testing.T, h *fixture) admission.Change {
			return other(t, h, h.ledger.View().Rules().ReservedCPUs, topology.BestEffort)
		}, []string{"two same", "wide same", "shared same"}},
		{"a stricter policy", func(t *testing.T, h *fixture) admission.Change {
			return other(t, h, h.ledger.View().Rules().ReservedCPUs, topology.SingleNUMANode)
		}, []string{"two same", "wide refused: Resources cannot be allocated with Topology locality", "shared same"}},
		{"no CPUs of their own", func(t *testing.T, h *fixture) admission.Change {
			return other(t, h, cpuset.Set{}, topology.BestEffort)
		}, []string{
			"two otherwise: main has 2 CPUs (exclusive) and would get no CPUs of its own",
			"wide otherwise: main has 8 CPUs (exclusive) and would get no CPUs of its own", "shared same",
		}},
		{"other CPUs reserved", func(t *testing.T, h *fixture) admission.Change {
			set, _, _ := h.ledger.View().ContainerCPUs(ledger.Owner{Pod: "two", Container: "main"})
			return other(t, h, set, topology.BestEffort)
		}, []string{"two same [reserved]", "wide same", "shared same"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, topology.BestEffort)
			for _, p := range []workload.Pod{guaranteed("two", 2, 1), guaranteed("wide", 8, 0), shared} {
				h.now.Add(1)
				h.admit(t, p)
			}
			before := h.ledger.View()
			o, err := h.Foresee(t.Context(), row.change(t, h))
			must(t, err)
			if got := fates(o); strings.Join(got, "\n") != strings.Join(row.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(row.want, "\n"))
			}
			if h.ledger.View() != before || o.Before != before {
				t.Error("the ledger has moved")
			}
		})
	}
}

// TestReconfigure: one commit, everybody keeps what they have, and the next pod is
// decided by the new managers.
func TestReconfigure(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, guaranteed("a", 2, 0))
	had, commits := h.cpus("a"), h.journal.Commits()
	ch := other(t, h, h.ledger.View().Rules().ReservedCPUs, topology.SingleNUMANode)
	o, err := h.Reconfigure(t.Context(), ch)
	must(t, err)
	if o.After != h.ledger.View() || o.After.Rules().ConfigDigest != "changed" || o.After.Override() != ch.Override {
		t.Errorf("rules %+v, override %v", o.After.Rules(), o.After.Override())
	}
	if h.journal.Commits() != commits+1 || h.cpus("a") != had {
		t.Errorf("%d commits; a had %s and has %s", h.journal.Commits()-commits, had, h.cpus("a"))
	}
}

// TestChangeDuringAdmission: what was planned under the old rules is not committed;
// the managers of the new rules plan again.
func TestChangeDuringAdmission(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	ch := other(t, h, h.ledger.View().Rules().ReservedCPUs, topology.SingleNUMANode)
	old, asked := h.Managers, 0
	h.Managers = func(view *ledger.View) (*hint.Bus, *topology.Manager) {
		asked++
		if view.Rules().ConfigDigest == "changed" {
			return ch.Bus, ch.Policy
		}
		return old(view)
	}
	h.plugins.during = func() {
		h.plugins.during = nil
		_, err := h.ledger.SetOverride(t.Context(), ch.Rules, nil)
		must(t, err)
	}
	// With a reserved CPU on each node, eight need both.
	v := h.admit(t, guaranteed("a", 8, 1))
	if v.Outcome != admission.Rejected || v.Reason != errdefs.TopologyAffinityError {
		t.Errorf("%v %s: %s", v.Outcome, v.Reason, v.Message)
	}
	if !has(ledger.StepReplanned, v.Trace) || asked < 2 {
		t.Errorf("managers were asked for %d times, steps %v", asked, kinds(v.Trace))
	}
}

func TestEmptySharedPoolIsRefused(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	m := h.ledger.View().Machine()
	ch := other(t, h, m.CPUs(), topology.BestEffort, cpu.StrictReservation)
	_, err := h.Foresee(t.Context(), ch)
	must(t, err) // nothing runs there
	h.admit(t, workload.Pod{UID: "shared", Name: "shared", Namespace: "default", Containers: []workload.Container{{Name: "main"}}})
	before := h.ledger.View()
	_, err = h.Reconfigure(t.Context(), ch)
	if class(t, err) != errdefs.Precondition || !strings.Contains(err.Error(), "container main of pod") {
		t.Errorf("%v", err)
	}
	if code, _ := errdefs.CodeOf(err, errdefs.Precondition); code != "SHARED_POOL_EMPTY" {
		t.Errorf("code %s", code)
	}
	if h.ledger.View() != before {
		t.Error("the ledger has moved")
	}
}
