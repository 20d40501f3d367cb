package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/testing/kubeletnode"
)

// listed makes the text of a list of pods.
func listed(pods ...string) string {
	return `{"apiVersion": "v1", "kind": "List", "items": [` + strings.Join(pods, ",") + "]}"
}

// nodePod makes a pod that the kubelet has seen at a second: with an init container of some CPUs unless they are 0, and a container. It
// was rejected if there is a reason.
func nodePod(second int, name string, initCPUs, cpus int, reason string) string {
	container := func(name string, n int) string {
		return fmt.Sprintf(`{"name": %q, "resources": {"limits": {"cpu": "%d", "memory": "1Gi"}}}`, name, n)
	}
	phase, inits := "Running", ""
	if reason != "" {
		phase = "Failed"
	}
	if initCPUs > 0 {
		inits = container("init", initCPUs)
	}
	quoted, _ := json.Marshal(reason)
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": "shop", "uid": "u-%s"},
		"spec": {"initContainers": [%s], "containers": [%s]},
		"status": {"phase": %q, "reason": %s, "startTime": "2026-01-02T03:04:%02dZ"}}`,
		name, name, inits, container("app", cpus), phase, quoted, second)
}

// comparedPods are those of docs/kubelet.md.
var comparedPods = listed(nodePod(3, "wide", 0, 5, "TopologyAffinityError"), nodePod(1, "web", 0, 2, ""),
	nodePod(2, "warm", 1, 4, "TopologyAffinityError"))

const missingStates = `warning: not read: CPUs of containers: /var/lib/kubelet/cpu_manager_state: no such file or directory
warning: not read: memory of containers: /var/lib/kubelet/memory_manager_state: no such file or directory
`

const sameTable = `DECIDES  POLICY                  ADMITTED  REJECTED  ALIGNED/PLACED  NODES/POD  FREE-CPUS  OF-ONE-NODE  SCATTERED
kubelet  single-numa-node (now)  1         0         1/1             1.00       5          4            0
kubelet  none                    1         0         1/1             1.00       5          4            0
kubelet  best-effort             1         0         1/1             1.00       5          4            0
kubelet  restricted              1         0         1/1             1.00       5          4            0
berth    single-numa-node        1         0         1/1             1.00       5          4            0
berth    none                    1         0         1/1             1.00       5          4            0
berth    best-effort             1         0         1/1             1.00       5          4            0
berth    restricted              1         0         1/1             1.00       5          4            0

the rows differ about 0 of 1 pod
`

const noPods = `DECIDES  POLICY                  ADMITTED  REJECTED  ALIGNED/PLACED  NODES/POD  FREE-CPUS  OF-ONE-NODE  SCATTERED
kubelet  single-numa-node (now)  0         0         0/0             -          7          4            0
`

// TestCompareKubelet: the rows decide about the same pods, and what the kubelet has decided otherwise is a warning.
func TestCompareKubelet(t *testing.T) {
	t.Parallel()
	root := kubeletnode.New(t)
	ended := strings.NewReplacer("Running", "Succeeded").Replace(nodePod(1, "job", 0, 7, ""))
	var many []string
	for i := range 30 {
		many = append(many, nodePod(i, fmt.Sprint("p", i), 0, 1, ""))
	}
	for name, row := range map[string]struct {
		pods          string
		out, problems string
		more          []string // other parts of both
	}{
		"nothing differs": {pods: listed(nodePod(1, "web", 0, 2, "")), out: sameTable},
		"no pods":         {pods: listed(), out: noPods, more: []string{"\nthe rows differ about 0 of 0 pods\n"}},
		"a resource without a plugin": {
			pods: strings.ReplaceAll(listed(nodePod(1, "web", 0, 2, "")), `"1Gi"`, `"1Gi", "example.com/gpu": "1"`), out: sameTable,
		},
		"an ended pod has no place": {pods: listed(ended, nodePod(2, "web", 0, 2, "")), out: sameTable},
		"a pod that was rejected when others were there": {
			pods: listed(nodePod(1, "web", 0, 2, "OutOf\u001b[2Jcpu")), out: sameTable,
			more: []string{`warning: not repeated: shop/web: the kubelet has rejected it, and here it is admitted (OutOf\x1b[2Jcpu): ` +
				"the node may have had other pods then\n"},
		},
		"more pods than the machine holds": {pods: listed(many...), more: []string{
			"kubelet  single-numa-node (now)  7         23        7/7 ",
			"warning: not repeated: shop/p7: the kubelet has admitted it, and here it is rejected (", "p26",
			"warning: not repeated: 3 more; -o json has them\n",
		}},
		"attempts for one replica": {
			pods: strings.ReplaceAll(listed(nodePod(1, "a", 0, 5, "TopologyAffinityError"), nodePod(2, "b", 0, 5, "TopologyAffinityError"),
				nodePod(3, "c", 0, 5, "TopologyAffinityError")), `"namespace"`,
				`"ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "u-r", "controller": true}], "namespace"`),
			problems: "warning: 2 of the pods may be further attempts for a replica whose pod was rejected: " +
				"a row that admits the first one counts them, too\n",
		},
		"no times": {
			pods: strings.ReplaceAll(listed(nodePod(1, "web", 0, 2, "")), `, "startTime": "2026-01-02T03:04:01Z"`, ""), out: sameTable,
			problems: "warning: 1 pod: the order of the admissions is not known, and neither are rejected pods: give the pods with --pods FILE\n",
		},
	} {
		code, out, problems := ctl(t, row.pods, "compare", "--kubelet="+root, "--pods", "-")
		if code != 0 || !strings.HasPrefix(out, row.out) {
			t.Errorf("%s: exit code %d\n%s\nwant\n%s", name, code, out, row.out)
		}
		if row.more == nil && problems != missingStates+row.problems {
			t.Errorf("%s:\n%s\nwant\n%s", name, problems, row.problems)
		}
		for _, part := range row.more {
			if !strings.Contains(out+problems, part) {
				t.Errorf("%s: there is no %q in\n%s%s", name, part, out, problems)
			}
		}
	}
}

// TestCompareJSON: programs get the same numbers, and every outcome of the pods that differ.
func TestCompareJSON(t *testing.T) {
	t.Parallel()
	code, out, problems := ctl(t, comparedPods, "compare", "--kubelet="+kubeletnode.New(t), "--pods", "-", "-o", "json")
	var got struct {
		Items []struct {
			Decides, Policy                                string
			InForce                                        bool
			Admitted, Rejected, Placed, Aligned, NUMANodes int
			FreeCPUs, FreeCPUsOfOneNode, ScatteredCPUs     int
		}
		Pods        int
		Differences []struct {
			Namespace, Name, UID string
			FewestNUMANodes      int
			Outcomes             []struct {
				Decides, Policy, Verdict, Reason, NUMANodes string
				Aligned                                     bool
			}
		}
		NotRepeated []any
	}
	if err := json.Unmarshal([]byte(out), &got); code != 0 || err != nil || len(got.Items) != 8 {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, problems)
	}
	now, berth := got.Items[0], got.Items[4]
	if !now.InForce || berth.InForce || got.Pods != 3 || now.Admitted != 1 || now.Rejected != 2 ||
		berth.Admitted != 2 || berth.Aligned != 2 || berth.NUMANodes != 2 ||
		now.FreeCPUs != 5 || now.FreeCPUsOfOneNode != 4 || berth.FreeCPUs != 1 {
		t.Errorf("got %+v\n%+v", now, berth)
	}
	if len(got.Differences) != 2 || len(got.NotRepeated) != 0 {
		t.Fatalf("differences %+v, not repeated %+v", got.Differences, got.NotRepeated)
	}
	warm := got.Differences[0]
	first, last := warm.Outcomes[0], warm.Outcomes[4]
	if warm.Name != "warm" || warm.UID != "u-warm" || warm.FewestNUMANodes != 1 || len(warm.Outcomes) != 8 ||
		first.Verdict != "rejected" || first.Reason != "TopologyAffinityError" || last.Verdict != "admitted" || !last.Aligned ||
		last.NUMANodes != "1" || last.Decides != "berth" || last.Policy != "single-numa-node" {
		t.Errorf("got %+v", warm)
	}
}

// TestCompareRefused: the verb is for a kubelet's node alone.
func TestCompareRefused(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"compare": "add --kubelet", "compare --kubelet --endpoint /x": "expected one of them",
		"compare --kubelet --pods does-not-exist.json": "no such file",
	} {
		if code, out, problems := ctl(t, "", strings.Fields(args)...); code == 0 || out != "" || !strings.Contains(problems, want) {
			t.Errorf("%s: exit code %d, %s%s", args, code, out, problems)
		}
	}
}

// TestComparePage: docs/kubelet.md shows what is printed.
func TestComparePage(t *testing.T) {
	t.Parallel()
	const path, begin = "../../docs/kubelet.md", "```\n$ berthctl compare --kubelet --pods pods.json\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(page), begin)
	_, after, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatal(path + " shows no comparison")
	}
	_, out, _ := ctl(t, comparedPods, "compare", "--kubelet="+kubeletnode.New(t), "--pods", "-")
	compare(t, path, []byte(before+begin+out+"```\n"+after))
}
