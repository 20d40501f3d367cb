package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// refusal is that of a pod that requests four resources in amounts whose halving takes
// about 20 steps each, on a machine where another pod holds CPUs.
func refusal(t *testing.T) *Refusal {
	t.Helper()
	m := machinetest.Build("2s4n2c1t")
	policy, err := topology.New(topology.Config{Policy: topology.None}, m.NodeMask(), m.Distances())
	if err != nil {
		t.Fatal(err)
	}
	l := ledgertest.New(t, ledger.Rules{Machine: m})
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutPod(ledgertest.With(ledgertest.Pod("old", "c"), ledgertest.Exclusive("c", "1")))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	q := workload.Quantities{workload.Memory: 1 << 40, "hugepages-2Mi": 1 << 41, "a.com/x": 1 << 20, "b.com/x": 1 << 20}
	pod := workload.Pod{UID: "new", Name: "new", Namespace: "default",
		Containers: []workload.Container{{Name: "c", Requests: q, Limits: q}}}
	return &Refusal{
		Request: hint.Request{Pod: &pod}, Err: errors.New("no"),
		Base: l.View(), Planned: l.View(), Bus: shortages{}, Policy: policy,
	}
}

// shortages are a bus's answers for sets of nodes, by their list.
type shortages map[string][]ledger.Shortage

func (s shortages) Explain(_ *ledger.View, _ hint.Request, nodes numa.Mask) []ledger.Shortage {
	return s[nodes.String()]
}

// TestRequestsLeaveDryRunsForRemovals: half of the dry runs, and at most 24, are kept
// from the search among requests, so that the search among pods is never starved.
func TestRequestsLeaveDryRunsForRemovals(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ tries, requests int }{{64, 40}, {60, 36}, {48, 24}, {40, 20}, {10, 5}, {1, 1}, {0, 0}, {-1, 0}} {
		r := refusal(t)
		requests, without := 0, 0
		dry := Dry{
			Tries: row.tries, Time: time.Second, Now: func() time.Time { return time.Time{} },
			Run: func(_ context.Context, view *ledger.View, pod *workload.Pod, _ *topology.Manager) bool {
				if _, there := view.Pod("old"); !there {
					without++
					return true
				}
				if pod == r.Request.Pod {
					return false // another policy
				}
				requests++
				for name, n := range pod.Containers[0].Requests { // a third of one resource would do
					if full := r.Request.Pod.Containers[0].Requests[name]; 3*n <= full {
						return true
					}
				}
				return false
			},
			Busy: func(string) bool { return false },
		}
		found, tried, _ := r.Suggest(t.Context(), dry, nil)
		if requests != row.requests || tried > max(row.tries, 0) {
			t.Errorf("%d dry runs: %d of them for requests, want %d; %d in all", row.tries, requests, row.requests, tried)
		}
		removes := func(s ledger.Suggestion) bool { return slices.Equal(s.Remove, []string{"old"}) }
		if row.tries >= 10 && (without != 1 || !slices.ContainsFunc(found, removes)) {
			t.Errorf("%d dry runs: the removal was tried %d times, offered: %v", row.tries, without, found)
		}
		dry.Busy = func(uid string) bool { return uid == "old" }
		if found, _, _ := r.Suggest(t.Context(), dry, nil); slices.ContainsFunc(found, removes) {
			t.Errorf("%d dry runs: a pod on its way is to be removed: %v", row.tries, found)
		}
	}
}

// TestReturningPodsStay: no removal of a pod is suggested that is made again on this node. If nothing else helps, the note says so.
func TestReturningPodsStay(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		annotations map[string]string // of the pod old
		other       bool              // a second pod would do, too
		together    bool              // only the removal of both would do
		remove      []string
		note        string
	}{
		"an ordinary pod": {nil, false, false, []string{"old"}, ""},
		"one of the API":  {map[string]string{workload.SourceAnnotation: "api"}, false, false, []string{"old"}, ""},
		"a static pod": {map[string]string{workload.SourceAnnotation: "file"}, false, false, nil, "pod default/old would " +
			"be made again"},
		"a mirror": {map[string]string{workload.MirrorAnnotation: "x"}, false, false, nil, "pod default/old would be " +
			"made again"},
		"of a DaemonSet": {map[string]string{workload.ReturnsAnnotation: "true"}, false, false, nil, "pod default/old " +
			"would be made again"},
		"another one helps": {map[string]string{workload.ReturnsAnnotation: "true"}, true, false, []string{"other"}, ""},
		"both have to leave": {map[string]string{workload.ReturnsAnnotation: "true"}, true, true, nil, "pod default/old would " +
			"be made again"},
	} {
		r := refusal(t)
		l := ledgertest.New(t, ledger.Rules{Machine: r.Base.Machine()})
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			old := ledgertest.With(ledgertest.Pod("old", "c"), ledgertest.Exclusive("c", "1"))
			old.Pod.Namespace, old.Pod.Name, old.Pod.Annotations = "default", "old", row.annotations
			if d.PutPod(old); row.other {
				d.PutPod(ledgertest.With(ledgertest.Pod("other", "c"), ledgertest.Exclusive("c", "2")))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		r.Base = l.View()
		found, _, note := r.Suggest(t.Context(), Dry{
			Tries: 64, Time: time.Second, Now: func() time.Time { return time.Time{} }, Busy: func(string) bool { return false },
			Run: func(_ context.Context, view *ledger.View, _ *workload.Pod, _ *topology.Manager) bool {
				_, old := view.Pod("old")
				_, other := view.Pod("other")
				if row.together {
					return !old && !other
				}
				return !old || row.other && !other
			},
		}, nil)
		var remove []string
		for _, s := range found {
			remove = append(remove, s.Remove...)
		}
		if !slices.Equal(remove, row.remove) || (note == "") != (row.note == "") || !strings.Contains(note, row.note) {
			t.Errorf("%s: remove %q, note %q; want %q, %q", name, remove, note, row.remove, row.note)
		}
	}
}

// refused is a refusal with what was missing.
type refused []ledger.Shortage

func (refused) Error() string                { return "refused" }
func (r refused) Missing() []ledger.Shortage { return r }

// TestMissing: what the whole machine lacks, before the shortages of the refusal (the first
// four, each once), before what the smallest sets of nodes lack that could serve the
// request when idle.
func TestMissing(t *testing.T) {
	t.Parallel()
	lack := func(nodes string, free, held, withheld uint64) []ledger.Shortage {
		return []ledger.Shortage{{Resource: "cpu", Nodes: nodes, Need: 8, Free: free, Held: held, Withheld: withheld}}
	}
	var own refused
	for i := range 6 {
		own = append(own, slices.Concat(lack(fmt.Sprint(i), 0, 1, 0), lack(fmt.Sprint(i), 0, 2, 0))...)
	}
	single := shortages{}
	for i := range 8 {
		single[fmt.Sprint(i)] = lack(fmt.Sprint(i), uint64(i), 0, 0)
	}
	withheld := shortages{}
	for i := range 8 {
		withheld[fmt.Sprint(i)] = lack(fmt.Sprint(i), uint64(i), 0, 0)
	}
	withheld["2"] = lack("2", 3, 1, 4) // has enough with what is not available now
	for _, row := range []struct {
		name string
		bus  shortages
		err  error
		want []string
	}{
		{"the machine", shortages{"0-7": lack("0-7", 1, 0, 0), "0": lack("0", 1, 7, 0)}, own, []string{"0-7"}},
		{"the refusal", shortages{"0": lack("0", 1, 7, 0)}, own, []string{"0", "1", "2", "3"}},
		{"enough on a node", shortages{"0": lack("0", 1, 7, 0)}, errors.New("no"), nil},
		{"too small when idle", single, errors.New("no"), nil},
		{"withheld", withheld, errors.New("no"), []string{"2", "7", "6", "5"}},
	} {
		r := refusal(t)
		r.Bus, r.Err = row.bus, row.err
		var got []string
		for _, s := range r.Missing() {
			got = append(got, s.Nodes)
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
	}
}
