package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/server/servertest"
)

// wholeBerthd is a berthd with all its parts, on a made-up machine.
type wholeBerthd struct {
	t      *testing.T
	config config.Config
}

func newWholeBerthd(t *testing.T) *wholeBerthd {
	t.Helper()
	dir, err := os.MkdirTemp("", "b") // the directory of the test may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := config.Default()
	c.RootDir, c.Listen, c.StateDir = dir, dir+"/b.sock", dir+"/state"
	c.DevicePluginDir, c.PodResourcesDir, c.PluginRegistryDir = new(dir+"/d"), new(dir+"/p"), new(dir+"/r")
	c.Machine, c.Cgroups.Tree = "2s2n8c2t", config.TreeMemory
	c.CPU.Policy, c.Reserved.CPUs = "static", cpuset.Of(0)
	return &wholeBerthd{t: t, config: c}
}

// run runs berthctl with a command line.
func (b *wholeBerthd) run(args string) (code int, out, errs string) {
	b.t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(b.t.Context(), command.Env{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, Now: time.Now, Getenv: func(string) string { return "" },
		Dial: func(ctx context.Context, endpoint string) (*berth.Client, error) {
			return berth.Dial(ctx, endpoint, berth.Options{})
		},
	}, append([]string{"--endpoint", b.config.Listen}, strings.Fields(args)...))
	return code, stdout.String(), stderr.String()
}

// TestLedgerOfRandomBytes damages keys and values of a ledger with bytes that are no UTF-8. The commands that the recovery page
// names show what was found.
func TestLedgerOfRandomBytes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, stored string }{
		{"the key of a pod", `u-b{"crc"`},
		{"the key of claims", "u-b/app/cpu"},
		{"a record of a pod", `"uid":"u-b"`},
		{"the resource of claims", `"resource":"cpu"`},
		{"a trace", `"pod":"u-b"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			b := newWholeBerthd(t)
			stop := servertest.Start(t, b.config)
			for _, name := range []string{"a", "b"} {
				manifest := filepath.Join(t.TempDir(), "pod.yaml")
				pod := strings.Replace(podYAML(name), "cpu: 2", "cpu: 2, memory: 1Gi", 1)
				if err := os.WriteFile(manifest, []byte(pod), 0o600); err != nil {
					t.Fatal(err)
				}
				if code, _, errs := b.run("admit -f " + manifest); code != 0 {
					t.Fatalf("admit: %d, %s", code, errs)
				}
			}
			stop()
			path := filepath.Join(b.config.StateDir, "ledger.db")
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(data, []byte(row.stored)) {
				t.Fatalf("the ledger has no %s", row.stored)
			}
			// Both ends are kept: a page of the file, or JSON, is to be read up to the damage.
			damaged := row.stored[:1] + strings.Repeat("\xff\xc0", len(row.stored))[:len(row.stored)-2] + row.stored[len(row.stored)-1:]
			if err := os.WriteFile(path, bytes.ReplaceAll(data, []byte(row.stored), []byte(damaged)), 0o600); err != nil {
				t.Fatal(err)
			}
			stop = servertest.Start(t, b.config)
			defer stop()
			for _, args := range []string{
				"ledger check", "ledger check -o json", "ledger report", "ledger report -o json", "ledger dump", "get pods", "history",
			} {
				code, out, errs := b.run(args)
				if code != 0 || !utf8.ValidString(out) {
					t.Errorf("berthctl %s: exit code %d\n%s%s", args, code, out, errs)
				}
				shown := map[string]string{"ledger check": "damaged", "ledger report": "u-a"}[strings.TrimSuffix(args, " -o json")]
				if !strings.Contains(out, shown) {
					t.Errorf("berthctl %s does not show %q:\n%s", args, shown, out)
				}
			}
		})
	}
}
