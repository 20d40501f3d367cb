package simulation_test

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// TestReplaySkips: what cannot be decided again is counted by its reason, and nothing else is.
func TestReplaySkips(t *testing.T) {
	t.Parallel()
	n := startNode(t, "2s1n8c2t", 1000)
	n.admit(2, 1, 0)   // u1
	n.admit(100, 1, 0) // u2 is rejected
	n.admit(3, 1, 0)   // u3
	if _, err := n.client.Admission().RemovePod(context.Background(), &admissionv1.RemovePodRequest{PodUid: "u1"}); err != nil {
		t.Fatal(err)
	}
	request := func(e *history.Entry, change func(r *history.Request)) {
		r, err := e.Requested()
		if err != nil {
			t.Fatal(err)
		}
		change(r)
		if e.Request, err = json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	}
	for name, row := range map[string]struct {
		// change is made to the refusal of u2.
		change func(e *history.Entry)
		bundle func(b *bundle.Bundle)
		scene  func(s *simulation.Scene)
		want   string
	}{
		"nothing":           {want: ""},
		"deferred":          {change: func(e *history.Entry) { e.Verdict = "deferred" }, want: "deferred"},
		"no basis":          {change: func(e *history.Entry) { e.Basis = nil }, want: "beside"},
		"many reservations": {change: func(e *history.Entry) { e.Basis.Omitted = 70 }, want: "beside"},
		"no reservations":   {change: func(e *history.Entry) { e.Basis.Reserved = json.RawMessage(`[{"uid":"a"}]`) }, want: "beside"},
		"other configuration": {change: func(e *history.Entry) { e.Basis = nil }, scene: func(s *simulation.Scene) {
			s.Config.Reserved.CPUs = cpuset.Of(0, 1)
		}, want: ""},
		"large": {change: func(e *history.Entry) { e.Request, e.RequestBytes = nil, 70_000 }, want: "large"},
		"running": {change: func(e *history.Entry) { request(e, func(r *history.Request) { r.Running = true }) },
			want: "running"},
		"devices": {change: func(e *history.Entry) {
			request(e, func(r *history.Request) { r.Pod.Containers[0].Limits["example.com/gpu"] = 1 })
		}, want: "devices"},
		"no uid": {change: func(e *history.Entry) { request(e, func(r *history.Request) { r.Pod.UID = "" }) },
			want: "invalid"},
		"no JSON": {change: func(e *history.Entry) { e.Request = json.RawMessage(`{"pod":3}`) }, want: "invalid"},
		"absent": {change: func(e *history.Entry) {
			request(e, func(r *history.Request) { r.Pod, r.Changes = nil, []workload.Change{{Container: "main"}} })
		}, want: "absent"},
		"hugepages": {change: func(e *history.Entry) {
			e.Reason = "OutOfhugepages-2Mi"
			request(e, func(r *history.Request) {
				r.Pod.Containers[0].Limits[workload.CPU], r.Pod.Containers[0].Requests[workload.CPU] = 1000, 1000
			})
		}, scene: func(s *simulation.Scene) { s.Config.Memory.CheckFreeHugePages = config.PagesReject }, want: "kernel"},
		"swap": {change: func(e *history.Entry) {
			e.Reason, e.Message = "Infeasible", "In-place resize of containers with swap is not supported"
			request(e, func(r *history.Request) {
				r.Pod.Containers[0].Limits[workload.CPU], r.Pod.Containers[0].Requests[workload.CPU] = 1000, 1000
			})
		}, want: "kernel"},
		"providers": {bundle: func(b *bundle.Bundle) {
			b.State.Providers = []history.Provider{{Name: "far"}}
		}, want: "providers providers providers"},
		"damage": {bundle: func(b *bundle.Bundle) {
			at := slices.IndexFunc(b.History, func(l bundle.Line) bool { return l.Number == 3 })
			b.History[at] = bundle.Line{Number: 3, Damage: "it is damaged"}
		}, want: "older older older older"}, // with the entry after it
	} {
		b, err := bundle.Collect(n.client.Bundle(context.Background()))
		if err != nil {
			t.Fatal(err)
		}
		scene := simulation.Scene{Machine: b.Machine, Config: *b.Config}
		if row.scene != nil {
			row.scene(&scene)
		}
		if row.bundle != nil {
			row.bundle(b)
		}
		for i, l := range b.History {
			e, err := history.ReadText(l.Number, l.Entry)
			if err != nil || e.Verdict != "rejected" || row.change == nil {
				continue
			}
			row.change(e)
			if b.History[i].Entry, err = history.Text(e); err != nil {
				t.Fatal(err)
			}
		}
		out := replayed(t, b, scene)
		var got []string
		for _, s := range out.GetSkipped() {
			for range s.GetCount() {
				got = append(got, s.GetReason())
			}
		}
		if strings.Join(got, " ") != row.want || out.GetDiffer() != 0 {
			t.Errorf("%s: %q, want %q; %d differ", name, got, row.want, out.GetDiffer())
		}
	}
}

// TestReplayConfigurations: what was decided under an earlier configuration is not decided again
// under the last one, unless another configuration is given. Digests of an earlier berthd, whose
// configuration had other fields, are those of the configuration in the bundle.
func TestReplayConfigurations(t *testing.T) {
	t.Parallel()
	n := startNode(t, "2s1n8c2t", 1000)
	n.admit(2, 1, 0)
	n.halt()
	n.config.Reserved.CPUs = cpuset.Of(0, 1)
	n.start()
	n.admit(3, 1, 0)
	n.admit(4, 1, 0)
	b, err := bundle.Collect(n.client.Bundle(context.Background()))
	if err != nil {
		t.Fatal(err)
	}
	scene := simulation.Scene{Machine: b.Machine, Config: *b.Config}
	check := func(what string, scene simulation.Scene, verdicts, skipped, other uint32) {
		t.Helper()
		out := replayed(t, b, scene)
		var n uint32
		for _, s := range out.GetSkipped() {
			n += s.GetCount()
		}
		if out.GetVerdicts() != verdicts || n != skipped || out.GetOtherConfiguration() != other || out.GetDiffer() != 0 {
			t.Errorf("%s: %v", what, out)
		}
	}
	check("as recorded", scene, 2, 1, 0)
	changed := scene
	changed.Config.Topology.Policy = topology.BestEffort
	check("another policy", changed, 3, 0, 1)
	for i := range b.History {
		b.History[i].Entry = bytes.ReplaceAll(b.History[i].Entry, []byte(b.State.Config), []byte("of an earlier berthd"))
	}
	b.State.Config = "of an earlier berthd"
	check("of an earlier berthd", scene, 2, 1, 0)
}

// TestReplayAfterRestart: the start with another configuration is not written before the next
// commit, and verdicts from before it are still those of the earlier configuration.
func TestReplayAfterRestart(t *testing.T) {
	t.Parallel()
	n := startNode(t, "2s1n4c1t", 1000)
	for _, cpus := range []int{2, 2, 3, 3} { // the last two do not fit
		n.admit(cpus, 1, 0)
	}
	n.halt()
	n.config.Topology.Policy = topology.BestEffort
	n.start()
	b, err := bundle.Collect(n.client.Bundle(context.Background()))
	if err != nil {
		t.Fatal(err)
	}
	if newest := b.History[0].Number; newest != b.State.Recorded+1 {
		t.Fatalf("the state has the entries up to %d, and the newest one is %d: no start waits", b.State.Recorded, newest)
	}
	out := replayed(t, b, simulation.Scene{Machine: b.Machine, Config: *b.Config})
	if out.GetDiffer() != 0 || out.GetVerdicts() != 0 || len(out.GetSkipped()) != 1 ||
		out.GetSkipped()[0].GetReason() != "configuration" || out.GetSkipped()[0].GetCount() != 4 {
		t.Errorf("%v", out)
	}
}

// TestPolicyOfACall: a policy that a call has set decides in a simulation, too, unless the
// simulation has another configuration than the one that the policy was set over.
func TestPolicyOfACall(t *testing.T) {
	t.Parallel()
	n := startNode(t, "2s1n4c2t", 1000)
	n.admit(2, 1, 0)
	ctx := context.Background()
	if _, err := n.client.Topology().SetPolicy(ctx, &topologyv1.SetPolicyRequest{TopologyPolicy: proto.String("best-effort"),
		ReservedCpus: &typesv1.CPUSet{List: "0,4"}}); err != nil {
		t.Fatal(err)
	}
	b, err := bundle.Collect(n.client.Bundle(ctx))
	if err != nil {
		t.Fatal(err)
	}
	for _, masked := range []bool{false, true} {
		if masked {
			if err := b.Mask(); err != nil {
				t.Fatal(err)
			}
		}
		scene := simulation.Scene{Machine: b.Machine, Config: *b.Config}
		rec, err := simulation.RecordOf(b, b.Machine)
		if err != nil {
			t.Fatal(err)
		}
		check := func(want topology.Policy) {
			t.Helper()
			out, _, err := scene.Run(ctx, nil, simulation.Options{On: rec})
			if err != nil {
				t.Fatal(err)
			}
			if out.GetTopologyPolicy() != string(want) {
				t.Errorf("masked %v: %s decides, want %s", masked, out.GetTopologyPolicy(), want)
			}
		}
		check(topology.BestEffort)
		placed, err := scene.State(rec, rec.View)
		if err != nil {
			t.Fatal(err)
		}
		if got := placed.Reserved.String(); got != "0,4" {
			t.Errorf("masked %v: CPUs %s are reserved", masked, got)
		}
		scene.Config.Topology.Policy = topology.Restricted
		check(topology.Restricted)
	}
}

// besideOthers returns the history of a bundle as if every verdict had been decided beside a pod of its state.
func besideOthers(f *testing.F, b *bundle.Bundle) []byte {
	own := *b
	own.History = nil
	beside := *b.State.Pods[0].Record
	beside.Pod.UID, beside.Claims = "beside", b.State.Pods[0].Claims
	for _, l := range b.History {
		e, err := history.ReadText(l.Number, l.Entry)
		if err == nil && e.Basis != nil {
			err = e.Basis.Reserve([]*ledger.Pod{&beside})
		}
		if err != nil {
			f.Fatal(err)
		}
		if l, err = bundle.LineOf(e, nil); err != nil {
			f.Fatal(err)
		}
		own.History = append(own.History, l)
	}
	text, err := own.Encode(bundle.HistoryPart)
	if err != nil {
		f.Fatal(err)
	}
	return text
}

// FuzzReplay: the state and the history of a bundle are any text. They are refused, or replayed.
func FuzzReplay(f *testing.F) {
	opened, err := bundle.ReadFile("../berthctl/testdata/docs/incident.tar.gz")
	if err != nil {
		f.Fatal(err)
	}
	state, err := opened.Encode(bundle.StatePart)
	if err != nil {
		f.Fatal(err)
	}
	history, err := opened.Encode(bundle.HistoryPart)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(state, history)
	f.Add(state, besideOthers(f, opened))
	f.Fuzz(func(t *testing.T, state, history []byte) {
		b := &bundle.Bundle{Machine: opened.Machine, Config: opened.Config}
		if b.Decode(bundle.StatePart, state) != nil || b.Decode(bundle.HistoryPart, history) != nil {
			return
		}
		for _, m := range []string{"2s1n8c2t", "1s1n8c2t"} {
			scene := simulation.Scene{Machine: machinetest.Build(m), Config: *b.Config}
			rec, err := simulation.RecordOf(b, scene.Machine)
			if err != nil {
				return
			}
			if m != "2s1n8c2t" {
				scene.Config.Reserved.CPUs = scene.Machine.CPUsInNode(0).Lowest(1)
			}
			_, _, _ = scene.Replay(t.Context(), rec, simulation.ReplayOptions{Explain: 1})
		}
		_ = b.Mask()
	})
}
