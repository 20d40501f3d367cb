package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/berthd/berth/api/trust"
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

// TestTokenVolume: the volume with a token is a tmpfs, whose root the kubelet leaves with the mode 01777. Without the sticky bit, others
// could replace the token.
func TestTokenVolume(t *testing.T) {
	t.Parallel()
	for mode, refused := range map[os.FileMode]bool{0o777 | os.ModeSticky: false, 0o777: true} {
		dir := t.TempDir()
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		cmd := command(io.Discard, io.Discard)
		if err := cmd.ParseFlags([]string{"--service-account", dir}); err != nil {
			t.Fatal(err)
		}
		// The other flags have their defaults, which may be refused on this machine.
		if err := trust.CheckFlags(cmd.Flags()); refused != (err != nil && strings.Contains(err.Error(), "--service-account")) {
			t.Errorf("a directory of mode %v: %v", mode, err)
		}
	}
}
