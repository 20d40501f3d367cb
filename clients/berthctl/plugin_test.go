package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/plugintest"
	"github.com/berthd/berth/hack/testing/script"
)

func TestPluginTest(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "bp")
	if err != nil {
		t.Fatal(err)
	}
	p := script.New(script.Config{Dir: dir, Resource: "example.com/gpu", Devices: []script.Device{{ID: "a"}, {ID: "b"}}})
	if err := p.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(); p.Wait(); _ = os.RemoveAll(dir) })
	junit := filepath.Join(dir, "report.xml")

	got := invoke(t.Context(), "", "", "plugin", "test", p.Socket(), "--answers-only", "--watch", "10ms", "--junit", junit)
	if got.code != command.ExitDone || !strings.Contains(got.out, "allocate one ") ||
		!strings.Contains(got.out, " 0 failed, 4 skipped\n") {
		t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
	}
	if text, err := os.ReadFile(junit); err != nil || !strings.Contains(string(text), `<testcase name="allocate one"`) {
		t.Errorf("%s, %v", text, err)
	}
	p.Behave(script.Allocate, script.Empty)
	got = invoke(t.Context(), "", "", "plugin", "test", p.Socket(), "--answers-only", "--watch", "10ms", "-o", "json", "--flood", "0")
	var report plugintest.Report
	if err := json.Unmarshal([]byte(got.out), &report); err != nil || report.Count(plugintest.Failed) == 0 ||
		got.code != command.ExitError {
		t.Errorf("exit %d: %v\n%s", got.code, err, got.out)
	}
	if !strings.Contains(got.err, "checks failed") {
		t.Errorf("the error is %q", got.err)
	}
	got = invoke(t.Context(), "", "", "plugin", "test", p.Socket(), "--answers-only", "--watch", "10ms", "-o", "junit", "--flood", "0")
	if !strings.Contains(got.err, "allocate one          failed ") || !strings.HasPrefix(got.out, "<?xml") ||
		!strings.Contains(got.out, "<failure message=") || got.code != command.ExitError {
		t.Errorf("exit %d\n%s", got.code, got.out)
	}
	p.Behave(script.Allocate, script.Hang)
	interrupted, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	go func() {
		_ = p.AwaitHanging(interrupted, 1)
		interrupt()
	}()
	got = invoke(interrupted, "", "", "plugin", "test", p.Socket(), "--answers-only")
	if got.code != command.ExitInterrupted || !strings.Contains(got.out, "\nallocate one          skipped  interrupted\n") ||
		strings.Contains(got.out, "failed  ") || got.err != "berthctl: interrupted\n" {
		t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
	}
	for args, want := range map[string]string{
		"plugin test a.sock --answers-only --soak 1m": "expected neither --answers-only nor --no-allocate",
		"plugin test a.sock --watch -1s":              "expected a time that is not negative",
		"plugin test a.sock --berthd /no/such/berthd": "/no/such/berthd",
		"plugin test --answers-only":                  "expected the socket of a plugin",
		"plugin test a.sock b.sock":                   "expected the socket of a plugin, or -- and the command",
		"plugin test a.sock -- ./plugin":              "expected the socket of a plugin, or -- and the command",
		"plugin test --":                              "expected the socket of a plugin, or -- and the command",
		"plugin test a.sock -o tea":                   "expected one of table",
		"get pods -o junit":                           "expected one of table",
	} {
		if got := invoke(t.Context(), "", "", strings.Fields(args)...); got.code == command.ExitDone || !strings.Contains(got.err, want) {
			t.Errorf("%s: exit %d, %q", args, got.code, got.err)
		}
	}
}
