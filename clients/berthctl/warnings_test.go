package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWarningsComeWithErrors: a field that no pod has is named also if something else is wrong with the pod, or with one after it, by each
// command that reads pods; with --strict both are errors. The same holds for a kubelet's file.
func TestWarningsComeWithErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const good = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: u-web}\nspec: {nodename: x, containers: [{name: app}]}\n"
	texts := map[string]struct{ file, warning, err string }{
		"an amount": {write("amount.yaml", strings.Replace(good, "name: app", "name: app, resources: {limits: {cpu: two}}", 1)),
			`unknown field "spec.nodename"`, "expected a Kubernetes quantity"},
		"a type": {write("type.yaml", strings.Replace(good, "name: app", "name: 1", 1)),
			`unknown field "spec.nodename"`, "expected a text"},
		"a later pod": {write("later.yaml", good+"---\nkind: Deployment\n"), `unknown field "spec.nodename"`, "kind Deployment"},
	}
	kubelet := write("kubelet.yaml", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nreservedCPUs: 0\nmaxPods: x\n")
	socket := (&fake{}).start(t)
	for _, command := range []string{
		"admit -f FILE", "allocate -f FILE app", "hints -f FILE", "resize -f FILE", "plan resize -f FILE", "plan defrag --for FILE",
		"defrag --for FILE", "fit -f FILE", "simulate --machine 8c -f FILE", "simulate --machine 8c --more FILE",
		"ledger import --kind cpu -f testdata/import/cpu_manager_state --pods FILE",
	} {
		for name, row := range texts {
			r := invoke(t.Context(), socket, "", strings.Fields(strings.ReplaceAll(command, "FILE", row.file))...)
			at, after := strings.Index(r.err, "warning: pod default/web: "+row.warning), strings.Index(r.err, row.err)
			if r.code == 0 || at < 0 || after < at {
				t.Errorf("%s with %s: exit code %d\n%s", command, name, r.code, r.err)
			}
		}
	}
	row := texts["an amount"]
	r := invoke(t.Context(), socket, "", "admit", "--strict", "-f", row.file)
	if r.code == 0 || !strings.Contains(r.err, row.warning+" (--strict)") || !strings.Contains(r.err, row.err) {
		t.Errorf("--strict: exit code %d\n%s", r.code, r.err)
	}
	r = invoke(t.Context(), socket, "", "simulate", "--machine", "8c", "--kubelet-config", kubelet, "-f", row.file)
	if r.code == 0 || !strings.Contains(r.err, "reservedCPUs: unknown field") || !strings.Contains(r.err, "maxPods") {
		t.Errorf("--kubelet-config: exit code %d\n%s", r.code, r.err)
	}
}
