package admission_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// sized makes a pod with one container: CPUs, memory in Gi, devices of gpu.
func sized(uid string, cpus, gi, gpus int64) workload.Pod {
	p := guaranteed(uid, cpus, gpus)
	c := &p.Containers[0]
	c.Limits[workload.Memory] = gi << 30 // requests are the same map
	return p
}

// once makes a pod not run again.
func once(p workload.Pod) workload.Pod {
	p.RestartPolicy = "Never"
	return p
}

// important makes a pod of high priority.
func important(uid string, cpus int64) workload.Pod {
	p := sized(uid, cpus, 1, 0)
	high := int32(1000)
	p.Priority = &high
	return p
}

// whole makes a pod with CPUs and memory of its own, which its container shares.
func whole(uid string, cpus, bytes int64) workload.Pod {
	q := workload.Quantities{workload.CPU: cpus * 1000, workload.Memory: bytes}
	return workload.Pod{
		UID: uid, Name: uid, Namespace: "default", Resources: &workload.Resources{Requests: q, Limits: q},
		Containers: []workload.Container{{Name: "main"}},
		Excess:     &workload.Excess{Requests: workload.Quantities{workload.Memory: 5}, Limits: workload.Quantities{workload.Memory: 5}},
	}
}

// with makes a pod's container request an amount.
func with(p workload.Pod, r workload.Resource, amount int64) workload.Pod {
	p.Containers[0].Limits[r] = amount // requests are the same map
	return p
}

// sharing makes a pod that requests CPUs and has none of its own.
func sharing(uid string, milli int64) workload.Pod {
	return workload.Pod{UID: uid, Name: uid, Namespace: "default", Containers: []workload.Container{
		{Name: "main", Requests: workload.Quantities{workload.CPU: milli}},
	}}
}

// short spells a shortage.
func short(s ledger.Shortage) string {
	text := fmt.Sprintf("%s@%s %d/%d held %d", s.Resource, s.Nodes, s.Free, s.Need, s.Held)
	if s.Withheld > 0 || s.Why != "" {
		text += fmt.Sprintf(" %d %s", s.Withheld, s.Why)
	}
	for _, o := range s.Holders {
		text += " " + o.String()
	}
	if s.Structural {
		text += " never"
	}
	return text
}

func TestRejectionsAreExplained(t *testing.T) {
	t.Parallel()
	sick := func(id string, node int) device.Device {
		d := g(id, node)
		d.Healthy = false
		return d
	}
	two := []device.Device{g("g0", 0), g("g1", 1)}
	for name, row := range map[string]struct {
		setup
		there       []workload.Pod // admitted before
		pod         workload.Pod
		reason      errdefs.Reason
		provider    string
		shortages   []string
		suggestions []string
	}{
		"one node, too little on each": {
			setup: setup{shape: "2s1n4c1t", policy: topology.SingleNUMANode, devices: two},
			there: []workload.Pod{sized("a", 2, 1, 0), sized("b", 2, 1, 1)},
			pod:   sized("x", 3, 1, 1), reason: errdefs.TopologyAffinityError,
			shortages: []string{
				"cpu@0 1/3 held 2 1 reserved a/main",
				"example.com/gpu@1 0/1 held 1 b/main",
				"cpu@1 2/3 held 2 b/main",
			},
			suggestions: []string{
				"without pod default/a",
				"without pod default/b",
				"with 1 CPU instead of 3 for container main",
				"with two containers, main and main-2, that share the amounts of container main",
				"with topology policy best-effort instead of single-numa-node",
			},
		},
		"wider than a node": {
			setup: setup{shape: "2s1n4c1t", policy: topology.SingleNUMANode},
			pod:   sized("x", 5, 1, 0), reason: errdefs.TopologyAffinityError,
			shortages: []string{
				"cpu@1 4/5 held 0 never",
				"cpu@0 3/5 held 0 1 reserved never",
			},
			suggestions: []string{
				"with 4 CPUs instead of 5 for container main",
				"with two containers, main and main-2, that share the amounts of container main",
				"with topology policy restricted instead of single-numa-node",
			},
		},
		"one node, and the other has no device": {
			setup: setup{shape: "2s1n4c1t", policy: topology.SingleNUMANode, devices: two[:1]},
			there: []workload.Pod{sized("a", 2, 1, 0)},
			pod:   sized("x", 2, 1, 1), reason: errdefs.TopologyAffinityError,
			shortages: []string{
				"cpu@0 1/2 held 2 1 reserved a/main",
				"example.com/gpu@1 0/1 held 0 never",
			},
			suggestions: []string{
				"without pod default/a",
				"with 1 CPU instead of 2 for container main",
				"with two containers, main and main-2, that share the amounts of container main",
				"with topology policy best-effort instead of single-numa-node",
			},
		},
		"restricted, fragmented": {
			setup: setup{shape: "2s1n4c1t", policy: topology.Restricted},
			there: []workload.Pod{sized("a", 2, 1, 0), sized("b", 2, 1, 0)},
			pod:   sized("x", 3, 1, 0), reason: errdefs.TopologyAffinityError,
			shortages: []string{
				"cpu@1 2/3 held 2 b/main",
				"cpu@0 1/3 held 2 1 reserved a/main",
			},
			suggestions: []string{
				"without pod default/a",
				"without pod default/b",
				"with 2 CPUs instead of 3 for container main",
				"with two containers, main and main-2, that share the amounts of container main",
				"with topology policy best-effort instead of restricted",
			},
		},
		"restricted, unlike widths": {
			setup: setup{shape: "2s1n4c1t", policy: topology.Restricted, devices: two},
			pod:   sized("x", 5, 1, 1), reason: errdefs.TopologyAffinityError,
			suggestions: []string{
				"with 4 CPUs instead of 5 for container main",
				"with two containers, main and main-2, that share the amounts of container main",
				"with topology policy best-effort instead of restricted",
			},
		},
		"too few CPUs": {
			setup: setup{shape: "1s1n4c1t", policy: topology.BestEffort},
			there: []workload.Pod{sized("a", 1, 1, 0)},
			pod:   sized("x", 3, 1, 0), reason: errdefs.UnexpectedAdmissionError, provider: "cpu",
			shortages: []string{
				"cpu@0 2/3 held 1 1 reserved a/main",
			},
			suggestions: []string{
				"without pod default/a",
				"with 2 CPUs instead of 3 for container main",
			},
		},
		"node full of requests": {
			setup: setup{shape: "1s1n8c1t", policy: topology.None, fit: true},
			there: []workload.Pod{sharing("small", 500), sharing("large", 3500)},
			pod:   sharing("x", 4000), reason: "OutOfcpu", provider: "node",
			shortages: []string{"cpu@ 3/4 held 4 0 of it 4 on the shared CPUs, which a map shows as free large small"},
			suggestions: []string{
				"without pod default/large",
				"with 3 CPUs instead of 4 for container main",
			},
		},
		"node full, a part of it on shared CPUs": {
			setup: setup{shape: "1s1n8c1t", policy: topology.BestEffort, fit: true},
			there: []workload.Pod{sized("a", 2, 1, 0), sharing("b", 500)},
			pod:   sized("x", 5, 1, 0), reason: "OutOfcpu", provider: "node",
			shortages: []string{"cpu@ 4/5 held 3 0 of it 500m on the shared CPUs, which a map shows as free a b"},
			suggestions: []string{
				"without pod default/a",
				"without pod default/b",
				"with 4 CPUs instead of 5 for container main",
			},
		},
		"larger than the node": {
			setup: setup{shape: "1s1n8c1t", policy: topology.None, fit: true},
			there: []workload.Pod{sharing("a", 1000)},
			pod:   sharing("x", 9000), reason: "OutOfcpu", provider: "node",
			shortages: []string{"cpu@ 6/9 held 1 0 of it 1 on the shared CPUs, which a map shows as free a never"},
			suggestions: []string{
				"with 6 CPUs instead of 9 for container main",
			},
		},
		"node lacks part of a CPU": {
			setup: setup{shape: "1s1n8c1t", policy: topology.None, fit: true},
			there: []workload.Pod{sharing("a", 6500)},
			pod:   sharing("x", 900), reason: "OutOfcpu", provider: "node",
			shortages: []string{"cpu@ 0/1 held 7 0 of it 6500m on the shared CPUs, which a map shows as free; " +
				"counted in whole CPUs: 900m is requested, and 500m is left a"},
			suggestions: []string{
				"without pod default/a",
			},
		},
		"nothing left to share": {
			setup: setup{shape: "1s1n4c1t", policy: topology.None, options: map[string]string{"strict-cpu-reservation": "true"}, fit: true},
			there: []workload.Pod{sharing("a", 1000)},
			pod:   sized("x", 3, 1, 0), reason: errdefs.UnexpectedAdmissionError, provider: "cpu",
			shortages: []string{"cpu@ 2/3 held 1 0 of it 1 on the shared CPUs, which a map shows as free a"},
			suggestions: []string{
				"without pod default/a",
				"with 2 CPUs instead of 3 for container main",
			},
		},
		"node full of pods": {
			setup: setup{shape: "1s1n8c1t", policy: topology.None, fit: true},
			there: []workload.Pod{sharing("a", 1), sharing("b", 0), sized("c", 2, 1, 0)},
			pod:   sharing("x", 1), reason: "OutOfpods", provider: "node",
			shortages: []string{"pods@ 0/1 held 3 a b c"},
			suggestions: []string{
				"without pod default/a",
				"without pod default/b",
				"without pod default/c",
			},
		},
		"a pod that ends": {
			setup: setup{shape: "1s1n6c1t", policy: topology.BestEffort},
			there: []workload.Pod{sized("a", 2, 1, 0), once(sized("b", 2, 1, 0))},
			pod:   sized("x", 3, 1, 0), reason: errdefs.UnexpectedAdmissionError, provider: "cpu",
			shortages: []string{"cpu@0 1/3 held 4 1 reserved a/main b/main"},
			suggestions: []string{
				"when pod default/b has ended",
				"without pod default/a",
				"with 1 CPU instead of 3 for container main",
			},
		},
		"two pods that end": {
			setup: setup{shape: "1s1n4c1t", policy: topology.BestEffort},
			there: []workload.Pod{once(sized("a", 1, 1, 0)), once(sized("b", 1, 1, 0))},
			pod:   sized("x", 3, 1, 0), reason: errdefs.UnexpectedAdmissionError, provider: "cpu",
			shortages: []string{"cpu@0 1/3 held 2 1 reserved a/main b/main"},
			suggestions: []string{
				"when pods default/a and default/b have ended",
				"with 1 CPU instead of 3 for container main",
			},
		},
		"two pods must go": {
			setup: setup{shape: "1s1n4c1t", policy: topology.BestEffort},
			there: []workload.Pod{sized("a", 1, 1, 0), sized("b", 1, 1, 0)},
			pod:   sized("x", 3, 1, 0), reason: errdefs.UnexpectedAdmissionError, provider: "cpu",
			shortages: []string{
				"cpu@0 1/3 held 2 1 reserved a/main b/main",
			},
			suggestions: []string{
				"without pods default/a and default/b",
				"with 1 CPU instead of 3 for container main",
			},
		},
		"torn core": {
			setup: setup{shape: "1s1n4c2t", policy: topology.BestEffort, options: map[string]string{"full-pcpus-only": "true"}},
			pod:   sized("x", 3, 1, 0), reason: errdefs.SMTAlignmentError, provider: "cpu",
			suggestions: []string{
				"with 2 CPUs instead of 3 for container main",
				"with 4 CPUs instead of 3 for container main",
			},
		},
		"too few whole cores": {
			setup: setup{shape: "1s1n4c2t", policy: topology.BestEffort, options: map[string]string{"full-pcpus-only": "true"}},
			there: []workload.Pod{sized("a", 2, 1, 0)},
			pod:   sized("x", 6, 1, 0), reason: errdefs.SMTAlignmentError, provider: "cpu",
			shortages: []string{
				"cpu@0 4/6 held 2 2 reserved or on a core with a reserved CPU a/main",
			},
			suggestions: []string{
				"without pod default/a",
				"with 4 CPUs instead of 6 for container main",
			},
		},
		"devices held": {
			setup: setup{shape: "2s1n4c1t", policy: topology.BestEffort, devices: two},
			there: []workload.Pod{sized("a", 1, 1, 1)},
			pod:   sized("x", 1, 1, 2), reason: errdefs.UnexpectedAdmissionError, provider: "device",
			shortages: []string{
				"example.com/gpu@0-1 1/2 held 1 a/main",
			},
			suggestions: []string{
				"without pod default/a",
				"with 1 example.com/gpu instead of 2 for container main",
			},
		},
		"devices sick": {
			setup: setup{shape: "2s1n4c1t", policy: topology.BestEffort, devices: []device.Device{g("g0", 0), sick("g1", 1)}},
			pod:   sized("x", 1, 1, 2), reason: errdefs.UnexpectedAdmissionError, provider: "device",
			shortages: []string{
				"example.com/gpu@0-1 1/2 held 0 1 unhealthy",
			},
			suggestions: []string{
				"with 1 example.com/gpu instead of 2 for container main",
			},
		},
		"plugin away": {
			setup: setup{shape: "2s1n4c1t", policy: topology.BestEffort, devices: two, away: true},
			pod:   sized("x", 1, 1, 1), reason: errdefs.UnexpectedAdmissionError, provider: "device",
			shortages: []string{
				"example.com/gpu@0-1 0/1 held 0 2 of a plugin that is away",
			},
			suggestions: []string{
				"with no example.com/gpu instead of 1 for container main",
			},
		},
		"too little memory": {
			setup: setup{shape: "2s1n4c1t,mem=8Gi", policy: topology.SingleNUMANode, memory: true},
			there: []workload.Pod{sized("a", 1, 4, 0), sized("b", 1, 4, 0)},
			pod:   sized("x", 1, 5, 0), reason: errdefs.UnexpectedAdmissionError, provider: "memory",
			shortages: []string{
				"memory@0 3221225472/5368709120 held 4294967296 1073741824 reserved or huge pages a/main",
				"memory@1 3221225472/5368709120 held 4294967296 1073741824 reserved or huge pages b/main",
			},
			suggestions: []string{
				"without pod default/a",
				"without pod default/b",
				"with 3Gi of memory instead of 5Gi for container main",
			},
		},
		"everything short": {
			setup: setup{shape: "1s1n4c1t", policy: topology.BestEffort, devices: two[:1]},
			there: []workload.Pod{sized("a", 1, 1, 0)},
			pod:   sized("x", 9, 1, 4), reason: errdefs.UnexpectedAdmissionError, provider: "device",
			shortages: []string{
				"example.com/gpu@0 1/4 held 0 never",
				"cpu@0 2/9 held 1 1 reserved a/main never",
			},
			suggestions: []string{
				"with 2 CPUs instead of 9 and 1 example.com/gpu instead of 4 for container main",
			},
		},
		"three pods must go": {
			setup: setup{shape: "1s1n5c1t", policy: topology.BestEffort},
			there: []workload.Pod{sized("a", 1, 1, 0), sized("b", 1, 1, 0), important("c", 1), sized("d", 1, 1, 0)},
			pod:   sized("x", 3, 1, 0), reason: errdefs.UnexpectedAdmissionError, provider: "cpu",
			shortages: []string{"cpu@0 0/3 held 4 1 reserved a/main b/main c/main d/main"},
			suggestions: []string{
				"without pods default/a, default/b and default/d",
			},
		},
		"pod as a whole": {
			setup: setup{shape: "1s1n4c1t", policy: topology.SingleNUMANode, scope: hint.PodScope, whole: true},
			pod:   whole("x", 5, 1<<30+1), reason: errdefs.TopologyAffinityError,
			shortages: []string{"cpu@0 3/5 held 0 1 reserved never"},
			suggestions: []string{
				"with 3 CPUs instead of 5 for the pod",
				// Then it shares CPUs: only this scope gives it some as a whole.
				"with topology scope container instead of pod",
				"with topology policy none instead of single-numa-node",
			},
		},
		"huge pages": {
			setup: setup{shape: "1s1n4c1t,mem=8Gi,huge=2Mi:4", policy: topology.BestEffort, memory: true},
			pod:   with(sized("x", 1, 1, 0), "hugepages-2Mi", 20<<20), reason: errdefs.UnexpectedAdmissionError, provider: "memory",
			shortages: []string{"hugepages-2Mi@0 8388608/20971520 held 0 never"},
			suggestions: []string{
				"with 8Mi of hugepages-2Mi instead of 20Mi for container main",
			},
		},
		"odd bytes": {
			setup: setup{shape: "1s1n4c1t,mem=3Gi", policy: topology.BestEffort, memory: true},
			pod:   with(sized("x", 1, 0, 0), workload.Memory, 3<<30+1), reason: errdefs.UnexpectedAdmissionError, provider: "memory",
			shortages: []string{"memory@0 2147483648/3221225473 held 0 1073741824 reserved or huge pages never"},
			suggestions: []string{
				"with 2Gi of memory instead of 3221225473 for container main",
			},
		},
		"plugin refuses": {
			setup: setup{shape: "2s1n4c1t", policy: topology.BestEffort, devices: two, plugins: &plugins{fail: errors.New("no")}},
			pod:   sized("x", 1, 1, 1), reason: errdefs.UnexpectedAdmissionError, provider: "device",
		},
		"cgroup fails": {
			setup: setup{shape: "2s1n4c1t", policy: topology.BestEffort,
				cgroups: &cgroups{fail: map[string]error{"ensure": errdefs.Preconditionf("write cpu.shares: invalid argument")}}},
			pod: sized("x", 1, 1, 0), reason: errdefs.UnexpectedAdmissionError,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := row.open(t)
			for _, p := range row.there {
				if v := h.admit(t, p); v.Outcome != admission.Admitted {
					t.Fatalf("pod %s: %s", p.UID, v.Message)
				}
			}
			v := h.admit(t, row.pod)
			if v.Outcome != admission.Rejected || v.Reason != row.reason {
				t.Fatalf("%v %s: %s", v.Outcome, v.Reason, v.Message)
			}
			steps := v.Trace.Steps
			refused := steps[len(steps)-1]
			if refused.Kind != ledger.StepRefused || refused.Provider != row.provider {
				t.Errorf("last step %+v, want a refusal by %q", refused, row.provider)
			}
			var shortages, suggestions []string
			for _, s := range refused.Shortages {
				shortages = append(shortages, short(s))
			}
			for _, s := range v.Trace.Suggestions {
				suggestions = append(suggestions, s.Text)
			}
			if !slices.Equal(shortages, row.shortages) {
				t.Errorf("shortages\n\t%s\nwant\n\t%s", strings.Join(shortages, "\n\t"), strings.Join(row.shortages, "\n\t"))
			}
			said := len(shortages)
			if said == 0 && row.reason == errdefs.TopologyAffinityError {
				said = 1 // why the policy refuses
			}
			if len(v.Trace.Missing) != said {
				t.Errorf("in words: %q", v.Trace.Missing)
			}
			for _, s := range v.Trace.Suggestions {
				if len(s.How) == 0 {
					t.Errorf("%s: how?", s.Text)
				}
			}
			if !slices.Equal(suggestions, row.suggestions) {
				t.Errorf("suggestions\n\t%s\nwant\n\t%s", strings.Join(suggestions, "\n\t"), strings.Join(row.suggestions, "\n\t"))
			}
			kept, ok := h.ledger.View().TraceOfPod(row.pod.UID)
			if !ok || len(kept.Suggestions) != len(suggestions) {
				t.Errorf("the ledger keeps %+v", kept)
			}
		})
	}
}

// drawSetup makes a random setup and pods that fill it.
func drawSetup(t *rapid.T) setup {
	b := setup{
		shape: rapid.SampledFrom([]string{"1s1n6c1t", "2s1n4c1t", "2s1n3c2t", "2s2n2c2t"}).Draw(t, "shape"),
		policy: rapid.SampledFrom([]topology.Policy{
			topology.None, topology.BestEffort, topology.Restricted, topology.SingleNUMANode,
		}).Draw(t, "policy"),
		scope:  rapid.SampledFrom([]hint.Scope{hint.ContainerScope, hint.PodScope}).Draw(t, "scope"),
		memory: rapid.Bool().Draw(t, "memory"),
	}
	b.shape += ",mem=8Gi"
	if rapid.Bool().Draw(t, "whole cores") {
		b.options = map[string]string{"full-pcpus-only": "true"}
	}
	nodes := machinetest.Build(b.shape).NumNUMANodes()
	for i := range rapid.IntRange(0, 4).Draw(t, "devices") {
		d := g(fmt.Sprintf("g%d", i), i%nodes)
		d.Healthy = rapid.IntRange(0, 3).Draw(t, "healthy") > 0
		b.devices = append(b.devices, d)
	}
	return b
}

// drawPod makes a Guaranteed pod of one or two containers.
func drawPod(t *rapid.T, uid string) workload.Pod {
	p := sized(uid, 0, 0, 0)
	p.Containers, p.RestartPolicy = nil, rapid.SampledFrom([]string{"", "Never"}).Draw(t, "restarts")
	for i := range rapid.IntRange(1, 2).Draw(t, "containers") {
		one := sized(uid, rapid.Int64Range(1, 6).Draw(t, "cpus"), rapid.Int64Range(1, 6).Draw(t, "gi"),
			rapid.Int64Range(0, 3).Draw(t, "gpus"))
		one.Containers[0].Name = fmt.Sprintf("c%d", i)
		p.Containers = append(p.Containers, one.Containers[0])
	}
	return p
}

// Every suggestion, followed on a fresh engine with the same pods, gets the pod
// admitted; and a shortage is one.
func TestSuggestionsHold(t *testing.T) {
	t.Parallel()
	offered := map[ledger.SuggestionKind]int{}
	check := func(t *rapid.T) {
		b := drawSetup(t)
		h := b.open(t)
		for i := range rapid.IntRange(1, 8).Draw(t, "pods") {
			pod := drawPod(t, fmt.Sprintf("p%d", i))
			before := h.ledger.View()
			v := h.admit(t, pod)
			if v.Outcome == admission.Admitted {
				continue
			}
			last := v.Trace.Steps[len(v.Trace.Steps)-1]
			for _, s := range last.Shortages {
				if s.Free >= s.Need {
					t.Fatalf("no shortage: %s", short(s))
				}
			}
			if v.Reason == errdefs.TopologyAffinityError && len(v.Trace.Missing) == 0 {
				t.Fatalf("nothing is said about what was missing: %+v", v.Trace)
			}
			if v.Trace.Tried > 64 {
				t.Fatalf("%d dry runs", v.Trace.Tried)
			}
			for _, s := range v.Trace.Suggestions {
				offered[s.Kind]++
				fresh, changed := b.as(s, before, pod)
				if v := fresh.open(t).admit(t, changed); v.Outcome != admission.Admitted {
					t.Fatalf("%s, but then %s: %s", s.Text, v.Reason, v.Message)
				}
			}
		}
	}
	missing := func() (kinds []ledger.SuggestionKind) {
		for _, kind := range []ledger.SuggestionKind{
			ledger.SuggestRequest, ledger.SuggestPolicy, ledger.SuggestRemoval, ledger.SuggestWait, ledger.SuggestSplit,
		} {
			if offered[kind] == 0 {
				kinds = append(kinds, kind)
			}
		}
		return kinds
	}
	// One round in sixty offers no split.
	for range 10 {
		rapid.Check(t, check)
		if len(missing()) == 0 {
			return
		}
	}
	t.Errorf("no suggestion of kinds %v was ever made", missing())
}

// The largest smaller request is what counting down from the request finds.
func TestSmallerRequestIsTheLargest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := drawSetup(t)
		b.options, b.memory = nil, false
		b.policy = rapid.SampledFrom([]topology.Policy{topology.None, topology.BestEffort,
			topology.SingleNUMANode}).Draw(t, "monotone policy")
		h := b.open(t)
		for i := range rapid.IntRange(0, 3).Draw(t, "pods") {
			h.admit(t, drawPod(t, fmt.Sprintf("p%d", i)))
		}
		n := rapid.Int64Range(1, 20).Draw(t, "cpus")
		v := h.admit(t, sized("x", n, 1, 0))
		if v.Outcome == admission.Admitted {
			return
		}
		want := n - 1
		for want > 0 && h.dryRun(t, sized("x", want, 1, 0)).Outcome != admission.Admitted {
			want--
		}
		var got int64
		for _, s := range v.Trace.Suggestions {
			if s.Kind == ledger.SuggestRequest {
				got = int64(s.Requests[0].To)
			}
		}
		if got != want {
			t.Fatalf("%d CPUs of %d are suggested, %d would fit", got, n, want)
		}
	})
}

func TestSearchIsBounded(t *testing.T) {
	t.Parallel()
	b := setup{shape: "1s1n4c1t", policy: topology.BestEffort}
	var ticks int64
	b.now = func() time.Time { ticks++; return time.Unix(ticks, 0) }
	h := b.open(t)
	h.admit(t, sized("a", 2, 1, 0))
	v := h.admit(t, sized("x", 3, 1, 0))
	if v.Outcome != admission.Rejected || v.Trace.Tried != 0 || len(v.Trace.Suggestions) != 0 {
		t.Errorf("%d dry runs although each takes a second", v.Trace.Tried)
	}
	h = b.open(t)
	h.Tries = -1
	if v := h.admit(t, sized("x", 9, 1, 0)); v.Trace.Tried != 0 {
		t.Errorf("%d dry runs although there should be none", v.Trace.Tried)
	}
}

// A large machine full of small pods: the search stays within its dry runs.
func TestSearchAmongManyPods(t *testing.T) {
	t.Parallel()
	h := setup{shape: "2s1n32c2t", policy: topology.SingleNUMANode}.open(t)
	for i := range 120 {
		h.admit(t, sized(fmt.Sprintf("p%03d", i), 1, 1, 0))
	}
	v := h.admit(t, sized("x", 40, 1, 0))
	if v.Outcome != admission.Rejected || v.Trace.Tried > 64 {
		t.Fatalf("%v after %d dry runs", v.Outcome, v.Trace.Tried)
	}
	last := v.Trace.Steps[len(v.Trace.Steps)-1]
	if s := last.Shortages[0]; len(s.Holders) != 8 || s.MoreHolders == 0 || uint64(len(s.Holders)+s.MoreHolders) != s.Held {
		t.Errorf("%+v", s)
	}
}

// BenchmarkRejection measures a rejection on a large machine with its explanation
// and without. None of the difference is spent under the admission lock.
func BenchmarkRejection(b *testing.B) {
	for _, tries := range []int{-1, 64} {
		b.Run(fmt.Sprintf("nodes=8/cpus=512/tries=%d", tries), func(b *testing.B) {
			h := setup{shape: "2s4n32c2t", policy: topology.SingleNUMANode, memory: true}.open(b)
			h.Tries = tries
			for i := range 120 {
				h.admit(b, sized(fmt.Sprintf("p%d", i), 4, 4, 0))
			}
			pod := sized("x", 62, 8, 0)
			for b.Loop() {
				if v := h.dryRun(b, pod); v.Outcome != admission.Rejected {
					b.Fatal(v.Outcome)
				}
			}
		})
	}
}
