package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/server/servertest"
)

// fleet is a cluster whose nodes are berthds of this process.
type fleet struct {
	t   *testing.T
	dir string
	// pods are the lists of the namespaces.
	pods map[string][]string
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	dir, err := os.MkdirTemp("", "f") // the paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := &fleet{t: t, dir: dir, pods: map[string][]string{}}
	f.list("berth-system")
	f.list("berth-observe")
	return f
}

func (f *fleet) write(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) list(namespace string) {
	f.write("pods-"+namespace+".json", `{"items": [`+strings.Join(f.pods[namespace], ",")+`]}`)
}

// pod adds a pod of a DaemonSet to the cluster.
func (f *fleet) pod(namespace, label, node, name, phase, more string) {
	f.t.Helper()
	f.pods[namespace] = append(f.pods[namespace], fmt.Sprintf(`{"metadata": {"name": %q, "namespace": %q, %s
		"labels": {"app.kubernetes.io/name": %q}}, "spec": {"nodeName": %q}, "status": {"phase": %q}}`, name, namespace, more,
		label, node, phase))
	f.list(namespace)
}

// node adds a node with a berthd.
func (f *fleet) node(name, machine string) {
	f.t.Helper()
	c := config.Default()
	root := filepath.Join(f.dir, name)
	if err := c.ApplyBerth("test", []byte(`apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
rootDir: `+root+`
machine: `+machine+`
log: {level: error}
cpu: {policy: static}
topology: {policy: single-numa-node}
reserved: {cpus: "0", evictionHard: {}}
cgroups: {tree: memory}
node: {enforceNodeAllocatable: [none]}
privileges: {dropCapabilities: false, landlock: false, seccomp: false}
`)); err != nil {
		f.t.Fatal(err)
	}
	c.Listen, c.StateDir = filepath.Join(f.dir, "berth-"+name+".sock"), filepath.Join(root, "s")
	c.PodResourcesDir = new(filepath.Join(root, "p"))
	if err := os.MkdirAll(root, 0o700); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(servertest.Start(f.t, c))
	f.pod("berth-system", deciding, name, "berth-"+name, "Running", "")
}

// admit lets a node's berthd admit a pod.
func (f *fleet) admit(node, pod, cpus string) {
	f.t.Helper()
	file := filepath.Join(f.dir, "pod.yaml")
	f.write("pod.yaml", podYAML(pod, cpus))
	client, err := berth.Dial(f.t.Context(), filepath.Join(f.dir, "berth-"+node+".sock"), berth.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	defer client.Close()
	pods, err := (&command.Manifest{Files: []string{file}}).Load(f.t.Context(), &command.Ctl{Env: command.Env{Err: f.t.Output()}})
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := client.AdmitPod(f.t.Context(), pods[0]); err != nil {
		f.t.Fatal(err)
	}
}

func podYAML(name, cpus string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: shop, uid: u-%[1]s}\n"+
		"spec: {containers: [{name: app, resources: {limits: {cpu: %[2]q, memory: 1Gi}}}]}\n", name, cpus)
}

// run runs kubectl-berth with a command line.
func (f *fleet) run(args string) (code int, out, problems string) {
	f.t.Helper()
	var stdout, stderr bytes.Buffer
	kubectl, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	code = run(f.t.Context(), command.Env{In: strings.NewReader(podYAML("more", "4")), Out: &stdout, Err: &stderr, Now: time.Now,
		Getenv: func(string) string { return "" }}, kubectl, append(strings.Fields(args), "--kubeconfig="+f.dir))
	return code, stdout.String(), stderr.String()
}

// TestFleet: tables of all nodes, the node of a pod, what does not answer, and what is refused.
func TestFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.node("n1", "1s1n8c1t,mem=8Gi")
	f.node("n2", "2s2n8c1t,mem=8Gi")
	f.admit("n1", "web", "5")
	f.admit("n2", "db", "7")
	f.write("pod-web.json", `{"metadata": {"name": "web", "namespace": "shop"}, "spec": {"nodeName": "n1"}}`)
	f.write("pod-shopdb.json", `{"metadata": {"name": "db", "namespace": "shop"}, "spec": {"nodeName": "n2"}}`)
	f.write("pod-lost.json", `{"metadata": {"name": "lost", "namespace": "shop"}, "spec": {}}`)
	f.write("berth-n1.out", "well")
	for _, row := range []struct {
		args string
		code int
		want []string // parts of both outputs
		not  string
	}{
		{args: "get pods --all-nodes", want: []string{"NODE  NAMESPACE  NAME", "\nn1    shop       web", "\nn2    shop       db "}},
		{args: "get pods --all-nodes -o name", want: []string{"pod/shop/web\npod/shop/db\n"}},
		{args: "get numa --all-nodes", want: []string{"HOST  NODE"}},
		{args: "get pods --on n2", want: []string{"db"}, not: "web"},
		{args: "get pods", code: 2, want: []string{"several nodes have berth: name one of n1,n2"}},
		{args: "get pods --all-nodes --on n2", code: 2, want: []string{"--all-nodes contradicts --on"}},
		{args: "get pods --all-nodes -w", code: 2, want: []string{"--watch follows one node"}},
		{args: "get pods --on n7", code: 1, want: []string{"node n7 has no pod of berth", "n1,n2"}},
		{args: "explain web", want: []string{"shop/web admitted"}},
		{args: "explain db -n shop", want: []string{"shop/db admitted"}},
		{args: "explain shop/db -n other", code: 2, want: []string{"--namespace other contradicts shop/db"}},
		{args: "explain lost", code: 1, want: []string{"pod shop/lost is on no node", "kubectl describe pod"}},
		{args: "explain none", code: 1, want: []string{`Error from server (NotFound): pods "none" not found`}},
		{args: "map n2", want: []string{"socket 1", "shop/db"}, not: "shop/web"},
		{args: "map", code: 2, want: []string{"several nodes"}},
		{args: "top n1 --once", want: []string{"CONTAINER"}},
		{args: "fit -f -", want: []string{"shop/more  n1    later", "shop/more  n2    now", "shop/more fits now on 1 of 2 nodes\n"}},
		{args: "fit", code: 2, want: []string{"expected -f FILE"}},
		{args: "check n1", code: 3, want: []string{"well of [berthctl ledger check --output=table]"}},
		{args: "bundle n1 -o " + filepath.Join(f.dir, "out.tar.gz"), want: []string{"wrote ", "1 pod"}},
		{args: "frob", code: 2, want: []string{`unknown command "frob"`}},
		{args: "--help", want: []string{"kubectl berth get pods --all-nodes"}},
	} {
		code, out, problems := f.run(row.args)
		if code != row.code {
			t.Errorf("%s: exit code %d, want %d", row.args, code, row.code)
		}
		for _, want := range row.want {
			if !strings.Contains(out+problems, want) {
				t.Errorf("%s: there is no %q in\n%s%s", row.args, want, out, problems)
			}
		}
		if row.not != "" && strings.Contains(out, row.not) {
			t.Errorf("%s: there is %q in\n%s", row.args, row.not, out)
		}
	}
}

// TestNodesAway: a list has the nodes that answer, and says for each of the others why it does not.
func TestNodesAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.node("n1", "1s1n8c1t,mem=8Gi")
	f.admit("n1", "web", "2")
	f.pod("berth-system", deciding, "n2", "old", "Running", `"deletionTimestamp": "2026-01-02T03:04:05Z",`)
	f.pod("berth-system", deciding, "n3", "starting", "Pending", "")
	f.pod("berth-system", deciding, "n4", "forbidden", "Running", "")
	f.write("forbidden.error", "Defaulted container\nError from server (Forbidden): pods \"forbidden\" is forbidden\n")
	f.pod("berth-system", deciding, "n5", "hangs", "Running", "")
	f.write("hangs.hangs", "")
	f.pod("berth-system", deciding, "n6", "older", "Running", "")
	f.write("older.error", "berthctl: unknown command \"proxy\" for \"berthctl\"\ncommand terminated with exit code 2\n")
	f.pod("berth-system", deciding, "n7", "gone", "Running", "")
	f.pod("berth-system", deciding, "", "waiting", "Pending", "")
	code, out, problems := f.run("get pods --all-nodes --timeout 2s")
	if code != 1 || !strings.Contains(out, "n1    shop       web") || strings.Count(out, "\n") != 2 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	for _, want := range []string{
		"node n2 did not answer: the pod berth-system/old is being deleted\n",
		"node n3 did not answer: the pod berth-system/starting is Pending\n",
		"node n4 did not answer: kubectl exec: Error from server (Forbidden): pods \"forbidden\" is forbidden\n",
		"node n5 did not answer: it takes longer than 2s (--timeout)\n",
		"node n6 did not answer: kubectl exec: the berth there is older, and has no 'berthctl proxy': update it\n",
		"node n7 did not answer: kubectl exec: berthctl: connect to berthd: ",
		"6 of 7 nodes did not answer\n",
	} {
		if !strings.Contains(problems, want) {
			t.Errorf("there is no %q in\n%s", want, problems)
		}
	}
	_, out, _ = f.run("get pods --all-nodes --timeout 2s -o json")
	var list struct {
		APIVersion, Kind string
		Items            []struct {
			Node, Error string
			Answer      struct {
				Kind  string
				Items []struct{ Name string }
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || list.Kind != "NodeList" || len(list.Items) != 7 ||
		list.Items[0].Answer.Kind != "PodAllocationList" || list.Items[0].Answer.Items[0].Name != "web" || list.Items[1].Error == "" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestPlaces: a node's pod during an update is the one that can answer, a namespace that may not be listed hides no other, and berth that
// observes is checked as such.
func TestPlaces(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	if err := os.Remove(filepath.Join(f.dir, "pods-berth-system.json")); err != nil {
		t.Fatal(err)
	}
	if code, _, problems := f.run("map"); code != 1 || !strings.Contains(problems, `User "eve" cannot list`) {
		t.Errorf("%d: %s", code, problems)
	}
	f.pod("berth-observe", observing, "n1", "first", "Running", `"deletionTimestamp": "2026-01-02T03:04:05Z",`)
	f.pod("berth-observe", observing, "n1", "second", "Running", "")
	f.write("second.out", "well")
	if code, out, problems := f.run("check"); code != 3 || out != "well of [berthctl check --kubelet=/host --output=table]" {
		t.Errorf("%d: %s%s", code, out, problems)
	}
	if code, _, problems := newFleet(t).run("map"); code != 1 ||
		!strings.Contains(problems, "no node has a pod of berth in the namespaces berth-system, berth-observe: --berth-namespace") {
		t.Errorf("%d: %s", code, problems)
	}
}

// TestNoKubectl: what is missing is said.
func TestNoKubectl(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	code := run(t.Context(), command.Env{In: strings.NewReader(""), Out: &stderr, Err: &stderr, Now: time.Now,
		Getenv: func(string) string { return "" }}, "no-such-kubectl", []string{"map"})
	if code != 1 || !strings.Contains(stderr.String(), "no-such-kubectl is not installed, or not in PATH") {
		t.Errorf("%d: %s", code, stderr.String())
	}
}
