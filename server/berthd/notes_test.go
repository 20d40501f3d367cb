package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	apiconfig "github.com/berthd/berth/api/config"
	"github.com/berthd/berth/server/internal/config"
)

// TestIdleFieldsAreReported: fields of a kubelet's file that have no effect in berth are in the
// report of the start, in the log, and in what config validate prints.
func TestIdleFieldsAreReported(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--machine", "4c")
	n.kernel = false
	file := filepath.Join(n.root, "kubelet.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionSoft: {memory.available: 1Gi}\nfeatureGates: {DynamicResourceAllocation: true}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	wanted := []string{"evictionSoft has no effect", "featureGates.DynamicResourceAllocation: true has no effect"}
	d := n.start("--kubelet-config", file)
	report, err := d.inspect.Check(d.ctx(), &inspectv1.CheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	elsewhere := func(c *apiconfig.Config) error { c.RootDir, c.Machine = n.root, "4c"; return nil }
	if err := validate(t.Context(), &out, config.Sources{KubeletFile: file, Flags: elsewhere}); err != nil {
		t.Fatal(err)
	}
	for _, want := range wanted {
		if !slices.ContainsFunc(report.GetStartReport(), func(line string) bool { return strings.Contains(line, want) }) {
			t.Errorf("the report of the start does not say %q: %q", want, report.GetStartReport())
		}
		if got := strings.Count(d.log.String(), want); got != 1 {
			t.Errorf("the log says %q %d times", want, got)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("config validate does not say %q:\n%s", want, out.String())
		}
	}
}

// TestNotesComeWithErrors: what a configuration's notes name is printed also if it cannot be used.
func TestNotesComeWithErrors(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nreservedCPUs: 0-1\nreservedSystemCPUs: x\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	sources := config.Sources{KubeletFile: file, Flags: func(c *apiconfig.Config) error { c.Machine = "4c"; return nil }}
	for name, do := range map[string]func(out *bytes.Buffer) error{
		"config validate": func(out *bytes.Buffer) error { return validate(t.Context(), out, sources) },
		"config validate --report": func(out *bytes.Buffer) error {
			return errors.Join(validate(t.Context(), out, sources, filepath.Join(t.TempDir(), "report")), errors.New("(in the report)"))
		},
		"config dump": func(out *bytes.Buffer) error { return dump(io.Discard, out, sources) },
		"berthd":      func(out *bytes.Buffer) error { return run(t.Context(), out, sources, nil, nil) },
	} {
		var out bytes.Buffer
		if err := do(&out); err == nil || !strings.Contains(out.String(), "reservedCPUs: unknown field") {
			t.Errorf("%s: %v, printed %q", name, err, out.String())
		}
	}
}
