package cpu

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

func TestReuse(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		reserved string
		pod      []string
		want     string
		shared   string
	}{
		{"0", []string{"init:i=4", "a=2", "b=2"}, "i 1-2,5-6 a 1,5 b 2,6", "0,3-4,7"},
		{"0", []string{"sidecar:s=2", "init:i=2", "a=2"}, "s 1,5 i 2,6 a 2,6", "0,3-4,7"},
		{"0", []string{"init:i=2", "sidecar:s=2", "a=2"}, "i 1,5 s 1,5 a 2,6", "0,3-4,7"},
		// The app container prefers a whole core, and CPU 4 stays unused until the
		// pod leaves (kubernetes#112228).
		{"0", []string{"init:i=1", "a=2"}, "i 4 a 1,5", "0,2-3,6-7"},
		{"0,4", []string{"init:i=1", "a=2"}, "i 1 a 1,5", "0,2-4,6-7"},
		{"0", []string{"a=2", "b=500m"}, "a 1,5 b -", "0,2-4,6-7"},
	} {
		for _, admit := range []func(*testNode, *workload.Pod, hint.Hint) error{(*testNode).admit, (*testNode).admitWhole} {
			n := newNode(t, machines["A"], row.reserved, "")
			p := pod("p", row.pod...)
			if err := admit(n, p, anywhere); err != nil {
				t.Fatalf("%v: %v", row.pod, err)
			}
			var got []string
			for _, c := range p.Walk() {
				got = append(got, c.Name, n.held("p", c.Name))
			}
			if s := strings.Join(got, " "); s != row.want || n.View().SharedCPUs().String() != row.shared {
				t.Errorf("%v: got %s, shared %s; want %s, %s", row.pod, s, n.View().SharedCPUs(), row.want, row.shared)
			}
			n.remove("p")
			if got := n.View().SharedCPUs(); got.String() != "0-7" {
				t.Errorf("%v: after removal the shared pool is %s", row.pod, got)
			}
		}
	}
}

func TestPlanFollowsAffinity(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		machine, reserved, options string
		affinity                   hint.Hint
		cpus, want                 string
	}{
		{"C", "0,8", "", anywhere, "4", "2-3,10-11"},
		{"C", "0,8", "", on(2), "4", "4-5,12-13"},
		{"C", "0,8", "", on(0), "2", "1,9"},
		{"C", "0,8", "", on(0), "4", "1-2,9-10"},
		{"C", "0,8", "", on(1, 3), "6", "2-3,6,10-11,14"},
		{"C", "0,8", "", on(0, 1), "8", "1-4,9-12"},
		{"C", "0,8", AlignBySocket, on(0), "4", "2-3,10-11"},
		{"C", "0,8", AlignBySocket, on(1, 3), "6", "1-3,9-11"},
		{"C", "0,8", DistributeAcrossNUMA, on(0, 2), "5", "1,4-5,9,12"},
		{"C", "0,8", DistributeAcrossNUMA, anywhere, "5", "2-4,10,12"},
		{"C", "0,8", DistributeAcrossNUMA, on(0, 1, 2, 3), "4", "1-2,4,6"},
		{"B", "0", FullPCPUsOnly, on(0), "8", "1-4,8-11"},
	} {
		n := newNode(t, machines[row.machine], row.reserved, row.options)
		if err := n.admit(pod("p", "c="+row.cpus), row.affinity); err != nil {
			t.Errorf("%+v: %v", row, err)
			continue
		}
		if got := n.held("p", "c"); got != row.want {
			t.Errorf("%s %q on %s: got %s, want %s", row.machine, row.options, row.affinity.Nodes, got, row.want)
		}
	}
}

func TestPlanTakesNothing(t *testing.T) {
	t.Parallel()
	burstable := pod("p", "c=2")
	burstable.Containers[0].Limits = nil
	podLevel := whole(pod("p", "c=2"), "2")
	unlike := whole(pod("p", "c=2"), "4") // the container itself is not Guaranteed
	unlike.Containers[0].Limits = workload.Quantities{workload.CPU: 4000}
	for _, row := range []struct {
		name     string
		pod      *workload.Pod
		features Features
		policy   string
	}{
		{"policy none", pod("p", "c=2"), allFeatures, PolicyNone},
		{"fraction", pod("p", "c=1500m"), allFeatures, PolicyStatic},
		{"zero", pod("p", "c=0"), allFeatures, PolicyStatic},
		{"burstable", burstable, allFeatures, PolicyStatic},
		{"pod-level resources without managers", podLevel, Features{Features: workload.Features{PodLevelResources: true}}, PolicyStatic},
		{"pod-level resources switched off", podLevel, Features{Features: workload.Features{PodLevelResourceManagers: true}}, PolicyStatic},
		{"container with other limits", unlike, allFeatures, PolicyStatic},
	} {
		cfg := Config{Policy: row.policy, Features: row.features, ReservedMilliCPU: 1000}
		m, err := New(cfg, machines["B"])
		if err != nil {
			t.Fatal(err)
		}
		n := newNode(t, machines["B"], "0", "")
		n.Manager = m
		draft, err := n.plan(row.pod, anywhere, 0)
		if err != nil {
			t.Fatalf("%s: %v", row.name, err)
		}
		if c, ok := draft.View().Claim(ledger.Owner{Pod: "p", Container: "c"}, Resource); ok {
			t.Errorf("%s: got %v", row.name, c)
		}
		answers, err := m.Hints(context.Background(), n.View(), hint.Request{Pod: row.pod, Container: 0})
		if err != nil || answers != nil {
			t.Errorf("%s: hints %v, %v", row.name, answers, err)
		}
	}
}

func TestPlanIsIdempotent(t *testing.T) {
	t.Parallel()
	n := newNode(t, machines["B"], "0,8", "")
	p := pod("p", "init:i=2", "a=4", "b=500m")
	if err := n.admit(p, anywhere); err != nil {
		t.Fatal(err)
	}
	for _, container := range []int{-1, 0, 1, 2} {
		claims, err := n.Plan(context.Background(), n.View(), hint.Request{Pod: p, Container: container}, on(1))
		if err != nil || len(claims) > 0 {
			t.Errorf("container %d: got %v, %v", container, claims, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	smt := new(*SMTAlignmentError)
	short := new(*ShortageError)
	for _, row := range []struct {
		name, reserved, options string
		before                  []string
		cpus                    string
		as                      any
		reason                  errdefs.Reason
		message                 string
	}{
		{"too many", "0,8", "", nil, "15", short, "",
			"not enough cpus available to satisfy request: requested=15, available=14"},
		{"not whole cores", "0,8", FullPCPUsOnly, nil, "3", smt, errdefs.SMTAlignmentError,
			"SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"},
		{"too few whole cores", "0", FullPCPUsOnly, nil, "16", smt, errdefs.SMTAlignmentError,
			"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 14, requested CPUs = 16, CPUs per core = 2"},
		{"too few left", "0,8", "", []string{"a=10"}, "6", short, "",
			"not enough cpus available to satisfy request: requested=6, available=4"},
	} {
		n := newNode(t, machines["B"], row.reserved, row.options)
		if row.before != nil {
			if err := n.admit(pod("before", row.before...), anywhere); err != nil {
				t.Fatal(err)
			}
		}
		err := n.admit(pod("p", "c="+row.cpus), anywhere)
		if errdefs.ClassOf(err) != errdefs.Refused || !errors.As(err, row.as) || err.Error() != row.message {
			t.Errorf("%s: got %v", row.name, err)
		}
		if got, _ := errdefs.ReasonOf(err); got != row.reason {
			t.Errorf("%s: reason %q, want %q", row.name, got, row.reason)
		}
	}
}

// TestSharedPoolIsNotEmptied: with strict-cpu-reservation the reference gives
// the last CPU of the shared pool away under the containers that run there
// (kubernetes#141196).
func TestSharedPoolIsNotEmptied(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		before []string
		pod    []string
		ok     bool
	}{
		{"nobody shares", nil, []string{"c=6"}, true},
		{"another pod shares", []string{"s=500m"}, []string{"c=6"}, false},
		{"the pod itself shares", nil, []string{"c=6", "s=500m"}, false},
		{"a CPU is left", []string{"s=500m"}, []string{"c=5"}, true},
		{"a sharer comes when all is taken", []string{"c=6"}, []string{"s=500m"}, false},
	} {
		n := newNode(t, machines["A"], "0,4", StrictReservation)
		if row.before != nil {
			if err := n.admit(pod("before", row.before...), anywhere); err != nil {
				t.Fatal(err)
			}
		}
		err := n.admit(pod("p", row.pod...), anywhere)
		var empty *EmptyPoolError
		if row.ok != (err == nil) || err != nil && !errors.As(err, &empty) {
			t.Errorf("%s: got %v", row.name, err)
		}
	}
}

func TestPodAsAWhole(t *testing.T) {
	t.Parallel()
	shared := func(p *workload.Pod, names ...string) *workload.Pod {
		for _, name := range names {
			c := p.Container(name)
			c.Requests, c.Limits = nil, nil
		}
		return p
	}
	for _, row := range []struct {
		name string
		pod  *workload.Pod
		want string // container and set, the pod's own set last
	}{
		{"one shares", shared(whole(pod("p", "a=2", "s=0"), "4"), "s"), "a 1,9 s 2,10 pod 1-2,9-10"},
		{"all share", shared(whole(pod("p", "s=0"), "2"), "s"), "s 1,9 pod 1,9"},
		{"init hands on", whole(pod("p", "init:i=4", "a=2", "b=2"), "4"), "i 1-2,9-10 a 1,9 b 2,10 pod 1-2,9-10"},
		{"init shares with all but sidecars", shared(whole(pod("p", "sidecar:s=2", "init:i=0", "a=2"), "4"), "i"),
			"s 1,9 i 2,10 a 2,10 pod 1-2,9-10"},
		{"sidecar shares the rest", shared(whole(pod("p", "sidecar:s=0", "a=2"), "4"), "s"), "s 2,10 a 1,9 pod 1-2,9-10"},
		{"no whole number", whole(pod("p", "a=2"), "2500m"), "a - pod -"},
	} {
		n := newNode(t, machines["B"], "0,8", "")
		for range 2 {
			// The second time the reference takes another set and loses the first
			// (kubernetes#140989).
			if err := n.admitWhole(row.pod, anywhere); err != nil {
				t.Fatalf("%s: %v", row.name, err)
			}
		}
		var got []string
		for _, c := range row.pod.Walk() {
			got = append(got, c.Name, n.held("p", c.Name))
		}
		got = append(got, "pod", n.held("p", ""))
		if s := strings.Join(got, " "); s != row.want {
			t.Errorf("%s: got %s, want %s", row.name, s, row.want)
		}
		n.remove("p")
		if pool := n.View().SharedCPUs(); pool.String() != "0-15" {
			t.Errorf("%s: after removal the shared pool is %s", row.name, pool)
		}
	}
}

// TestPodAsAWholeIsRefusedWhole: where the parts do not fit, the reference keeps
// the pod's set for ever (kubernetes#141261).
func TestPodAsAWholeIsRefusedWhole(t *testing.T) {
	t.Parallel()
	starved := whole(pod("p", "a=2", "s=0"), "2")
	starved.Containers[1].Requests, starved.Containers[1].Limits = nil, nil
	early := whole(pod("p", "sidecar:s=2", "init:i=0", "a=0"), "2")
	for i := range early.Containers[1:] {
		early.Containers[i+1].Requests, early.Containers[i+1].Limits = nil, nil
	}
	for _, row := range []struct {
		name    string
		options string
		pod     *workload.Pod
		reason  errdefs.Reason
		text    string
	}{
		{"parts larger than the whole", "", whole(pod("p", "a=2", "b=2"), "2"), "", "not enough cpus available"},
		{"nothing left to share", "", starved, errdefs.EmptyPodSharedPoolError, "equals pod budget"},
		{"nothing left to share before the end", "", early, errdefs.EmptyPodSharedPoolError, "shared init containers"},
		{"not whole cores", FullPCPUsOnly, whole(pod("p", "a=2"), "3"), errdefs.SMTAlignmentError, "not multiple"},
		{"too many", "", whole(pod("p", "a=2"), "20"), "", "not enough cpus available"},
	} {
		n := newNode(t, machines["B"], "0,8", row.options)
		before := n.View()
		err := n.admitWhole(row.pod, anywhere)
		if got, _ := errdefs.ReasonOf(err); errdefs.ClassOf(err) != errdefs.Refused || got != row.reason ||
			!strings.Contains(err.Error(), row.text) {
			t.Errorf("%s: got %v", row.name, err)
		}
		if n.View() != before {
			t.Errorf("%s: something is left behind", row.name)
		}
	}
}

// TestHeldCPUsAreNotChecked: a container keeps its CPUs if full-pcpus-only is switched on later (kubernetes#129078).
func TestHeldCPUsAreNotChecked(t *testing.T) {
	t.Parallel()
	n := newNode(t, machines["A"], "0", "")
	n.commit(n.plan(pod("p", "a=3"), anywhere, 0))
	strict, err := New(Config{
		Policy: PolicyStatic, Options: optionMap(FullPCPUsOnly), Features: allFeatures, ReservedCPUs: set("0"),
	}, machines["A"])
	if err != nil {
		t.Fatal(err)
	}
	claims, err := strict.Plan(t.Context(), n.View(), hint.Request{Pod: pod("p", "a=3"), Container: 0}, anywhere)
	if err != nil || len(claims) != 0 {
		t.Errorf("got %v, %v", claims, err)
	}
}
