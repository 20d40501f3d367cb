package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// TestPageTrials: on berthd's own page the user's role decides which dry runs there are. A defragmentation is a stream, whose role
// depends on its request, too.
func TestPageTrials(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs root, which can act as other users: the effective user is %d", os.Geteuid())
	}
	const reader, admin = 64210, 64211
	n, write := configured(t, "1s2n4c1t")
	if err := os.Chmod(n.root, 0o755); err != nil {
		t.Fatal(err)
	}
	write(fmt.Sprintf("reserved: {cpus: \"0\"}\nhttp: unix://%s/http.sock\nhttpMode: \"0666\"\n"+
		"access: [{uid: %d, roles: [read]}, {uid: %d, roles: [read, admin]}]\n", n.root, reader, admin))
	d := n.start()
	d.admitted(withMemory("there", 1, "64Mi"))
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: new}\nspec: {containers: [{name: main, resources: {limits: {cpu: 2, memory: 1Gi}}}]}"
	for _, tt := range []struct {
		uid        int
		path, body string
		code       int
		want       string
	}{
		{reader, "pod", pod, http.StatusOK, "VERDICT_ADMITTED"},
		{reader, "resize", `{"podUid": "there", "containers": [{"containerName": "main", "resources":
			{"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}}]}`, http.StatusOK, "VERDICT_ADMITTED"},
		{reader, "policy", `{"topologyPolicy": "none"}`, http.StatusForbidden, "the role admin is missing"},
		{reader, "defrag?moves=4", pod, http.StatusForbidden, "the role admin is missing"},
		{admin, "policy", `{"topologyPolicy": "none"}`, http.StatusOK, "sharedBefore"},
		{admin, "defrag?moves=4", pod, http.StatusOK, `"fits":true`},
	} {
		h := &holder{d: d, uid: tt.uid}
		if err := h.logsIn(); err != nil {
			t.Fatal(err)
		}
		resp, err := h.get(http.MethodPost, "/api/v1/trials/"+tt.path, tt.body)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		// protobuf's JSON has a space after a colon, or none.
		if err != nil || resp.StatusCode != tt.code || !strings.Contains(strings.ReplaceAll(string(got), `": `, `":`), tt.want) {
			t.Errorf("uid %d tries %s: %d %s, %v", tt.uid, tt.path, resp.StatusCode, got, err)
		}
	}
}
