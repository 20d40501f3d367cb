package device

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/workload"
)

// The decision table, in its order. Container c of the pod requests one gpu or what
// the row has.
func TestDecisionTable(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name      string
		devices   string // empty: no plugin ever
		wants     string
		before    func(*bench, Session)
		want      []string
		refusal   string
		reason    errdefs.Reason
		condition Condition
	}{
		{name: "nobody ever served it", wants: "unknown=1"},
		{
			name: "registered, no list yet", wants: "gpu=1",
			before:  func(b *bench, _ Session) { b.inv.Registered(gpu, Options{}, epoch) },
			refusal: "no healthy devices present; cannot allocate unhealthy devices example.com/gpu", condition: PluginAway,
		},
		{
			name: "1: holds another number", devices: "a b c", wants: "gpu=2",
			before:  func(b *bench, _ Session) { b.hold("pod", "c", gpu, "a") },
			refusal: `pod "pod" container "c" changed request for resource "example.com/gpu" from 1 to 2`,
		},
		{
			name: "1 before 4: holds another number, none healthy", devices: "a! b!", wants: "gpu=2",
			before:  func(b *bench, _ Session) { b.hold("pod", "c", gpu, "a") },
			refusal: "changed request for resource",
		},
		{
			name: "2: started before, its plugin is away", devices: "a b", wants: "gpu=1",
			before: func(b *bench, s Session) {
				b.hold("pod", "c", gpu, "a")
				b.draft.Bind(ledger.Binding{ID: "id", Owner: ledger.Owner{Pod: "pod", Container: "c"}})
				b.inv.Gone(s, epoch)
			},
		},
		{
			name: "2 is for the container itself", devices: "a b", wants: "gpu=1",
			before: func(b *bench, s Session) {
				b.hold("pod", "c", gpu, "a")
				b.draft.Bind(ledger.Binding{ID: "id", Owner: ledger.Owner{Pod: "pod", Container: "i"}})
				b.inv.Gone(s, epoch)
			},
			refusal: "no healthy devices present; cannot allocate unhealthy devices example.com/gpu", condition: PluginAway,
		},
		{
			name: "3: claims without a plugin", wants: "gpu=1",
			before:  func(b *bench, _ Session) { b.pod("other", "x"); b.hold("other", "x", gpu, "a") },
			refusal: "cannot allocate unregistered device example.com/gpu",
		},
		{
			name: "3: claims and an expired plugin", devices: "a b", wants: "gpu=1",
			before: func(b *bench, s Session) {
				b.pod("other", "x")
				b.hold("other", "x", gpu, "a")
				b.inv.Gone(s, epoch)
				b.inv.Expire(epoch.Add(2 * Grace))
			},
			refusal: "cannot allocate unregistered device example.com/gpu",
		},
		{
			name: "expired, nobody holds any: no capacity", devices: "a b", wants: "gpu=1",
			before: func(b *bench, s Session) {
				b.inv.Gone(s, epoch)
				b.inv.Expire(epoch.Add(2 * Grace))
			},
			refusal: "Node didn't have enough resource: example.com/gpu, requested: 3, used: 0, capacity: 0",
			reason:  "OutOfexample.com/gpu",
		},
		{name: "4: none healthy", devices: "a! b!", wants: "gpu=1",
			refusal: "no healthy devices present; cannot allocate unhealthy devices example.com/gpu", condition: NoHealthyDevice},
		{name: "4: no device", devices: " ", wants: "gpu=1", refusal: "no healthy devices present"},
		{name: "4: fewer than wanted, none healthy", devices: "a! b!", wants: "gpu=3", refusal: "no healthy devices present"},
		{
			name: "4: plugin gone", devices: "a", wants: "gpu=1",
			before:  func(b *bench, s Session) { b.inv.Gone(s, epoch) },
			refusal: "no healthy devices present", condition: PluginAway,
		},
		{
			name: "4: back, no list yet", devices: "a", wants: "gpu=1",
			before:  func(b *bench, s Session) { b.inv.Gone(s, epoch); b.inv.Registered(gpu, Options{}, epoch) },
			refusal: "no healthy devices present", condition: PluginAway,
		},
		{name: "4 before 6: none wanted, none healthy", devices: "a!", wants: "gpu=0", refusal: "no healthy devices present",
			condition: NoHealthyDevice},
		{
			name: "5: holds one that is not healthy", devices: "a! b", wants: "gpu=1",
			before:  func(b *bench, _ Session) { b.hold("pod", "c", gpu, "a") },
			refusal: "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu",
		},
		{
			name: "5: holds one that is gone", devices: "b", wants: "gpu=1",
			before:  func(b *bench, _ Session) { b.hold("pod", "c", gpu, "a") },
			refusal: "previously allocated devices are no longer healthy",
		},
		{
			name: "6: has what it wants", devices: "a b", wants: "gpu=1",
			before: func(b *bench, _ Session) { b.hold("pod", "c", gpu, "b") },
		},
		{name: "6: none wanted", devices: "a b", wants: "gpu=0"},
		{
			name: "7: what is left over is enough", devices: "a b c", wants: "gpu=1", want: []string{"b"},
			before: func(b *bench, _ Session) { b.hold("pod", "i", gpu, "b", "c") },
		},
		{
			name: "7: healthy ones are taken over first", devices: "a b! c", wants: "gpu=1", want: []string{"c"},
			before: func(b *bench, _ Session) { b.hold("pod", "i", gpu, "b", "c") },
		},
		{
			name: "7: unhealthy ones rather than none", devices: "a b! c!", wants: "gpu=1", want: []string{"b"},
			before: func(b *bench, _ Session) { b.hold("pod", "i", gpu, "b", "c") },
		},
		{
			name: "8: too few", devices: "a b", wants: "gpu=3",
			refusal: "requested number of devices unavailable for example.com/gpu. Requested: 3, Available: 2",
		},
		{
			name: "8: what is missing after taking over", devices: "a b c", wants: "gpu=4",
			before:  func(b *bench, _ Session) { b.hold("pod", "i", gpu, "b") },
			refusal: "requested number of devices unavailable for example.com/gpu. Requested: 3, Available: 2",
		},
		{name: "9: the lowest ids", devices: "d c b a", wants: "gpu=2", want: []string{"a", "b"}},
		{
			name: "9: not those of others", devices: "a b c", wants: "gpu=2", want: []string{"b", "c"},
			before: func(b *bench, _ Session) { b.pod("other", "x"); b.hold("other", "x", gpu, "a") },
		},
		{
			name: "9: equal ids of another resource are no matter", devices: "a b", wants: "gpu=1", want: []string{"a"},
			before: func(b *bench, _ Session) { b.pod("other", "x"); b.hold("other", "x", nic, "a") },
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "2n2c")
			var s Session
			if row.devices != "" {
				s = b.list(gpu, row.devices, Options{})
			}
			pod := b.pod("pod", "init:i", "c "+row.wants, "last gpu=2")
			if row.before != nil {
				row.before(b, s)
			}
			got, err := b.plan(pod, 1, anywhere)
			if row.refusal == "" {
				if err != nil || !reflect.DeepEqual(got[gpu], row.want) {
					t.Errorf("got %v, %v; want %v", got, err, row.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), row.refusal) || errdefs.ClassOf(err) != errdefs.Refused {
				t.Fatalf("got %v (%v), want a refusal with %q", err, errdefs.ClassOf(err), row.refusal)
			}
			if reason, _ := errdefs.ReasonOf(err); reason != row.reason {
				t.Errorf("reason %q, want %q", reason, row.reason)
			}
			var fe *errdefs.Error
			if !errors.As(err, &fe) || fe.Provider != Name || fe.Resource != gpu {
				t.Errorf("provider and resource in %+v", fe)
			}
			var wait *WaitError
			if errors.As(err, &wait); row.condition != "" && (wait == nil || wait.Condition != row.condition || wait.Resource != gpu) {
				t.Errorf("condition %+v, want %s", wait, row.condition)
			} else if row.condition == "" && wait != nil {
				t.Errorf("condition %+v", wait)
			}
		})
	}
}

func TestPicking(t *testing.T) {
	t.Parallel()
	const devices = "a@1 b@0 c d@0+1 e@0 f@1 g@"
	for _, row := range []struct {
		name      string
		devices   string
		wants     int
		affinity  hint.Hint
		preferred string // the plugin's answer; "-" if it does not announce any
		reuse     []string
		want      string
		asked     string
	}{
		{name: "fewer than aligned", wants: 2, affinity: nodes(0), preferred: "-", want: "b d"},
		{name: "fewer than aligned, as the plugin prefers", wants: 2, affinity: nodes(0), preferred: "e d", want: "d e",
			asked: "b d e |  | 2"},
		{name: "the plugin prefers others", wants: 2, affinity: nodes(0), preferred: "a x", want: "b d", asked: "b d e |  | 2"},
		{name: "the plugin prefers one", wants: 2, affinity: nodes(0), preferred: "e", want: "b e", asked: "b d e |  | 2"},
		{name: "the plugin prefers too many", wants: 2, affinity: nodes(0), preferred: "e d b", want: "b d", asked: "b d e |  | 2"},
		{name: "exactly the aligned: nobody is asked", wants: 3, affinity: nodes(0), preferred: "a", want: "b d e"},
		{name: "more than aligned", wants: 4, affinity: nodes(0), preferred: "-", want: "a b d e"},
		{name: "more than aligned, as the plugin prefers", wants: 4, affinity: nodes(0), preferred: "b g", want: "b d e g",
			asked: "a b c d e f g | b d e | 4"},
		{name: "unaligned before those without nodes", wants: 6, affinity: nodes(0), preferred: "", want: "a b c d e f",
			asked: "a b c d e f g | b d e | 6"},
		{name: "all", wants: 7, affinity: nodes(0), preferred: "-", want: "a b c d e f g"},
		{name: "any nodes", wants: 3, affinity: anywhere, preferred: "-", want: "a b c"},
		{name: "any nodes, as the plugin prefers", wants: 2, affinity: anywhere, preferred: "g f", want: "f g",
			asked: "a b c d e f g |  | 2"},
		{name: "both nodes", wants: 1, affinity: nodes(0, 1), preferred: "-", want: "a"},
		{name: "no device has nodes", devices: "a b@ c", wants: 1, affinity: nodes(1), preferred: "c", want: "c", asked: "a b c |  | 1"},
		{name: "the device on both is aligned", devices: "a@0 d@0+1", wants: 1, affinity: nodes(1), preferred: "-", want: "d"},
		{name: "taken over and aligned", wants: 2, affinity: nodes(0), preferred: "e", reuse: []string{"f"}, want: "e f",
			asked: "b d e f | f | 2"},
		{name: "taken over, the aligned ones first", wants: 1, affinity: nodes(0), preferred: "-", reuse: []string{"a", "e"}, want: "e"},
		{name: "taken over and all aligned", wants: 5, affinity: nodes(0), preferred: "f", reuse: []string{"c"}, want: "b c d e f",
			asked: "a b c d e f g | b c d e | 5"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if row.devices == "" {
				row.devices = devices
			}
			for range 3 {
				b := newBench(t, "2n2c")
				b.list(gpu, row.devices, Options{Preferred: row.preferred != "-"})
				b.plugins.preferred = strings.Fields(row.preferred)
				pod := b.pod("pod", "init:i", fmt.Sprintf("c gpu=%d", row.wants))
				if row.reuse != nil {
					b.hold("pod", "i", gpu, row.reuse...)
				}
				got, err := b.plan(pod, 1, row.affinity)
				if err != nil || strings.Join(got[gpu], " ") != row.want {
					t.Errorf("got %v, %v; want %q", got, err, row.want)
				}
				if asked := strings.Join(b.plugins.asked, "; "); asked != row.asked {
					t.Errorf("the plugin was asked %q, want %q", asked, row.asked)
				}
			}
		})
	}
}

// TestPreferredFails: without the plugin's advice the choice is that of a plugin that gives none,
// whatever the error's class. A caller that ends gets its own error.
func TestPreferredFails(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errPlugin, errdefs.Deadlinef("no answer"), errdefs.Unavailablef("%w", ErrAway), errdefs.Refuse("", "no")} {
		b := newBench(t, "1n2c")
		b.list(gpu, "a b c", Options{Preferred: true})
		b.plugins.preferred, b.plugins.preferErr = []string{"c"}, err
		got, planErr := b.plan(b.pod("pod", "init:i gpu=2", "c gpu=1"), 1, anywhere)
		if planErr != nil || strings.Join(got[gpu], " ") != "a" {
			t.Errorf("%v: got %v, %v", err, got, planErr)
		}
		claims, planErr := b.Plan(t.Context(), b.draft.View(), hint.Request{Pod: b.pod("pod2", "app gpu=1", "init:i gpu=1"), Container: 1,
			Borrows: true}, anywhere)
		if planErr != nil || strings.Join(claims[0].Devices.IDs(), " ") != "b" {
			t.Errorf("%v: borrowed %+v, %v", err, claims, planErr)
		}
	}
	b := newBench(t, "1n2c")
	b.list(gpu, "a b", Options{Preferred: true})
	b.plugins.preferErr = errPlugin
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := b.Plan(ended, b.draft.View(), hint.Request{Pod: b.pod("pod", "c gpu=1")}, anywhere); !errors.Is(err, errPlugin) {
		t.Errorf("the caller has ended: %v", err)
	}
}

// The example of reuse: init 3, sidecar 1, init 2, app 3 out of six devices.
func TestReuse(t *testing.T) {
	t.Parallel()
	b := newBench(t, "1n2c")
	b.list(gpu, "d1 d2 d3 d4 d5 d6", Options{})
	pod := b.pod("pod", "init:i gpu=3", "sidecar:s gpu=1", "init:j gpu=2", "app gpu=3")
	for i, want := range []string{"d1 d2 d3", "d1", "d2 d3", "d2 d3 d4"} {
		got, err := b.plan(pod, i, anywhere)
		if err != nil || strings.Join(got[gpu], " ") != want {
			t.Fatalf("container %d: got %v, %v; want %s", i, got, err, want)
		}
	}
	// What no app container took over stays with the pod.
	if _, err := b.plan(b.pod("next", "c gpu=3"), 0, anywhere); err == nil || !strings.Contains(err.Error(), "Requested: 3, Available: 2") {
		t.Errorf("next pod: %v", err)
	}
	if findings := check.View(b.draft.View()); len(findings) > 0 {
		t.Errorf("ledger: %v", findings)
	}
}

// TestBorrow: an init container that is planned after the app is offered what the app has, and everything with those as must-include if
// that is too little. It gets nothing of the sidecar before it.
func TestBorrow(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		wants     int
		below     string
		preferred string
		want      string
		asked     string
	}{
		{1, "app", "e", "e", "d e f |  | 1"},
		{1, "", "e", "e", "d e f |  | 1"},
		{3, "", "a", "d e f", ""},
		{4, "", "c", "c d e f", "b c d e f | d e f | 4"},
		{5, "", "", "b c d e f", ""},
		{4, "app", "", "", ""},
		{6, "", "", "", ""},
	} {
		b := newBench(t, "2n2c")
		b.list(gpu, "a b c d e f", Options{Preferred: row.preferred != ""})
		b.plugins.preferred = strings.Fields(row.preferred)
		pod := b.pod("pod", "sidecar:s gpu=1", fmt.Sprintf("init:i gpu=%d", row.wants), "app gpu=3")
		b.hold("pod", "s", gpu, "a")
		b.hold("pod", "app", gpu, "d", "e", "f")
		req := hint.Request{Pod: pod, Container: 1, Borrows: true, Below: row.below}
		claims, err := b.Plan(t.Context(), b.draft.View(), req, anywhere)
		got := ""
		if err == nil {
			got = strings.Join(claims[0].Devices.IDs(), " ")
		}
		if asked := strings.Join(b.plugins.asked, "; "); got != row.want || (row.want == "") != (err != nil) || asked != row.asked {
			t.Errorf("%d below %q: %q, %v, asked %q", row.wants, row.below, got, err, asked)
		}
	}
}

// What an init container had and its plugin does not list any more is not handed
// on (the kubelet hands it on, and crashes).
func TestGoneDevicesAreNotHandedOn(t *testing.T) {
	t.Parallel()
	b := newBench(t, "2n2c")
	s := b.list(gpu, "a@0 b@1 c@1", Options{})
	pod := b.pod("pod", "init:i", "two gpu=2", "three gpu=3")
	b.hold("pod", "i", gpu, "a", "b")
	b.inv.Listed(s, parse("b@1 c@1"), epoch)
	answers, err := b.Hints(t.Context(), b.draft.View(), hint.Request{Pod: pod, Container: 1})
	if err != nil || len(answers) != 1 || text(t, answers[0].Answer) != "1*" {
		t.Errorf("hints %+v, %v; want node 1, where the others are", answers, err)
	}
	if got, err := b.plan(pod, 2, anywhere); err == nil || !strings.Contains(err.Error(), "Requested: 2, Available: 1") {
		t.Errorf("three of two: %v, %v", got, err)
	}
	got, err := b.plan(pod, 1, anywhere)
	if err != nil || strings.Join(got[gpu], " ") != "b c" {
		t.Errorf("got %v, %v; want b and c", got, err)
	}
}

// A pod that is planned as a whole gets the devices of all its containers.
func TestPlanPod(t *testing.T) {
	t.Parallel()
	b := newBench(t, "2n2c")
	b.list(gpu, "a@0 b@0 c@1 d@1", Options{})
	pod := b.pod("pod", "init:i gpu=2", "x gpu=1", "y gpu=1")
	whole := hint.Request{Pod: pod, Container: -1}
	for _, view := range []*ledger.View{b.draft.View(), b.ledger.View()} {
		claims, err := b.Plan(context.Background(), view, whole, nodes(1))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range claims {
			got = append(got, c.Owner.Container+":"+strings.Join(c.Devices.IDs(), "+"))
		}
		if s := strings.Join(got, " "); s != "i:c+d x:c y:d" {
			t.Errorf("got %s", s)
		}
	}
	pod.Containers[2].Limits = workload.Quantities{gpu: 4}
	if _, err := b.Plan(context.Background(), b.draft.View(), whole, nodes(1)); errdefs.ClassOf(err) != errdefs.Refused {
		t.Errorf("one container too much: %v", err)
	}
}

func TestClaim(t *testing.T) {
	t.Parallel()
	b := newBench(t, "2n2c")
	b.list(gpu, "a@0+1 b", Options{})
	pod := b.pod("pod", "c gpu=2")
	for _, affinity := range []hint.Hint{anywhere, {Any: true, Preferred: true}, nodes(1)} {
		claims, err := b.Plan(context.Background(), b.draft.View(), hint.Request{Pod: pod}, affinity)
		if err != nil {
			t.Fatal(err)
		}
		want := ledger.Claim{
			Owner: ledger.Owner{Pod: "pod", Container: "c"}, Provider: "device", Resource: gpu,
			Devices: &ledger.Devices{Devices: []ledger.Device{{ID: "a", Nodes: 3, Topology: true}, {ID: "b"}}},
		}
		if affinity != anywhere {
			want.Affinity = &affinity
		}
		if len(claims) != 1 || !reflect.DeepEqual(claims[0], want) {
			t.Errorf("got %+v, want %+v", claims, want)
		}
	}
}

func TestPrepare(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := newBench(t, "1n2c")
	b.list(gpu, "a b c", Options{})
	b.list(nic, "n", Options{})
	pod := b.pod("pod", "c gpu=2 nic=1", "d gpu=1")
	plan := func(i int) []ledger.Claim {
		claims, err := b.Plan(ctx, b.draft.View(), hint.Request{Pod: pod, Container: i}, anywhere)
		if err != nil {
			t.Fatal(err)
		}
		return claims
	}
	planned := plan(0)
	before := fmt.Sprintf("%+v", planned)
	var first []ledger.Claim
	one := hint.WithCalls(ctx, new(hint.Calls))
	for range 3 {
		done, err := b.Prepare(one, "one", hint.Request{Pod: pod}, planned)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = done
		}
		if !reflect.DeepEqual(done, first) || string(done[0].Devices.Response) != "a,b" || string(done[1].Devices.Response) != "n" {
			t.Errorf("prepared %+v", done)
		}
	}
	if got := fmt.Sprint(b.plugins.allocated); got != "[a b n]" {
		t.Errorf("allocated %s: want each once, all ids of a container in one call", got)
	}
	if fmt.Sprintf("%+v", planned) != before {
		t.Error("the planned claims were changed")
	}
	if _, err := b.Prepare(one, "one", hint.Request{Pod: pod}, first); err != nil || len(b.plugins.allocated) != 2 {
		t.Errorf("prepared claims were allocated again: %v, %q", err, b.plugins.allocated)
	}

	// For another admission the plugin is called again, also while this one is in flight.
	for range 2 {
		if _, err := b.Prepare(hint.WithCalls(ctx, new(hint.Calls)), "two", hint.Request{Pod: pod}, planned); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Prepare(one, "one", hint.Request{Pod: pod}, planned); err != nil || len(b.plugins.allocated) != 6 {
		t.Errorf("%v, %d calls, want 6: %q", err, len(b.plugins.allocated), b.plugins.allocated)
	}

	b.plugins.allocateErr = errPlugin
	_, err := b.Prepare(ctx, "three", hint.Request{Pod: pod}, planned)
	if reason, message := errdefs.Verdict(err); reason != errdefs.UnexpectedAdmissionError ||
		message != "Allocate failed due to the plugin says no, which is unexpected" {
		t.Errorf("verdict %s, %q", reason, message)
	}
	b.plugins.allocateErr = nil
	if done, err := b.Prepare(ctx, "three", hint.Request{Pod: pod}, planned); err != nil || done[0].Devices.Response == nil {
		t.Errorf("after a failure: %v", err)
	}
}

// TestPreparePlanMadeAnew: the last call of a plugin for a device is what the
// container holds that keeps it, also when a plan was overtaken and made again.
func TestPreparePlanMadeAnew(t *testing.T) {
	t.Parallel()
	b := newBench(t, "1n2c")
	b.list(gpu, "a b c d", Options{})
	b.list(nic, "n", Options{})
	pod := b.pod("pod", "init:i gpu=2 nic=1", "c gpu=1")
	ctx := hint.WithCalls(t.Context(), new(hint.Calls))
	prepare := func(want string, init, main []string) {
		t.Helper()
		b.plugins.allocated = nil
		claims := []ledger.Claim{
			ledgertest.Devices("i", gpu, init...), ledgertest.Devices("i", nic, "n"), ledgertest.Devices("c", gpu, main...),
		}
		for i := range claims {
			claims[i].Owner.Pod = "pod"
			done, err := b.Prepare(ctx, "one", hint.Request{Pod: pod, Container: i / 2}, claims[i:i+1])
			if err != nil || string(done[0].Devices.Response) != strings.Join(claims[i].Devices.IDs(), ",") {
				t.Errorf("prepared %+v, %v", done, err)
			}
		}
		if got := fmt.Sprintf("%q", b.plugins.allocated); got != want {
			t.Errorf("i with %q, c with %q: asked %s, want %s", init, main, got, want)
		}
	}
	prepare(`["a b" "n" "a"]`, []string{"a", "b"}, []string{"a"})
	prepare(`[]`, []string{"a", "b"}, []string{"a"})
	prepare(`["b"]`, []string{"a", "b"}, []string{"b"})
	prepare(`["b c" "b"]`, []string{"b", "c"}, []string{"b"})
	prepare(`["a b" "b"]`, []string{"a", "b"}, []string{"b"})
	prepare(`["c"]`, []string{"a", "b"}, []string{"c"})
	prepare(`["b d" "c"]`, []string{"b", "d"}, []string{"c"})
}

// The devices may be gone when their plugin answers.
func TestVanishDuringAllocate(t *testing.T) {
	t.Parallel()
	b := newBench(t, "2n2c")
	s := b.list(gpu, "a@1", Options{})
	pod := b.pod("pod", "c gpu=1")
	claims, err := b.Plan(context.Background(), b.draft.View(), hint.Request{Pod: pod}, nodes(1))
	if err != nil {
		t.Fatal(err)
	}
	b.plugins.beforeAllocate = func() { b.inv.Listed(s, nil, epoch) }
	done, err := b.Prepare(context.Background(), "id", hint.Request{Pod: pod}, claims)
	if err != nil || done[0].Devices.Devices[0] != (ledger.Device{ID: "a", Nodes: 2, Topology: true}) {
		t.Errorf("got %+v, %v", done, err)
	}
}

func TestCallerGaveUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	b := newBench(t, "1n2c")
	b.list(gpu, "a b", Options{Preferred: true})
	pod := b.pod("pod", "c gpu=1")
	claims, err := b.Plan(ctx, b.draft.View(), hint.Request{Pod: pod}, anywhere)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	b.plugins.preferErr, b.plugins.allocateErr = ctx.Err(), ctx.Err()
	if _, err := b.Plan(ctx, b.draft.View(), hint.Request{Pod: pod}, anywhere); errdefs.ClassOf(err) != errdefs.Canceled {
		t.Errorf("plan: %v", err)
	}
	if _, err := b.Prepare(ctx, "id", hint.Request{Pod: pod}, claims); errdefs.ClassOf(err) != errdefs.Canceled {
		t.Errorf("prepare: %v", err)
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	hinttest.Run(t, func() hinttest.Setup {
		b := newBench(t, "4n2c")
		b.list(gpu, "a@0 b@0 c@1 d@1 e@2+3 f@3 g", Options{Preferred: true})
		b.list(nic, "m n! o", Options{})
		b.pod("other", "x")
		b.hold("other", "x", gpu, "a")
		return hinttest.Setup{
			Provider: b.Manager, View: b.draft.View(),
			Pods: []*workload.Pod{
				newBench(t, "1n1c").pod("p1", "init:i gpu=3 nic=1", "sidecar:s gpu=1", "c gpu=2", "d gpu=1 nic=1"),
				newBench(t, "1n1c").pod("p2", "c gpu=8", "d gpu=1"),
				newBench(t, "1n1c").pod("p3", "c unknown=1 gpu=0"),
			},
		}
	})
}

// Whatever is admitted and removed, plans give the right number of devices, each
// to one pod, and those that are there.
func TestPlansKeepTheLedgerWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t, "4n2c")
		resources := []string{gpu, nic}
		sessions := map[string]Session{}
		list := func(rt *rapid.T, resource string) {
			var text []string
			for i := range rapid.IntRange(0, 6).Draw(rt, "devices") {
				d := fmt.Sprintf("d%d", i)
				if n := rapid.IntRange(-1, 3).Draw(rt, "node"); n >= 0 {
					d += fmt.Sprintf("@%d", n)
				}
				if rapid.IntRange(0, 5).Draw(rt, "health") == 0 {
					d += "!"
				}
				text = append(text, d)
			}
			if s, ok := sessions[resource]; !ok || !b.inv.Listed(s, parse(strings.Join(text, " ")), epoch) {
				sessions[resource] = b.list(resource, strings.Join(text, " "), Options{Preferred: rapid.Bool().Draw(rt, "preferred")})
			}
		}
		pods := 0
		rt.Repeat(map[string]func(*rapid.T){
			"list": func(rt *rapid.T) { list(rt, rapid.SampledFrom(resources).Draw(rt, "resource")) },
			"gone": func(rt *rapid.T) { b.inv.Gone(sessions[rapid.SampledFrom(resources).Draw(rt, "resource")], epoch) },
			"admit": func(rt *rapid.T) {
				pods++
				uid := fmt.Sprint(pods)
				pod := b.pod(uid,
					fmt.Sprintf("init:i gpu=%d", rapid.IntRange(0, 3).Draw(rt, "i")),
					fmt.Sprintf("sidecar:s gpu=%d nic=1", rapid.IntRange(0, 2).Draw(rt, "s")),
					fmt.Sprintf("c gpu=%d", rapid.IntRange(0, 3).Draw(rt, "c")))
				affinity := rapid.SampledFrom([]hint.Hint{anywhere, nodes(0), nodes(1, 2), nodes(3)}).Draw(rt, "affinity")
				b.plugins.preferred = []string{"d3", "d1", "?"}
				for i := range pod.Containers {
					got, err := b.plan(pod, i, affinity)
					if err != nil {
						if errdefs.ClassOf(err) != errdefs.Refused {
							rt.Fatal(err)
						}
						b.draft.RemovePod(uid)
						return
					}
					for name, ids := range got {
						if int64(len(ids)) != pod.Containers[i].Limits[workload.Resource(name)] {
							rt.Fatalf("%d of %s wanted, got %q", pod.Containers[i].Limits[workload.Resource(name)], name, ids)
						}
					}
				}
			},
			"remove": func(rt *rapid.T) {
				if pods > 0 {
					b.draft.RemovePod(fmt.Sprint(rapid.IntRange(1, pods).Draw(rt, "pod")))
				}
			},
			"": func(rt *rapid.T) {
				if f := check.View(b.draft.View()); len(f) > 0 {
					rt.Fatalf("ledger: %v", f)
				}
			},
		})
	})
}

// A resource that an external provider allocates is not this manager's, even if a plugin
// holds devices of it.
func TestExternalProvidersDevicesAreNotOurs(t *testing.T) {
	t.Parallel()
	b := newBench(t, "2n2c")
	b.pod("other", "c card=1")
	claim := ledgertest.Devices("c", "example.com/card", "a")
	claim.Owner.Pod, claim.Provider = "other", "external"
	b.draft.AddClaims("other", claim)
	pod := b.pod("pod", "c card=1")
	if got, err := b.plan(pod, 0, anywhere); err != nil || len(got) != 0 {
		t.Errorf("plan %v, %v; want none", got, err)
	}
	answers, err := b.Hints(t.Context(), b.draft.View(), hint.Request{Pod: pod})
	if err != nil || len(answers) != 0 {
		t.Errorf("hints %+v, %v; want none", answers, err)
	}
}
