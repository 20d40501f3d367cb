package observe_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/server/observe"
)

// TestReturningPods: the deletion of a pod is suggested for a rejected one if it does not come back on the same node.
func TestReturningPods(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		about   string // of the pod that holds the CPUs
		deleted bool
	}{
		"of a ReplicaSet": {`"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r",` +
			` "controller": true}]`, true},
		"of a DaemonSet": {`"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d",` +
			` "controller": true}]`, false},
		"used by a DaemonSet": {`"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]`, true},
		"static":              {`"annotations": {"kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": "u-held"}`, false},
		"of the API":          {`"annotations": {"kubernetes.io/config.source": "api"}`, true},
	} {
		root := t.TempDir()
		files := machineFiles(2, 8)
		files["var/lib/kubelet/config.yaml"] = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" +
			"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\ntopologyManagerPolicy: single-numa-node\n"
		files["var/lib/kubelet/cpu_manager_state"] =
			`{"policyName":"static","defaultCpuSet":"0-8,12-15","entries":{"u-held":{"app":"9-11"}},"checksum":0}`
		pod := `{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": %q, "uid": "u-%[1]s", %s},` +
			` "spec": {"containers": [
			{"name": "app", "resources": {"limits": {"cpu": "%d", "memory": "64Mi"}}}]}, "status": %s}`
		files["pods.json"] = `{"apiVersion": "v1", "kind": "List", "items": [` +
			fmt.Sprintf(pod, "held", row.about, 3, `{"phase": "Running", "startTime": "2026-01-02T03:04:05Z"}`) + "," +
			fmt.Sprintf(pod, "wide", `"labels": {}`, 8,
				`{"phase": "Failed", "reason": "TopologyAffinityError", "startTime": "2026-01-02T03:04:06Z"}`) + "]}"
		writeAll(t, root, files)
		n, err := observe.Open(t.Context(), observe.Options{Root: root, Pods: podsOf(t, filepath.Join(root, "pods.json"))})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := inspectv1.NewInspectServiceClient(n).GetTrace(t.Context(), &inspectv1.GetTraceRequest{
			Subject: &inspectv1.GetTraceRequest_PodUid{PodUid: "u-wide"},
		})
		if err != nil {
			t.Fatalf("%s: %v: %q", name, err, n.Missing)
		}
		deleted, said := false, false
		for _, s := range answer.GetTrace().GetSuggestions() {
			deleted = deleted || len(s.GetRemovePodUids()) > 0
		}
		for _, s := range answer.GetTrace().GetSteps() {
			said = said || strings.Contains(s.GetText(), "no removal of pods helps: pod shop/held would be made again on this node")
		}
		if deleted != row.deleted || said == row.deleted {
			t.Errorf("%s: a deletion is suggested: %t, want %t; the explanation says why not: %t", name, deleted, row.deleted, said)
		}
	}
}
