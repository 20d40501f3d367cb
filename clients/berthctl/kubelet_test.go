package main

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/hack/testing/kubeletnode"
	"github.com/berthd/berth/server/observe"
)

// rejectedPods are the pods of a node whose kubelet has rejected one.
const rejectedPods = `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod",
	"metadata": {"name": "wide", "namespace": "shop", "uid": "u-wide"},
		"spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": "5", "memory": "1Gi"}}}]},
		"status": {"phase": "Failed", "reason": "TopologyAffinityError", "startTime": "2026-01-02T03:04:05Z"}}]}`

// ctl runs berthctl, and returns its exit code and both outputs.
func ctl(t *testing.T, stdin string, args ...string) (code int, out, problems string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), command.Env{
		In: strings.NewReader(stdin), Out: &stdout, Err: &stderr, Observe: observed, Check: checked, Now: time.Now,
		Getenv: func(string) string { return "" },
		Dial: func(ctx context.Context, endpoint string) (*berth.Client, error) {
			return berth.Dial(ctx, endpoint, berth.Options{Attempts: 1})
		},
	}, args)
	return code, stdout.String(), stderr.String()
}

// TestKubelet: verbs that read work on a kubelet's node, those that change something are refused, and no file changes.
func TestKubelet(t *testing.T) {
	t.Parallel()
	root := kubeletnode.New(t)
	before := listing(t, root)
	for _, row := range []struct {
		args  string
		code  int
		stdin string
		want  []string // parts of both outputs
	}{
		{args: "get cpus", want: []string{"policy static", "reserved   0 ", "all        0-7"}},
		{args: "get node", want: []string{"cpu ", " 8 "}},
		{args: "map", want: []string{"2 NUMA nodes", "node 1"}},
		{args: "topology", want: []string{"2 sockets, 2 NUMA nodes"}},
		{args: "policy get", want: []string{"single-numa-node", "container"}},
		{args: "admit -f - --dry-run", stdin: podYAML("web"), want: []string{"default/web would be admitted"}},
		{args: "hints -f -", stdin: podYAML("web"), want: []string{"policy single-numa-node"}},
		{args: "fit -f -", stdin: podYAML("web"), want: []string{"default/web"}},
		{args: "get rejections --pods -", stdin: rejectedPods, want: []string{"shop/wide", "TopologyAffinityError"}},
		{args: "explain wide --pods -", stdin: rejectedPods, want: []string{
			"shop/wide rejected: TopologyAffinityError", "it would fit", "with 4 CPUs instead of 5",
			"the kubelet rejected it with TopologyAffinityError; it is explained on the state reconstructed from the 0 pods",
		}},
		{args: "admit -f -", stdin: podYAML("web"), code: 1, want: []string{"this is a kubelet's node; berth only reads it"}},
		{args: "policy set --topology-manager-policy restricted", code: 1, want: []string{"berth only reads it"}},
		{args: "policy set --topology-manager-policy restricted --dry-run", want: []string{"restricted"}},
		{args: "remove u-web", code: 1, want: []string{"berth only reads it"}},
		{args: "reload", code: 1, want: []string{"berth only reads it"}},
		{args: "simulate --bundle x -f -", stdin: podYAML("web"), code: 2, want: []string{"--kubelet contradicts --bundle"}},
		{args: "simulate -f -", stdin: podYAML("web"), want: []string{"default/web"}},
		{args: "get pods --endpoint /x", code: 2, want: []string{"--endpoint and --kubelet: expected one of them"}},
	} {
		code, out, problems := ctl(t, row.stdin, append(strings.Fields(row.args), "--kubelet="+root)...)
		if code != row.code {
			t.Errorf("%s: exit code %d, want %d\n%s%s", row.args, code, row.code, out, problems)
		}
		for _, part := range row.want {
			if !strings.Contains(out+problems, part) {
				t.Errorf("%s: there is no %q in\n%s%s", row.args, part, out, problems)
			}
		}
	}
	if after := listing(t, root); after != before {
		t.Errorf("files have changed:\n%s\nbefore\n%s", after, before)
	}
	page, err := os.ReadFile("../../docs/kubelet.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```\n$ berthctl explain shop/wide --kubelet --pods pods.json\n")
	want, _, _ := strings.Cut(rest, "```\n")
	_, out, _ := ctl(t, rejectedPods, "explain", "shop/wide", "--pods", "-", "--kubelet="+root)
	id := regexp.MustCompile("admission [A-Z0-9]+")
	if got := id.ReplaceAllString(out, "admission"); got != id.ReplaceAllString(want, "admission") {
		t.Errorf("docs/kubelet.md shows\n%s\nand it is\n%s", want, out)
	}
	for _, args := range []string{"map --kubelet " + root, "explain --kubelet " + root + " shop/wide", "get pods --kubelet " + root} {
		if code, _, problems := ctl(t, "", strings.Fields(args)...); code != 2 || !strings.Contains(problems, "comes after =: --kubelet="+root) {
			t.Errorf("%s: %d, %s", args, code, problems)
		}
	}
	if code, _, problems := ctl(t, "", "get", "pods", "--pods", "x.json"); code != 2 || !strings.Contains(problems, "add --kubelet") {
		t.Errorf("--pods without --kubelet: %d, %s", code, problems)
	}
	if code, _, problems := ctl(t, "", "get", "pods", "--kubelet="+t.TempDir()); code != 1 || !strings.Contains(problems, "--kubelet: ") {
		t.Errorf("an empty directory: %d, %s", code, problems)
	}
}

// listing has all files below a directory with their sizes and times.
func listing(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			fmt.Fprintln(&b, path, info.Size(), info.ModTime().UnixNano(), info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestPodsOfAKubelet: the copy of a static pod at the API server has the static pod's uid, a pod that the kubelet has not seen holds
// nothing, and what was admitted in the second of a rejection was before it.
func TestPodsOfAKubelet(t *testing.T) {
	t.Parallel()
	pods, err := podspec.DecodeNode(strings.NewReader(`{"apiVersion": "v1", "kind": "List", "items": [
		{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "static", "uid": "copy",
			"annotations": {"kubernetes.io/config.mirror": "u-1"}},
			"spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Running", "startTime": "2026-01-02T03:04:05Z"}},
		{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new", "uid": "u-2"}, "spec": {"containers": [{"name": "c"}]},
			"status": {"phase": "Pending"}},
		{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain", "uid": "u-3"}, "spec": {"containers": [{"name": "c"}]}}]}`),
		podspec.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var uids []string
	for _, p := range observe.PodsOf(pods) {
		uids = append(uids, p.GetMetadata().GetUid())
	}
	if got := strings.Join(uids, " "); got != "u-1 u-3" {
		t.Errorf("pods %s", got)
	}
	root := kubeletnode.New(t)
	claims := `{"apiVersion": "v1", "kind": "List", "items": [
		{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "claims", "namespace": "shop", "uid": "u-4"},
			"spec": {"containers": [{"name": "c", "resources": {"claims": [{"name": "gpu"}]}}],
				"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu-1"}]}},
		{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "uid": "u-5"},
			"spec": {"containers": [{"name": "c"}]}}]}`
	_, out, problems := ctl(t, claims, "get", "pods", "--pods", "-", "--kubelet="+root)
	if !strings.Contains(problems, "no dra_manager_state that can be read: shop/claims") || !strings.Contains(out, "claims") ||
		!strings.Contains(out, "web") {
		t.Errorf("pods with claims:\n%s%s", out, problems)
	}
	state := `{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimUID":"u",` +
		`"ClaimName":"gpu-1","Namespace":"shop","PodUIDs":{"u-4":{}},` +
		`"DriverState":{"gpu.example.com":{"Devices":[{"PoolName":"n1","DeviceName":"gpu0"}]}}}]}`
	file := filepath.Join(root, "var/lib/kubelet/dra_manager_state")
	if err := os.WriteFile(file, fmt.Appendf(nil, `{"Data":%q,"Checksum":%d}`, state, crc32.ChecksumIEEE([]byte(state))),
		0o600); err != nil {
		t.Fatal(err)
	}
	_, out, problems = ctl(t, claims, "describe", "pod", "shop/claims", "--pods", "-", "--kubelet="+root)
	if strings.Contains(problems, "claims") || !strings.Contains(out, "gpu.example.com/dra n1/gpu0 by claim gpu-1") {
		t.Errorf("a pod with a claim:\n%s%s", out, problems)
	}
	noUnit := strings.Replace(claims, `{"claims": [{"name": "gpu"}]}`, `{"limits": {"gpu": "1"}}`, 1)
	for _, verb := range []string{"get pods", "check"} {
		_, out, problems := ctl(t, noUnit, append(strings.Fields(verb), "--pods", "-", "--kubelet="+root)...)
		if !strings.Contains(problems, "pod shop/claims: ") || verb != "check" && !strings.Contains(out, "web") {
			t.Errorf("%s with a pod that berthd would refuse:\n%s%s", verb, out, problems)
		}
	}
	large := strings.NewReplacer("wide", "large", `"cpu": "5"`, `"cpu": "3"`, "Failed", "Running").Replace(rejectedPods)
	_, items, _ := strings.Cut(large, "[")
	both := strings.TrimSuffix(strings.TrimSpace(rejectedPods), "]}") + ", " + items
	if code, out, problems := ctl(t, both, "explain", "shop/wide", "--pods", "-", "--kubelet="+root); code != 0 ||
		!strings.Contains(out, "reconstructed from the 1 pods") {
		t.Errorf("exit code %d\n%s%s", code, out, problems)
	}
}

// TestSimulateKubelet: pods are simulated on a kubelet's node with its pods, as on a bundle of it.
func TestSimulateKubelet(t *testing.T) {
	t.Parallel()
	root := kubeletnode.New(t)
	dir := t.TempDir()
	pods := filepath.Join(dir, "pods.json")
	running := strings.NewReplacer("wide", "large", `"cpu": "5"`, `"cpu": "3"`, "Failed", "Running").Replace(rejectedPods)
	for file, text := range map[string]string{
		pods: running,
		filepath.Join(root, "var/lib/kubelet/cpu_manager_state"): `{"policyName":"static","defaultCpuSet":"0,4-7",` +
			`"entries":{"u-large":{"app":"1-3"}},"checksum":0}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bundle := filepath.Join(dir, "node.tar.gz")
	if code, out, problems := ctl(t, "", "bundle", "-o", bundle, "--kubelet="+root, "--pods", pods); code != 0 {
		t.Fatalf("%s%s", out, problems)
	}
	for _, row := range []struct {
		cpus string
		code int
	}{{"4", 0}, {"5", 3}} {
		more := strings.NewReplacer("wide", "more", `"cpu": "5"`, `"cpu": "`+row.cpus+`"`).Replace(rejectedPods)
		code, out, problems := ctl(t, more, "simulate", "-f", "-", "--kubelet="+root, "--pods", pods)
		_, same, _ := ctl(t, more, "simulate", "-f", "-", "--bundle", bundle)
		for _, text := range []*string{&out, &same} {
			*text, _, _ = strings.Cut(*text, "it would fit") // with --kubelet, the lines of the kubelet's configuration follow
		}
		if code != row.code || out != same || !strings.Contains(out, "shop/more") {
			t.Errorf("%s CPUs: exit code %d, want %d\n%s%s\non a bundle\n%s", row.cpus, code, row.code, out, problems, same)
		}
		if row.code == 0 && !strings.Contains(out, "4-7") {
			t.Errorf("the CPUs of a pod of the node were given away:\n%s", out)
		}
	}
	if code, _, problems := ctl(t, "", "simulate", "--machine", "8c", "-f", pods, "--pods", pods); code != 2 ||
		!strings.Contains(problems, "add --kubelet") {
		t.Errorf("--pods without --kubelet: %d, %s", code, problems)
	}
}

// TestPodsOfSeveralNodes: pods of other nodes would count as held on the node that is read, so such a file is refused.
func TestPodsOfSeveralNodes(t *testing.T) {
	t.Parallel()
	root := kubeletnode.New(t)
	items := strings.TrimSuffix(rejectedPods[strings.Index(rejectedPods, "[")+1:], "]}")
	on := func(name, node string) string {
		return strings.NewReplacer("wide", name, `"spec": {`, `"spec": {"nodeName": "`+node+`", `).Replace(items)
	}
	for _, row := range []struct {
		pods string
		want string
		code int
	}{
		{on("a", "n1") + "," + on("b", "n1") + "," + items, "TopologyAffinityError", 0},
		{on("a", "n2") + "," + on("b", "n1"), "--pods standard input: the pods are on several nodes (n1,n2), expected those of the " +
			"node that is read: kubectl get pods -A -o json --field-selector spec.nodeName=NODE", 1},
	} {
		list := `{"apiVersion": "v1", "kind": "List", "items": [` + row.pods + `]}`
		code, out, problems := ctl(t, list, "get", "rejections", "--kubelet="+root, "--pods", "-")
		if code != row.code || !strings.Contains(out+problems, row.want) {
			t.Errorf("exit code %d, want %d and %q\n%s%s", code, row.code, row.want, out, problems)
		}
	}
}

// TestImportedPod: of a pod that a kubelet has admitted, every view has what its state files say, and nothing that nobody has set; a
// rejection has the kubelet's time.
func TestImportedPod(t *testing.T) {
	t.Parallel()
	root := kubeletnode.New(t)
	running := strings.NewReplacer("wide", "large", `"cpu": "5"`, `"cpu": "3", "example.com/gpu": "1"`, "Failed", "Running",
		"03:04:05", "03:04:04").Replace(rejectedPods)
	_, items, _ := strings.Cut(running, "[")
	pods := strings.TrimSuffix(strings.TrimSpace(rejectedPods), "]}") + ", " + items
	write(t, filepath.Join(root, "var/lib/kubelet/cpu_manager_state"), `{"policyName":"static","defaultCpuSet":"0-3,7",`+
		`"entries":{"u-large":{"app":"4-6"}},"checksum":0}`)
	devices := `{"PodDeviceEntries":[{"PodUID":"u-large","ContainerName":"app","ResourceName":"example.com/gpu","DeviceIDs":{"0":["gpu0"]},` +
		`"AllocResp":""}],"RegisteredDevices":{"example.com/gpu":["gpu0","gpu1"]}}`
	write(t, filepath.Join(root, "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"),
		`{"Data":`+devices+`,"Checksum":2914432977}`)
	for _, row := range []struct {
		args, stdin string
		want        []string
		not         string
	}{
		{args: "explain shop/large", want: []string{
			"note: taken over from a kubelet's cpu_manager_state\n  note: taken over from a kubelet's device-plugins/kubelet_internal_checkpoint\n",
			"cpu gives CPUs 4-6 (exclusive)\n", "gpu0 on node 0"}},
		{args: "describe pod shop/large", want: []string{"4-6"}, not: "movable"},
		{args: "get rejections", want: []string{"2026-01-02T03:04:05Z  shop/wide"}},
		{args: "plan defrag --for FILE", want: []string{"shop/large  app        4-6 to 1-3"}},
		{args: "fit -f FILE", want: []string{"default/more  after-defragmentation  1      1 "}},
	} {
		file := filepath.Join(t.TempDir(), "more.yaml")
		write(t, file, strings.ReplaceAll(podYAML("more"), "cpu: 2", "cpu: 4, memory: 1Gi"))
		args := strings.Fields(strings.ReplaceAll(row.args, "FILE", file))
		_, out, problems := ctl(t, pods, append(args, "--pods", "-", "--kubelet="+root)...)
		for _, want := range row.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: there is no %q in\n%s%s", row.args, want, out, problems)
			}
		}
		if row.not != "" && strings.Contains(out, row.not) {
			t.Errorf("%s: there is %q in\n%s", row.args, row.not, out)
		}
	}
}
