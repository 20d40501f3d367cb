package main

import (
	"io"
	"testing"

	"github.com/berthd/berth/api/trust/trusttest"
)

// TestFlagsThatDecide: every flag says what it names, and what another user could change is refused.
func TestFlagsThatDecide(t *testing.T) {
	t.Parallel()
	trusttest.Classified(t, command(io.Discard, io.Discard), "log-level", "namespace", "container", "output")
	trusttest.Refused(t, command(io.Discard, io.Discard), func(t *testing.T, args []string) string {
		if args[0] == "logs" {
			args = append(args, "pod")
		}
		out, err := call(t, args...)
		if err == nil {
			t.Fatalf("%q is done: %s", args, out)
		}
		return err.Error()
	})
}
