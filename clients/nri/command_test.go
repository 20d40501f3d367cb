package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/stub"
)

func TestRefusals(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"--log-level":     {"--log-level", "loud"},
		"--on-failure":    {"--on-failure", "hope"},
		"endpoint":        {"--endpoint", "tcp:1.2.3.4"},
		"unknown command": {"dance"},
		"index":           {"--endpoint", "/nowhere", "--index", "first"},
	} {
		var out bytes.Buffer
		cmd := command(&out, &out)
		cmd.SetArgs(args)
		// One that is not refused serves until the context ends, and then has no error.
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := cmd.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %s; want %q", args, err, &out, want)
		}
	}
}

// TestNotConnected has no runtime yet.
func TestNotConnected(t *testing.T) {
	t.Parallel()
	c := &connection{}
	if _, err := c.UpdateContainers(nil); err == nil {
		t.Error("an update without a connection succeeded")
	}
	if got := c.patience(); got != stub.DefaultRequestTimeout {
		t.Errorf("patience is %v", got)
	}
}

func TestCPUsOf(t *testing.T) {
	t.Parallel()
	if cpus, err := cpusOf(os.Getpid()); err != nil || cpus.IsEmpty() {
		t.Errorf("CPUs %s, %v", cpus, err)
	}
	if cpus, err := cpusOf(1 << 30); err == nil {
		t.Errorf("a process that is not there has CPUs %s", cpus)
	}
}
