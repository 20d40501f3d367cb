package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/berthd/berth/api/trust/trusttest"
)

// TestFlagsThatDecide: every flag says what it names, and what another user could change is refused.
func TestFlagsThatDecide(t *testing.T) {
	t.Parallel()
	trusttest.Classified(t, command(io.Discard, io.Discard), "name", "index", "node-name", "annotation", "on-failure", "pass-namespaces",
		"release-at-end", "daemon-set", "log-level", "unsolicited-updates",
		"kubelet", "metrics-address", // of the network
		"metrics-sockets") // several in one text: TestMetricsFlags
	trusttest.Refused(t, command(io.Discard, io.Discard), func(t *testing.T, args []string) string {
		var out bytes.Buffer
		cmd := command(&out, &out)
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		if err == nil {
			t.Fatalf("%q is done: %s", args, &out)
		}
		return err.Error()
	})
}
