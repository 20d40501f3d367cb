package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/server/servertest"
)

// TestResizeByFile: a resize by a file says what it changes, what it keeps because the file leaves it out, and that it changes nothing. The
// amounts that 'describe' has afterwards are those.
func TestResizeByFile(t *testing.T) {
	t.Parallel()
	b := newWholeBerthd(t)
	defer servertest.Start(t, b.config)()
	file := filepath.Join(t.TempDir(), "pod.yaml")
	run := func(args, resources string) string {
		t.Helper()
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: u-web}\nspec:\n  containers:\n  - {name: app, resources: " + resources +
			"}\n  - {name: log, resources: {requests: {cpu: 100m}}}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := b.run(strings.ReplaceAll(args, "FILE", file))
		if code != 0 {
			t.Fatalf("%s: exit code %d\n%s%s", args, code, out, errs)
		}
		return out
	}
	run("admit -f FILE", "{requests: {cpu: 1, memory: 4Gi}, limits: {cpu: 2, memory: 4Gi}}")
	for _, row := range []struct{ args, resources, want string }{
		{"resize -f FILE", "{}", "default/web: nothing changed\n\n" +
			"kept, because the file does not name it: app requests.cpu=1 requests.memory=4Gi limits.cpu=2 limits.memory=4Gi\n"},
		{"resize -f FILE", "{requests: {cpu: 1000m, memory: 4096Mi}, limits: {cpu: 2, memory: 4294967296}}", "default/web: nothing changed\n"},
		{"resize -f FILE --dry-run", "{requests: {cpu: 1500m}, limits: {cpu: 2}}",
			"default/web would be resized\n\nCONTAINER  AMOUNT        FROM  TO\napp        requests.cpu  1     1500m\n\n" +
				"kept, because the file does not name it: app requests.memory=4Gi limits.memory=4Gi\n"},
		{"plan resize -f FILE", "{limits: {cpu: 2}, requests: {cpu: 1}}",
			"default/web: nothing would change\n\nkept, because the file does not name it: app requests.memory=4Gi limits.memory=4Gi\n"},
		{"resize -f FILE", "{requests: {cpu: 1500m, memory: 5Gi}, limits: {cpu: 2, memory: 5Gi}}",
			"default/web resized\n\nCONTAINER  AMOUNT           FROM  TO\napp        requests.cpu     1     1500m\n" +
				"app        requests.memory  4Gi   5Gi\napp        limits.memory    4Gi   5Gi\n"},
	} {
		if out := run(row.args, row.resources); out != row.want {
			t.Errorf("%s, %s:\n%s\nwant\n%s", row.args, row.resources, out, row.want)
		}
	}
	if out := run("describe container web app", "{}"); !strings.Contains(out, "cpu 1500m") || strings.Count(out, "memory 5Gi") != 2 {
		t.Errorf("described:\n%s", out)
	}
	if out := run("describe container web app -o json", "{}"); !strings.Contains(out, `"memory": "5368709120"`) {
		t.Errorf("described for programs:\n%s", out)
	}
}
