package kubeletnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
)

// TestInitContainers: those are found whose CPUs others have too, and whose memory was taken.
func TestInitContainers(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		cpus   map[string]string
		memory []string
		want   string
	}{
		"none":            {map[string]string{"a": "1", "b": "2"}, nil, "[]"},
		"with memory":     {map[string]string{"a": "12", "b": "13", "i1": "12-13", "i2": "12"}, []string{"a", "b"}, "[i1 i2]"},
		"without memory":  {map[string]string{"a": "12", "i1": "12-13"}, nil, "its containers share CPUs"},
		"all have memory": {map[string]string{"a": "12", "i1": "12-13"}, []string{"a", "i1"}, "its containers share CPUs"},
		"alone":           {map[string]string{"a": "1", "i1": "2"}, []string{"a"}, "[]"},
	} {
		cpus, memory := map[string]cpuset.Set{}, map[string]bool{}
		for container, text := range row.cpus {
			var err error
			if cpus[container], err = cpuset.Parse(text); err != nil {
				t.Fatal(err)
			}
		}
		for _, container := range row.memory {
			memory[container] = true
		}
		inits, err := initContainers(cpus, memory)
		got := []string{}
		for container := range inits {
			got = append(got, container)
		}
		slices.Sort(got)
		if text := fmt.Sprint(got); err != nil && !strings.Contains(err.Error(), row.want) || err == nil && text != row.want {
			t.Errorf("%s: %s, %v; want %s", name, text, err, row.want)
		}
	}
}

// TestReconstruct: a pod has the amounts of its containers and its own; what no file tells is a problem.
func TestReconstruct(t *testing.T) {
	t.Parallel()
	entries := `{"entries": {"u1": {"ContainerResources": {"c": {"requests": {"cpu": "1"}}}, "PodLevelResources": {"limits": {"cpu": "2"}}},
		"u2": {"ContainerResources": {"a": {}, "i": {}}}, "u3": {"c": {"requests": {"cpu": "3"}}}, "u4": {}}}`
	text, err := json.Marshal(map[string]any{"data": entries, "checksum": 1})
	if err != nil {
		t.Fatal(err)
	}
	allocated, err := parseAllocated(text)
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{allocated: allocated, States: map[kubelet.Kind][]byte{
		kubelet.CPU: []byte(`{"policyName":"static","defaultCpuSet":"0","entries":{"u2":{"a":"1","i":"1-2"}},"checksum":1}`),
	}}
	nodePods, problems, named := n.Reconstruct()
	var pods []*typesv1.Pod
	for _, p := range nodePods {
		pods = append(pods, p.Pod)
	}
	if named || len(pods) == 0 || pods[0].GetMetadata().GetUid() != "u1" || pods[0].GetSpec().GetResources().GetLimits()["cpu"] != "2" ||
		pods[0].GetSpec().GetContainers()[0].GetResources().GetRequests()["cpu"] != "1" {
		t.Errorf("%v, %v", pods, problems)
	}
	if last := pods[len(pods)-1]; last.GetMetadata().GetUid() != "u3" ||
		last.GetSpec().GetContainers()[0].GetResources().GetRequests()["cpu"] != "3" {
		t.Errorf("an entry of Kubernetes 1.33: %v", last)
	}
	if len(problems) == 0 || !strings.Contains(problems[len(problems)-1], "pod u4: allocated_pods_state has no containers of it") {
		t.Errorf("problems %v", problems)
	}
	for text, want := range map[string]string{
		"x": "expected JSON with data", `{"data": "x"}`: "data: expected JSON with entries",
		`{"version": "v3", "data": "{}"}`:                              "version is v3, expected none or v2",
		`{"version": "v2", "data": "{\"podList\": \"CgUB\"}"}`:         "data: podList: expected a PodList in protobuf",
		`{"version": "v2", "data": "{\"podList\": \"not base\"}"}`:     "data: expected JSON with entries",
		`{"version": "v2", "data": "{\"podList\": \"EgUKAwoBYQ==\"}"}`: "data: podList: pod default/a: metadata.uid",
	} {
		if _, err := parseAllocated([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	twice := make([]corev1.Pod, 2)
	for i := range twice {
		twice[i].UID, twice[i].Name, twice[i].Spec.Containers = "u1", fmt.Sprint("p", i), []corev1.Container{{Name: "c", Image: "x"}}
	}
	const want = "data: podList: pod default/p1: metadata.uid: u1 is that of another pod, too"
	if _, err := parseAllocated(whole(t, "{}", twice...)); err == nil || err.Error() != want {
		t.Errorf("two pods with a uid: %v, want %s", err, want)
	}
}

// whole is a file as Kubernetes 1.38 writes it (pkg/kubelet/allocation/state/checkpoint_v2.go): the list in protobuf, and entries for an
// older kubelet.
func whole(t *testing.T, entries string, pods ...corev1.Pod) []byte {
	t.Helper()
	list := corev1.PodList{Items: pods}
	text, err := list.Marshal()
	var data, file []byte
	if err == nil {
		data, err = json.Marshal(map[string]any{"podList": text, "entries": json.RawMessage(entries)})
	}
	if err == nil {
		file, err = json.Marshal(map[string]any{"version": "v2", "data": string(data), "checksum": 1})
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// TestReconstructWhole: Kubernetes 1.38 has the names of pods and the roles of their containers. A pod of the time before has its amounts.
func TestReconstructWhole(t *testing.T) {
	t.Parallel()
	one := func(name string) corev1.Container {
		amounts := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		return corev1.Container{Name: name, Image: "x", Resources: corev1.ResourceRequirements{Requests: amounts, Limits: amounts}}
	}
	claim := "gpu-of-u1"
	pods := []corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{UID: "u1", Name: "db", Namespace: "shop"}, Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{one("i")}, Containers: []corev1.Container{one("c")},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}},
		}},
		{ObjectMeta: metav1.ObjectMeta{UID: types.UID(strings.Repeat("a", 32)), Name: "etcd-n1", Namespace: "kube-system"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{one("c")}}},
		{ObjectMeta: metav1.ObjectMeta{UID: "u3"}, Spec: corev1.PodSpec{Containers: []corev1.Container{one("a"), one("i")}}},
	}
	pods[0].Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	const entries = `{"u1": {"ContainerResources": {"c": {}}}, "u3": {"ContainerResources": {"a": {"requests": {"cpu": "3"}}}}}`
	const etcd, db = "kube-system/etcd-n1 static=true [] [c] map[]", "shop/db static=false [i] [c] map[c:[{gpu-of-u1 }]]"
	for name, row := range map[string]struct {
		pods  []corev1.Pod
		named bool
		want  string
	}{
		"all have names":          {pods[:2], true, etcd + "; " + db},
		"one of an older kubelet": {pods, false, etcd + "; " + db + "; unknown/u3 static=false [] [a] map[]"},
		"none":                    {nil, true, ""},
	} {
		root := fstest.MapFS{"d/allocated_pods_state": {Data: whole(t, entries, row.pods...)}}
		r := &reader{root: regularIn(root)}
		r.readAllocated("d")
		got, problems, named := r.Reconstruct()
		var texts []string
		for _, p := range got {
			names := func(list []*typesv1.Container) (out []string) {
				for _, c := range list {
					out = append(out, c.GetName())
				}
				return out
			}
			texts = append(texts, fmt.Sprintf("%s static=%t %v %v %v", title(p.Pod),
				p.Pod.GetMetadata().GetAnnotations()[workload.SourceAnnotation] == "file",
				names(p.Pod.GetSpec().GetInitContainers()), names(p.Pod.GetSpec().GetContainers()), p.Claims()))
		}
		if text := strings.Join(texts, "; "); text != row.want || named != row.named || len(problems) > 0 {
			t.Errorf("%s: %s, named %t, %q; want %s", name, text, named, problems, row.want)
		}
	}
}

// TestActuated: amounts that were set are read where those that were allocated are not there or damaged, and the first file's error is told
// where both are.
func TestActuated(t *testing.T) {
	t.Parallel()
	const good = `{"data": "{\"entries\": {\"u1\": {\"ContainerResources\": {\"c\": {}}}}}"}`
	for name, row := range map[string]struct {
		allocated, actuated string // empty for no file
		from, want          string
	}{
		"both":              {good, "x", "d/allocated_pods_state", ""},
		"only actuated":     {"", good, "d/actuated_pods_state", ""},
		"allocated damaged": {"x", good, "d/actuated_pods_state", ""},
		"neither":           {"", "", "", "amounts of pods: allocated_pods_state: file does not exist"},
		"both damaged":      {"x", "y", "", "amounts of pods: allocated_pods_state: expected JSON with data: invalid character 'x'"},
	} {
		files := fstest.MapFS{}
		for name, text := range map[string]string{"allocated": row.allocated, "actuated": row.actuated} {
			if text != "" {
				files["d/"+name+"_pods_state"] = &fstest.MapFile{Data: []byte(text)}
			}
		}
		r := &reader{root: regularIn(files)}
		r.readAllocated("d")
		pods, problems, _ := r.Reconstruct()
		if row.want == "" && (len(pods) != 1 || len(problems) > 0 || len(r.Sources) != 1 || r.Sources[0].Path != row.from) {
			t.Errorf("%s: %v, %q, from %v", name, pods, problems, r.Sources)
		}
		if row.want != "" && (len(pods) > 0 || len(problems) != 1 || !strings.HasPrefix(problems[0], row.want)) {
			t.Errorf("%s: %v, %q, want %s", name, pods, problems, row.want)
		}
	}
}

// TestDamagedAmounts: both files of amounts are checked as the kubelet checks them when it starts.
func TestDamagedAmounts(t *testing.T) {
	t.Parallel()
	const good = `{"data":"{\"entries\":{}}","checksum":1057365947}`
	for name, row := range map[string]struct{ allocated, actuated, want string }{
		"neither is there": {"", "", "map[]"},
		"both are whole":   {good, good, "map[]"},
		"another sum":      {good, strings.Replace(good, `"checksum":`, `"checksum":1`, 1), "map[actuated:"},
		"no JSON":          {"x", good, "map[allocated:"},
		"empty":            {" ", "", "map[allocated:"},
	} {
		files := fstest.MapFS{}
		for name, text := range map[string]string{"allocated": row.allocated, "actuated": row.actuated} {
			if text != "" {
				files["d/"+name+"_pods_state"] = &fstest.MapFile{Data: []byte(text)}
			}
		}
		r := &reader{root: regularIn(files)}
		r.readAllocated("d")
		if got := fmt.Sprint(r.Damaged); !strings.HasPrefix(got, row.want) || len(r.Damaged) > 1 {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestSame: a reading is another one if any part of the answers may be.
func TestSame(t *testing.T) {
	t.Parallel()
	read := func(change func(*Node)) *Node {
		n := &Node{
			States: map[kubelet.Kind][]byte{kubelet.CPU: []byte("a")}, allocatedText: []byte("b"), unmanifest: []string{"static pods: c"},
			manifests: []manifest{{pod: &typesv1.Pod{Metadata: &typesv1.PodMetadata{Name: "d"}}}},
		}
		change(n)
		return n
	}
	for name, change := range map[string]func(*Node){
		"a state file":                  func(n *Node) { n.States[kubelet.CPU] = []byte("x") },
		"a state file less":             func(n *Node) { n.States = nil },
		"amounts":                       func(n *Node) { n.allocatedText = []byte("x") },
		"why amounts are not known":     func(n *Node) { n.unallocated = errors.New("x") },
		"a manifest":                    func(n *Node) { n.manifests[0].pod.Metadata.Name = "x" },
		"a manifest with a uid":         func(n *Node) { n.manifests[0].given = true },
		"a manifest less":               func(n *Node) { n.manifests = nil },
		"a manifest that is not read":   func(n *Node) { n.unmanifest = nil },
		"a kubelet that runs":           func(n *Node) { n.Running = true },
		"a source":                      func(n *Node) { n.Sources = []Source{{What: "x"}} },
		"a state file that is not read": func(n *Node) { n.Unread = map[kubelet.Kind]error{kubelet.Memory: errors.New("x")} },
	} {
		before := read(func(*Node) {})
		if after := read(change); before.Same(after) || after.Same(before) {
			t.Errorf("%s: the readings are the same", name)
		}
	}
	if !read(func(*Node) {}).Same(read(func(*Node) {})) {
		t.Error("the same reading is another one")
	}
}
