package observe_test

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/server/observe"
)

// claimState is a dra_manager_state with the given claims.
func claimState(t *testing.T, claims ...string) string { return claimStateOf(t, "v1", claims...) }

func claimStateOf(t *testing.T, version string, claims ...string) string {
	t.Helper()
	content := fmt.Sprintf(`{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/%s","ClaimInfoStateList":[%s]}`, version,
		strings.Join(claims, ","))
	text, err := json.Marshal(map[string]any{"Data": content, "Checksum": crc32.ChecksumIEEE([]byte(content))})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// claimOf is a claim of pods in such a file, with a device for each of two requests.
func claimOf(name string, pods ...string) string {
	set := `{"` + strings.Join(pods, `":{},"`) + `":{}}`
	return fmt.Sprintf(`{"ClaimUID":"c-%[1]s","ClaimName":"%[1]s","Namespace":"shop","PodUIDs":%[2]s,`+
		`"DriverState":{"gpu.example.com":{"Devices":[`+
		`{"PoolName":"n1","DeviceName":"%[1]s-0","RequestNames":["first"],"CDIDeviceIDs":["gpu.example.com/claim=%[1]s-0"]},`+
		`{"PoolName":"n1","DeviceName":"%[1]s-1","ShareID":"s","RequestNames":["second"],"CDIDeviceIDs":null}]}}}`, name, set)
}

// claiming are pods of a node: trainer has a claim that it names, one that was made of a template, and one for an extended resource. late
// waits for its claim.
const claiming = `{"kind": "List", "apiVersion": "v1", "items": [
	{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "trainer", "namespace": "shop", "uid": "u-trainer"},
		"spec": {"resourceClaims": [{"name": "a", "resourceClaimName": "shared"}, {"name": "b", "resourceClaimTemplateName": "made"}],
			"containers": [
				{"name": "app", "resources": {"limits": {"cpu": "3", "memory": "64Mi"}, "claims": [{"name": "a",
					"request": "second"}, {"name": "b"}]}},
				{"name": "side", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}]},
		"status": {"phase": "Running", "startTime": "2026-01-02T03:04:05Z",
			"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made-x2"}],
			"extendedResourceClaimStatus": {"resourceClaimName": "extended-7", "requestMappings": [
				{"containerName": "side", "resourceName": "example.com/gpu", "requestName": "first"}]}}},
	{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "late", "namespace": "shop", "uid": "u-late"},
		"spec": {"resourceClaims": [{"name": "a", "resourceClaimName": "not-yet"}], "containers": [{"name": "app",
			"resources": {"claims": [{"name": "a"}]}}]},
		"status": {"phase": "Pending", "startTime": "2026-01-02T03:04:06Z"}}]}`

// claimNode is a directory with a node of these pods, and the pods.
func claimNode(t *testing.T, state string) (root string, pods []observe.Pod) {
	t.Helper()
	root = t.TempDir()
	files := machineFiles(2, 8)
	files["var/lib/kubelet/config.yaml"] = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" +
		"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n"
	files["var/lib/kubelet/cpu_manager_state"] =
		`{"policyName":"static","defaultCpuSet":"0,5-15","entries":{"u-trainer":{"app":"1-3","side":"4"}},"checksum":0}`
	files["var/lib/kubelet/memory_manager_state"] = `{"policyName":"None","machineState":{},"checksum":0}`
	files["var/lib/kubelet/allocated_pods_state"] = `{"data":"{\"entries\":{\"u-trainer\":{\"ContainerResources\":{` +
		`\"app\":{\"limits\":{\"cpu\":\"3\",\"memory\":\"64Mi\"}},\"side\":{\"limits\":{\"cpu\":\"1\",\"memory\":\"64Mi\"}}}}}}","checksum":0}`
	files["pods.json"] = claiming
	if state != "" {
		files["var/lib/kubelet/dra_manager_state"] = state
	}
	writeAll(t, root, files)
	return root, podsOf(t, filepath.Join(root, "pods.json"))
}

// TestClaims: podresources has the devices of claims that the kubelet's file has, by the containers that use them.
func TestClaims(t *testing.T) {
	t.Parallel()
	const notPrepared = "claims on dynamic resources, because the kubelet has not prepared them: shop/late"
	both := []string{
		"app: shop/made-x2 gpu.example.com/n1/made-x2-0 [gpu.example.com/claim=made-x2-0], gpu.example.com/n1/made-x2-1/s []",
		"app: shop/shared gpu.example.com/n1/shared-1/s []",
		"side: shop/extended-7 gpu.example.com/n1/extended-7-0 [gpu.example.com/claim=extended-7-0]",
	}
	ours := []string{claimOf("shared", "u-trainer"), claimOf("made-x2", "u-trainer"), claimOf("extended-7", "u-trainer")}
	for name, row := range map[string]struct {
		state   string
		unknown bool // without --pods
		want    []string
		missing []string
	}{
		"claims": {state: claimState(t, ours...), want: both, missing: []string{notPrepared}},
		"of another pod": {state: claimState(t, append([]string{claimOf("gone", "u-gone", "u-trainer")}, ours...)...),
			want: both, missing: []string{
				"which containers of pod shop/trainer use its claims: shop/gone (gpu.example.com/n1/gone-0, " +
					"gpu.example.com/n1/gone-1/s)", notPrepared,
				"dra_manager_state has an entry of a pod that is not among the pods: pod u-gone: claim shop/gone " +
					"(gpu.example.com/n1/gone-0, " +
					"gpu.example.com/n1/gone-1/s)"}},
		"no file": {missing: []string{"because there is no dra_manager_state that can be read: shop/trainer, shop/late"}},
		"damaged": {state: `{"Data":"","Checksum":1}`, missing: []string{
			"read dra_manager_state: checkpoint is corrupted: the checksum is 1, the content's 0",
			"because there is no dra_manager_state that can be read: shop/trainer, shop/late"}},
		"too long for a claim": {state: claimState(t, strings.ReplaceAll(claimOf("shared", "u-trainer"), "claim=",
			"claim="+strings.Repeat("x", 3000)),
			strings.ReplaceAll(ours[1], "claim=", "claim="+strings.Repeat("x", 3000))), missing: []string{
			"devices of the claims of pod shop/trainer: request is invalid: external_devices[0].devices[1].claim: its texts " +
				"have ", notPrepared}},
		"pods not known": {state: claimState(t, ours[0]), unknown: true, missing: []string{
			"names of pods: ", "which containers of pod unknown/u-trainer use its claims: shop/shared (gpu.example.com/n1/shared-0, " +
				"gpu.example.com/n1/shared-1/s)"}},
	} {
		root, pods := claimNode(t, row.state)
		if row.unknown {
			pods = nil
		}
		n, err := observe.Open(t.Context(), observe.Options{Root: root, Pods: pods})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(n.Missing) != len(row.missing) || !slices.EqualFunc(n.Missing, row.missing, strings.Contains) {
			t.Errorf("%s: missing %q, want %q", name, n.Missing, row.missing)
		}
		answer, err := podresourcesv1.NewPodResourcesListerClient(n).List(t.Context(), &podresourcesv1.ListPodResourcesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		cpus, got := 0, []string(nil)
		for _, p := range answer.GetPodResources() {
			for _, c := range p.GetContainers() {
				cpus += len(c.GetCpuIds())
				for _, d := range c.GetDynamicResources() {
					var devices []string
					for _, r := range d.GetClaimResources() {
						id := r.GetDriverName() + "/" + r.GetPoolName() + "/" + r.GetDeviceName()
						if r.GetShareId() != "" {
							id += "/" + r.GetShareId()
						}
						names := []string{}
						for _, cdi := range r.GetCdiDevices() {
							names = append(names, cdi.GetName())
						}
						devices = append(devices, fmt.Sprint(id, " ", names))
					}
					got = append(got, c.GetName()+": "+d.GetClaimNamespace()+"/"+d.GetClaimName()+" "+strings.Join(devices, ", "))
				}
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, row.want) || cpus != 4 {
			t.Errorf("%s: %d CPUs, devices %q, want %q", name, cpus, got, row.want)
		}
	}
}

// TestCheckClaims: claims of pods that do not exist are found, and others are not.
func TestCheckClaims(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		state    string
		findings []string
		missing  string
	}{
		"all there":    {claimState(t, claimOf("shared", "u-trainer", "u-late")), nil, ""},
		"one gone":     {claimState(t, claimOf("shared", "u-trainer", "u-gone")), []string{"claims-left-behind pod u-gone"}, ""},
		"no claims":    {claimState(t), nil, ""},
		"no file":      {"", nil, ""},
		"damaged":      {`{"Data":"","Checksum":1}`, []string{"claims-damaged /var/lib/kubelet/dra_manager_state"}, ""},
		"of a version": {claimStateOf(t, "v9"), nil, "apiVersion"},
	} {
		root, pods := claimNode(t, row.state)
		checked, err := observe.Check(t.Context(), observe.CheckOptions{Root: root, List: given(pods)})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, f := range checked.Findings {
			if strings.HasPrefix(f.ID, "claims-") {
				got = append(got, f.ID+" "+f.Object)
			}
		}
		if !slices.Equal(got, row.findings) || strings.Join(checked.Missing, "") != "" != (row.missing != "") ||
			!strings.Contains(strings.Join(checked.Missing, ""), row.missing) {
			t.Errorf("%s: %q, missing %q, want %q, %q", name, got, checked.Missing, row.findings, row.missing)
		}
	}
}
