package observe_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/kubeletnode/nodetest"
	"github.com/berthd/berth/server/observe"
)

// TestRejectedElsewhere: the explanation of a rejected pod says if it never fits, and if berth would admit it.
func TestRejectedElsewhere(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pod := func(name string, init map[string]string, app map[string]string) *typesv1.Pod {
		amounts := func(with map[string]string) *typesv1.ResourceRequirements {
			with["memory"] = "64Mi"
			return &typesv1.ResourceRequirements{Limits: with}
		}
		p := &typesv1.Pod{
			Metadata: &typesv1.PodMetadata{Name: name, Namespace: "shop", Uid: "u-" + name},
			Spec:     &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "app", Resources: amounts(app)}}},
		}
		if init != nil {
			p.Spec.InitContainers = []*typesv1.Container{{Name: "init", Resources: amounts(init)}}
		}
		return p
	}
	root := t.TempDir()
	files := machineFiles(2, 8)
	files["var/lib/kubelet/config.yaml"] = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" +
		"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\ntopologyManagerPolicy: single-numa-node\n"
	files["var/lib/kubelet/cpu_manager_state"] =
		`{"policyName":"static","defaultCpuSet":"0,4-15","entries":{"u-there":{"app":"1-3"}},"checksum":0}`
	files["var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"] = `{"Data":{"PodDeviceEntries":[
		{"PodUID":"u-there","ContainerName":"app","ResourceName":"example.com/gpu","DeviceIDs":{"0":["g0"]},"AllocResp":""},
		{"PodUID":"u-there","ContainerName":"app","ResourceName":"example.com/nic","DeviceIDs":{"1":["n0"]},"AllocResp":""}],
		"RegisteredDevices":{"example.com/gpu":["g0"],"example.com/nic":["n0"]}},"Checksum":2089418383}`
	writeAll(t, root, files)
	there := pod("there", nil, map[string]string{"cpu": "3", "example.com/gpu": "1", "example.com/nic": "1"})
	rejected := map[string]*typesv1.Pod{
		"it never fits on this machine with these policies, even if no other pod is there": pod("wide", nil, map[string]string{"cpu": "9"}),
		"even if no other pod is there: no NUMA node has all of ": pod("apart", nil,
			map[string]string{"cpu": "1", "example.com/gpu": "1", "example.com/nic": "1"}),
		"berth would admit it on NUMA nodes 1: ": pod("init", map[string]string{"cpu": "1"}, map[string]string{"cpu": "7"}),
		"":                                       pod("later", nil, map[string]string{"cpu": "1", "example.com/gpu": "1"}),
	}
	pods := []observe.Pod{{Pod: there, Started: began}}
	// A container without CPUs of its own is on no NUMA node.
	shared := pod("x", nil, map[string]string{"cpu": "500m"}).GetSpec().GetContainers()[0]
	shared.Name = "shared"
	together := rejected["berth would admit it on NUMA nodes 1: "].GetSpec()
	together.Containers = append(together.Containers, shared)
	for _, p := range rejected {
		pods = append(pods, observe.Pod{Pod: p, Started: began.Add(time.Second), Ended: true, Reason: "TopologyAffinityError"})
	}
	n, err := observe.Open(t.Context(), observe.Options{Root: root, Pods: pods})
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Missing) != 1 || !strings.Contains(n.Missing[0], "memory_manager_state") {
		t.Errorf("missing: %q", n.Missing)
	}
	for want, p := range rejected {
		answer, err := inspectv1.NewInspectServiceClient(n).GetTrace(t.Context(), &inspectv1.GetTraceRequest{
			Subject: &inspectv1.GetTraceRequest_PodUid{PodUid: p.GetMetadata().GetUid()},
		})
		if err != nil {
			t.Fatalf("%s: %v", p.GetMetadata().GetName(), err)
		}
		var notes []string
		for _, s := range answer.GetTrace().GetSteps() {
			if s.GetKind() == typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED {
				notes = append(notes, s.GetText())
			}
		}
		all := strings.Join(notes, "\n")
		if elsewhere := strings.Contains(all, "never fits") || strings.Contains(all, "berth would"); elsewhere != (want != "") ||
			!strings.Contains(all, want) || !strings.Contains(all, "the kubelet rejected it with TopologyAffinityError") {
			t.Errorf("%s: want %q in\n%s", p.GetMetadata().GetName(), want, all)
		}
	}
}

// TestScattered: check names the pods that would have to be elsewhere for a wider pod to fit on one NUMA node.
func TestScattered(t *testing.T) {
	t.Parallel()
	const apart = `"defaultCpuSet":"0,4-8,12-15","entries":{"u-a":{"app":"1-3"},"u-b":{"app":"9-11"}}`
	found := []string{"a pod on one NUMA node gets 5 of the 9 free CPUs; it could get 8", "pod shop/b would have to be elsewhere"}
	for name, row := range map[string]struct {
		policy, state string
		static        string // pods that come back
		want          []string
	}{
		"scattered":     {"single-numa-node", apart, "", found},
		"a comes back":  {"single-numa-node", apart, "a", found},
		"b comes back":  {"single-numa-node", apart, "b", nil},
		"all come back": {"single-numa-node", apart, "ab", nil},
		"on one node":   {"single-numa-node", `"defaultCpuSet":"0,7-15","entries":{"u-a":{"app":"1-3"},"u-b":{"app":"4-6"}}`, "", nil},
		"not aligned":   {"best-effort", apart, "", nil},
	} {
		root := t.TempDir()
		files := machineFiles(2, 8)
		files["var/lib/kubelet/config.yaml"] = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" +
			"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\ntopologyManagerPolicy: " + row.policy + "\n"
		files["var/lib/kubelet/cpu_manager_state"] = `{"policyName":"static",` + row.state + `,"checksum":0}`
		writeAll(t, root, files)
		var pods []observe.Pod
		for _, name := range []string{"a", "b"} {
			pods = append(pods, observe.Pod{Pod: &typesv1.Pod{
				Metadata: &typesv1.PodMetadata{Name: name, Namespace: "shop", Uid: "u-" + name},
				Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "app", Resources: &typesv1.ResourceRequirements{
					Limits: map[string]string{"cpu": "3", "memory": "64Mi"},
				}}}},
			}})
			if strings.Contains(row.static, name) {
				pods[len(pods)-1].Metadata.Annotations = map[string]string{workload.SourceAnnotation: "file"}
			}
		}
		checked, err := observe.Check(t.Context(), observe.CheckOptions{Root: root, List: given(pods)})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range checked.Findings {
			if f.ID == "scattered-cpus" {
				got = append([]string{f.Text}, f.Evidence...)
			}
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: got %q, want %q: %+v", name, got, row.want, checked)
		}
	}
}

// TestSuggestionsHold: each suggestion for a pod that a recorded kubelet has rejected is carried out on the recorded state, and admits it.
func TestSuggestionsHold(t *testing.T) {
	t.Parallel()
	carried, roots := map[typesv1.SuggestionKind]int{}, map[string]string{}
	for _, r := range nodetest.Recordings(t) {
		root, ok := roots[r.Shape]
		if !ok {
			root = r.Write(t)
			roots[r.Shape] = root
		}
		r.Rewrite(t, root)
		pods := podsOf(t, filepath.Join(root, nodetest.PodsFile))
		n, err := observe.Open(t.Context(), observe.Options{Root: root, Pods: pods})
		if err != nil {
			t.Fatalf("%s: %v", r.Name, err)
		}
		for i, p := range pods {
			answer, err := inspectv1.NewInspectServiceClient(n).GetTrace(t.Context(), &inspectv1.GetTraceRequest{
				Subject: &inspectv1.GetTraceRequest_PodUid{PodUid: p.GetMetadata().GetUid()},
			})
			if err != nil || !p.Ended {
				continue
			}
			for _, s := range answer.GetTrace().GetSuggestions() {
				carried[s.GetKind()]++
				if !fitsWith(t, root, pods, i, s) {
					t.Errorf("%s: %s does not fit %s", r.Name, p.GetMetadata().GetName(), s.GetText())
				}
			}
		}
	}
	if len(carried) < 3 {
		t.Errorf("suggestions of all kinds were to be carried out: %v", carried)
	}
	t.Log(carried)
}

// fitsWith reports whether the i-th pod, which was rejected, is admitted after a change.
func fitsWith(t *testing.T, root string, pods []observe.Pod, i int, s *typesv1.Suggestion) bool {
	t.Helper()
	file := filepath.Join(root, "var/lib/kubelet/config.yaml")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := slices.Clone(pods)
	changed[i].Pod = proto.CloneOf(pods[i].Pod)
	for _, c := range s.GetRequests() {
		change(t, changed[i].Pod, c)
	}
	if s.GetPolicy() != "" {
		var c map[string]any
		if err := json.Unmarshal(before, &c); err != nil {
			t.Fatal(err)
		}
		c["topologyManagerPolicy"], c["topologyManagerScope"] = s.GetPolicy(), s.GetScope()
		after, err := json.Marshal(c)
		if err == nil {
			err = os.WriteFile(file, after, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	title := pods[i].GetMetadata().GetNamespace() + "/" + pods[i].GetMetadata().GetName()
	changed = slices.DeleteFunc(changed, func(p observe.Pod) bool {
		return slices.Contains(slices.Concat(s.GetRemovePodUids(), s.GetWaitPodUids()), p.GetMetadata().GetUid())
	})
	n, err := observe.Open(t.Context(), observe.Options{Root: root, Pods: changed})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, before, 0o600); err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(n.Missing, func(text string) bool {
		return strings.Contains(text, title) && strings.Contains(text, "it is admitted on the state")
	})
}

// change changes a request of a pod.
func change(t *testing.T, p *typesv1.Pod, c *typesv1.RequestChange) {
	t.Helper()
	amounts := p.GetSpec().GetResources()
	containers := p.GetSpec().GetContainers()
	for i, of := range containers { // the second one of a split
		if c.GetContainerName() == of.GetName()+"-2" && !slices.ContainsFunc(containers, func(o *typesv1.Container) bool {
			return o.GetName() == c.GetContainerName()
		}) {
			second := proto.CloneOf(of)
			second.Name = c.GetContainerName()
			p.Spec.Containers = slices.Insert(slices.Clone(containers), i+1, second)
		}
	}
	for _, of := range slices.Concat(p.GetSpec().GetInitContainers(), p.GetSpec().GetContainers()) {
		if of.GetName() == c.GetContainerName() {
			amounts = of.GetResources()
		}
	}
	for _, list := range []map[string]string{amounts.GetLimits(), amounts.GetRequests()} {
		if _, there := list[c.GetResource()]; !there {
			continue
		}
		if list[c.GetResource()] = fmt.Sprint(c.GetProposed()); c.GetProposed() == 0 {
			delete(list, c.GetResource())
		}
	}
}
