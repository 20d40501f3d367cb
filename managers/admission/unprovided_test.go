package admission_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

const fpga = "example.org/fpga"

// wanting makes a pod that requests some GPUs and FPGAs.
func wanting(uid string, gpus, fpgas int64) workload.Pod {
	p := guaranteed(uid, 1, gpus)
	p.Containers[0].Limits[fpga] = fpgas
	return p
}

func texts(notes []admission.Note) (out []string) {
	for _, n := range notes {
		out = append(out, n.Text)
	}
	return out
}

// TestUnknownResources admits a pod that requests a resource that no plugin has
// registered for, under every setting, in the grace and after it.
func TestUnknownResources(t *testing.T) {
	t.Parallel()
	const (
		waits   = "container main requests 2 example.org/fpga, for which no device plugin and no provider has registered yet; plugins have 1m0s after the start of berthd to do so (devices.registrationGrace)"
		refused = "container main requests 2 example.org/fpga, which no device plugin and no provider here has ever registered for: known are example.com/gpu. If another program provides the resource, add it to devices.elsewhere"
		without = "container main requests 2 example.org/fpga, which has no provider here: the container does not get it"
		others  = "container main requests 2 example.org/fpga, which another program allocates (devices.elsewhere)"
	)
	const inGrace, after = 1059, 1060
	for name, row := range map[string]struct {
		unknown   admission.UnknownResource
		elsewhere []string
		rejects   bool // there are no deferrals
		now       int64
		fpgas     int64
		want      admission.Outcome
		fails     bool // the call does
		message   string
		notes     []string
		expected  bool // of the notes
	}{
		"defer, in the grace":       {unknown: admission.DeferUnknown, now: inGrace, fpgas: 2, want: admission.Deferred, message: waits},
		"defer, after the grace":    {unknown: admission.DeferUnknown, now: after, fpgas: 2, message: refused},
		"defer, without deferrals":  {unknown: admission.DeferUnknown, rejects: true, now: inGrace, fpgas: 2, fails: true, message: waits},
		"defer, late, no deferrals": {unknown: admission.DeferUnknown, rejects: true, now: after, fpgas: 2, message: refused},
		"reject":                    {unknown: admission.RejectUnknown, now: inGrace, fpgas: 2, message: refused},
		"ignore": {unknown: admission.IgnoreUnknown, now: inGrace, fpgas: 2, want: admission.Admitted,
			notes: []string{without}},
		"nothing said":   {now: after, fpgas: 2, want: admission.Admitted, notes: []string{without}},
		"none asked for": {unknown: admission.RejectUnknown, now: after, want: admission.Admitted},
		"elsewhere by name": {unknown: admission.RejectUnknown, elsewhere: []string{fpga}, now: after, fpgas: 2,
			want: admission.Admitted, notes: []string{others}, expected: true},
		"elsewhere by domain": {unknown: admission.DeferUnknown, elsewhere: []string{"example.org"}, now: after, fpgas: 2,
			want: admission.Admitted, notes: []string{others}, expected: true},
		"all elsewhere": {unknown: admission.IgnoreUnknown, elsewhere: []string{"*"}, now: after, fpgas: 2,
			want: admission.Admitted, notes: []string{others}, expected: true},
		"elsewhere, another": {unknown: admission.RejectUnknown, elsewhere: []string{"example.org/f", "org", "a.example.org"},
			now: after, fpgas: 2, message: refused},
		"elsewhere, and not its own": {unknown: admission.DeferUnknown, elsewhere: []string{gpu}, now: inGrace, fpgas: 2,
			want: admission.Deferred, message: waits},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, topology.None)
			h.DeferWaits = !row.rejects
			h.Resources = admission.Resources{Unknown: row.unknown, Started: time.Unix(1000, 0), Grace: time.Minute,
				Elsewhere: row.elsewhere}
			h.now.Store(row.now)
			for _, dry := range []bool{true, false} {
				v, err := h.Admit(context.Background(), admission.Request{Pod: wanting("pod", 1, row.fpgas), DryRun: dry})
				if row.fails {
					var wait *errdefs.Error
					if !errors.As(err, &wait) || wait.Class != errdefs.Unavailable || wait.Reason != admission.ResourceUnknown ||
						wait.Resource != fpga || wait.RetryAfter == 0 || !strings.HasSuffix(wait.Message, row.message) {
						t.Errorf("got %#v", err)
					}
					continue
				}
				must(t, err)
				if v.Outcome != row.want || v.Message != row.message || v.Trace.Message != row.message ||
					!slices.Equal(texts(v.Notes), row.notes) {
					t.Errorf("%v %q, notes %q", v.Outcome, v.Message, texts(v.Notes))
				}
				for _, n := range v.Notes {
					if n.Expected != row.expected || n.Container != "main" {
						t.Errorf("note %+v", n)
					}
				}
				switch row.want {
				case admission.Rejected:
					if v.Reason != errdefs.OutOf(fpga) || v.Condition != nil || v.RetryAfter != 0 {
						t.Errorf("%s %v %v", v.Reason, v.Condition, v.RetryAfter)
					}
				case admission.Deferred:
					if v.Reason != "" || v.Trace.Reason != "" || v.Condition == nil ||
						*v.Condition != (admission.Condition{Type: admission.ResourceUnknown, Resource: fpga}) ||
						v.RetryAfter != 5*time.Second {
						t.Errorf("%s %v %v", v.Reason, v.Condition, v.RetryAfter)
					}
				case admission.Admitted:
					if (len(row.notes) > 0) != has(ledger.StepNoted, v.Trace) && row.fpgas > 0 {
						t.Errorf("trace %v", kinds(v.Trace))
					}
				}
			}
			if _, in := h.ledger.View().Pod("pod"); in != (row.want == admission.Admitted && !row.fails) {
				t.Errorf("in the ledger: %v", in)
			}
			if len(h.cgroups.pods) > 0 && row.want != admission.Admitted || len(h.plugins.calls) > 0 && row.want != admission.Admitted {
				t.Errorf("a pod that is not admitted has left %v, and called %v", h.cgroups.pods, h.plugins.calls)
			}
		})
	}
}

// TestResourceTurnsUp: a pod that waits gets its place when the plugin registers; one
// that was admitted without it has a note what to do, also in repeated answers.
func TestResourceTurnsUp(t *testing.T) {
	t.Parallel()
	register := func(h *fixture) {
		s := h.inventory.Registered(fpga, device.Options{}, time.Unix(1001, 0))
		h.inventory.Listed(s, []device.Device{{ID: "f0", Healthy: true}, {ID: "f1", Healthy: true}}, time.Unix(1001, 0))
	}
	h := newFixture(t, topology.None)
	h.Resources.Unknown = admission.DeferUnknown
	if v := h.admit(t, wanting("waits", 0, 1)); v.Outcome != admission.Deferred {
		t.Fatalf("%v %q", v.Outcome, v.Message)
	}
	h.Resources.Unknown = admission.IgnoreUnknown
	if v := h.admit(t, wanting("without", 0, 1)); v.Outcome != admission.Admitted {
		t.Fatalf("%v %q", v.Outcome, v.Message)
	}
	register(h)
	v := h.admit(t, wanting("waits", 0, 1))
	if _, held := v.Pod.Claim("main", fpga); !held || len(v.Notes) != 0 {
		t.Errorf("%v %q, notes %q", v.Outcome, v.Message, texts(v.Notes))
	}
	const want = "container main was admitted without the 1 example.org/fpga that it requests, which is known here now; remove the pod and admit it again to allocate it"
	v = h.admit(t, wanting("without", 0, 1))
	if !v.Repeated || !slices.Equal(texts(v.Notes), []string{want}) {
		t.Errorf("again: %v, notes %q", v.Repeated, texts(v.Notes))
	}
	for container, n := range map[string]int{"main": 1, "other": 0} {
		if got := h.Notes(v.View, v.Pod, container); len(got) != n {
			t.Errorf("of %s: %q", container, texts(got))
		}
	}
}

// offering is an advisory provider that knows a resource and gives none.
type offering struct{ hint.Provider }

func (offering) Name() string        { return "offering" }
func (offering) Resources() []string { return []string{fpga} }
func (offering) Hints(context.Context, *ledger.View, hint.Request) ([]hint.ResourceAnswer, error) {
	return nil, errors.New("away")
}

func (offering) Plan(context.Context, *ledger.View, hint.Request, hint.Hint) ([]ledger.Claim, error) {
	return nil, errors.New("away")
}

// TestKnownToAnAdvisoryProvider: an advisory provider does not make a resource unknown.
func TestKnownToAnAdvisoryProvider(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.None)
	h.Resources.Unknown = admission.RejectUnknown
	bus, err := hint.NewBus(nil, append(slices.Collect(slices.Values(h.bus.Load().Entries())),
		hint.Entry{Provider: offering{}, Mode: hint.Advisory}), nil)
	must(t, err)
	h.bus.Store(bus)
	v := h.admit(t, wanting("pod", 0, 1))
	if v.Outcome != admission.Admitted || len(v.Notes) != 1 || v.Notes[0].Expected {
		t.Errorf("%v %q, notes %q", v.Outcome, v.Message, texts(v.Notes))
	}
}

// TestManyKnown: a refusal names a bounded number of known resources, or that there
// are none.
func TestManyKnown(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.None)
	h.Resources.Unknown = admission.RejectUnknown
	for i := range 20 {
		h.inventory.Expect("example.com/r"+string(rune('a'+i)), time.Unix(0, 0))
	}
	v := h.admit(t, wanting("pod", 0, 1))
	if !strings.Contains(v.Message, "example.com/ro and 5 more.") || strings.Contains(v.Message, "example.com/rp") {
		t.Errorf("message %q", v.Message)
	}
	none, err := hint.NewBus(nil, nil, nil)
	must(t, err)
	h.bus.Store(none)
	if v := h.admit(t, wanting("pod", 0, 1)); !strings.Contains(v.Message, "ever registered for: no resource is known.") {
		t.Errorf("message %q", v.Message)
	}
}

// TestForesightMatchesUnknownResources: a change of policy does not affect what
// pods were let in without.
func TestForesightMatchesUnknownResources(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.None)
	h.admit(t, wanting("pod", 0, 1))
	h.Resources.Unknown = admission.RejectUnknown
	bus, policy := h.Managers(h.ledger.View())
	o, err := h.Foresee(context.Background(), admission.Change{Rules: h.ledger.View().Rules(), Bus: bus, Policy: policy})
	must(t, err)
	if len(o.Pods) != 1 || o.Pods[0].Fate != admission.Same {
		t.Errorf("%+v", o.Pods)
	}
}

// TestUnservedFields: fields of the caller's pod that are not served are in every answer
// about it, and in the trace.
func TestUnservedFields(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.None)
	const text = "pod.spec.ephemeralContainers are not placed"
	for name, row := range map[string]struct {
		dry, again bool
		gpus       int64
		want       admission.Outcome
	}{
		"a dry run": {dry: true, want: admission.Admitted}, "b refused": {gpus: 9}, "c admitted": {want: admission.Admitted},
		"d again": {again: true, want: admission.Admitted},
	} {
		pod := guaranteed("pod-"+name[:1], 1, row.gpus)
		req := admission.Request{Pod: pod, Unserved: []string{text}, DryRun: row.dry}
		v, err := h.Admit(context.Background(), req)
		must(t, err)
		if row.again {
			v, err = h.Admit(context.Background(), req)
			must(t, err)
		}
		told := slices.ContainsFunc(v.Trace.Steps, func(s ledger.Step) bool { return s.Kind == ledger.StepNoted && s.Text == text })
		if v.Outcome != row.want || !slices.Equal(texts(v.Notes), []string{text}) || v.Notes[0].Expected || !told ||
			v.Repeated != row.again {
			t.Errorf("%s: %v %q, notes %q, in the trace %v", name, v.Outcome, v.Message, texts(v.Notes), told)
		}
	}
}
