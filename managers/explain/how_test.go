package explain

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// TestHow: each suggestion has the commands or the changed lines that carry it out, those of a kubelet's node if it decides.
func TestHow(t *testing.T) {
	t.Parallel()
	policy := func(s *search, p topology.Policy, scope hint.Scope) *topology.Manager {
		m := s.Base.Machine()
		out, err := topology.New(topology.Config{Policy: p, Scope: scope}, m.NodeMask(), m.Distances())
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	pod := func(name, owner string) *ledger.Pod {
		return &ledger.Pod{Pod: workload.Pod{Namespace: "shop", Name: name}, OwnedBy: owner}
	}
	claim := pod("train", "dra")
	claim.Pod.ResourceClaim = &workload.ResourceClaim{Pods: []workload.ClaimPod{{Name: "a"}, {Name: "b"}}}
	const restart = "systemctl restart kubelet   # after this change of its configuration; it admits the pods that run again, " +
		"and ends one that does not fit (kubernetes#123859)"
	for name, row := range map[string]struct {
		how            func(s *search) []string
		berth, kubelet []string
	}{
		"a pod": {func(s *search) []string { return s.removal(pod("web", "")) },
			[]string{"berthctl remove shop/web"}, []string{"kubectl delete pod -n shop web"}},
		"a pod of another agent": {func(s *search) []string { return s.removal(pod("web", "mine")) },
			[]string{"berthctl remove shop/web --owner mine"}, []string{"kubectl delete pod -n shop web"}},
		"a pod of a manifest": {func(s *search) []string { return s.removal(pod("web", "berthlet")) },
			[]string{"remove the manifest of shop/web from berthlet's directory of manifests"}, []string{"kubectl delete pod -n shop web"}},
		"a pod of Kubernetes": {func(s *search) []string { return s.removal(pod("web", "kubernetes")) },
			[]string{"kubectl delete pod -n shop web"}, []string{"kubectl delete pod -n shop web"}},
		"a name that is a command": {func(s *search) []string {
			p := pod("web; reboot", "")
			return append(s.removal(p), s.waiting([]*ledger.Pod{p})...)
		}, []string{}, []string{}},
		"an agent that is a command": {func(s *search) []string { return s.removal(pod("web", "$(reboot)")) }, []string{}, []string{}},
		"a claim": {func(s *search) []string { return s.removal(claim) },
			[]string{"kubectl delete pod -n shop a", "kubectl delete pod -n shop b"},
			[]string{"kubectl delete pod -n shop a", "kubectl delete pod -n shop b"}},
		"the end of a pod": {func(s *search) []string { return s.waiting([]*ledger.Pod{pod("job", "")}) },
			[]string{"berthctl watch --types removed -n shop   # until job is removed"},
			[]string{"kubectl get pod -n shop job --watch   # until it has ended"}},
		"a policy": {func(s *search) []string { return s.settings(policy(s, topology.BestEffort, hint.ContainerScope)) },
			[]string{"berthctl policy set --topology-manager-policy best-effort"}, []string{"topologyManagerPolicy: best-effort", restart}},
		"a scope": {func(s *search) []string { return s.settings(policy(s, topology.Restricted, hint.PodScope)) },
			[]string{"berthctl policy set --topology-manager-scope pod"}, []string{"topologyManagerScope: pod", restart}},
		"amounts": {func(s *search) []string {
			set := func(container int, r workload.Resource, unit, to int64, unlimited bool) adjustment {
				return adjustment{adjustable{
					container: container, resource: r, unit: unit, request: 9 * unit, now: 9, unlimited: unlimited,
				}, to}
			}
			return s.lines([]adjustment{
				set(0, workload.CPU, 1000, 4, false), set(0, workload.Memory, 1<<30, 1, true),
				set(-1, "hugepages-2Mi", 2<<20, 1, false), set(0, "a.com/x", 1, 0, false),
			})
		}, []string{
			"without a.com/x   # in resources of container c",
			`resources: {limits: {cpu: "4"}, requests: {cpu: "4", memory: "1Gi"}}   # container c; keep what else is there`,
			`resources: {limits: {hugepages-2Mi: "2Mi"}, requests: {hugepages-2Mi: "2Mi"}}   # the pod's own; keep what else is there`,
		}, nil},
	} {
		for kubelet, want := range map[bool][]string{false: row.berth, true: row.kubelet} {
			s := &search{Refusal: refusal(t), Dry: Dry{Kubelet: kubelet}}
			s.Policy = policy(s, topology.Restricted, hint.ContainerScope)
			if got := row.how(s); !slices.Equal(got, want) && want != nil {
				t.Errorf("%s, kubelet %t: got %q, want %q", name, kubelet, got, want)
			}
		}
	}
}

// TestRanked: those that cost least come first, and to go without a resource is offered only alone.
func TestRanked(t *testing.T) {
	t.Parallel()
	request := func(text string, to uint64) ledger.Suggestion {
		return ledger.Suggestion{Kind: ledger.SuggestRequest, Text: text, Requests: []ledger.RequestChange{{To: 1}, {To: to}}}
	}
	kind := func(k ledger.SuggestionKind, text string) ledger.Suggestion {
		return ledger.Suggestion{Kind: k, Text: text}
	}
	for _, row := range []struct {
		found []ledger.Suggestion
		want  []string
	}{
		{[]ledger.Suggestion{
			request("none", 0), request("less", 1), kind(ledger.SuggestSplit, "two"), kind(ledger.SuggestPolicy, "policy"),
			kind(ledger.SuggestRemoval, "a"), kind(ledger.SuggestWait, "end"), kind(ledger.SuggestRemoval, "b"),
		}, []string{"end", "a", "b", "less", "two", "policy"}},
		{[]ledger.Suggestion{request("none", 0), kind(ledger.SuggestPolicy, "policy")}, []string{"policy"}},
		{[]ledger.Suggestion{request("none", 0)}, []string{"none"}},
		{nil, nil},
	} {
		var got []string
		for _, s := range ranked(row.found) {
			got = append(got, s.Text)
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
}

// TestSplit: a container is tried as two whose amounts add up to its own; a single device goes to either.
func TestSplit(t *testing.T) {
	t.Parallel()
	r := refusal(t)
	m := r.Base.Machine()
	var err error
	if r.Policy, err = topology.New(topology.Config{Policy: topology.SingleNUMANode, Scope: hint.ContainerScope}, m.NodeMask(),
		m.Distances()); err != nil {
		t.Fatal(err)
	}
	whole := workload.Quantities{workload.CPU: 5000, workload.Memory: 3<<20 + 1, "a.com/x": 1, "hugepages-2Mi": 6 << 20}
	part := func(cpu, memory, device, pages int64) workload.Quantities {
		return workload.Quantities{workload.CPU: cpu, workload.Memory: memory, "a.com/x": device, "hugepages-2Mi": pages}
	}
	none := func(q workload.Quantities) workload.Quantities {
		delete(q, "a.com/x")
		return q
	}
	try := func(c workload.Container) (tried [][]workload.Container) {
		r.Request.Container = 0
		r.Request.Pod.Containers = []workload.Container{c}
		s := &search{Refusal: r, ctx: t.Context(), left: 9, Dry: Dry{Time: time.Second, Now: func() time.Time { return time.Time{} },
			Bounds: workload.Bounds{Containers: 9},
			Run: func(_ context.Context, _ *ledger.View, pod *workload.Pod, _ *topology.Manager) bool {
				tried = append(tried, pod.Containers)
				return false
			}}}
		s.until = time.Unix(1, 0)
		s.split()
		return tried
	}
	got := try(workload.Container{Name: "c", Requests: whole, Limits: whole})
	want := [][]workload.Quantities{
		{part(3000, 2<<20+1, 1, 4<<20), none(part(2000, 1<<20, 0, 2<<20))},
		{none(part(3000, 2<<20+1, 0, 4<<20)), part(2000, 1<<20, 1, 2<<20)},
	}
	if len(got) != len(want) {
		t.Fatalf("tried %v", got)
	}
	for i := range want {
		for k, c := range got[i] {
			if name := []string{"c", "c-2"}[k]; c.Name != name || !maps.Equal(c.Limits, want[i][k]) || !maps.Equal(c.Requests, want[i][k]) {
				t.Errorf("try %d: %+v, want %v", i, c, want[i][k])
			}
		}
	}
	for name, c := range map[string]workload.Container{
		"one CPU":           {Requests: workload.Quantities{workload.CPU: 1000}, Limits: workload.Quantities{workload.CPU: 1000}},
		"part of a CPU":     {Requests: workload.Quantities{workload.CPU: 2500}, Limits: workload.Quantities{workload.CPU: 2500}},
		"without a limit":   {Requests: workload.Quantities{workload.CPU: 4000}},
		"an init container": {Role: workload.Init, Requests: whole, Limits: whole},
		"a fixed device":    {Requests: whole, Limits: whole, ExternalDevices: []workload.ExternalDevice{{ID: "x"}}},
	} {
		if c.Name = "c"; len(try(c)) > 0 {
			t.Errorf("%s was divided", name)
		}
	}
}
