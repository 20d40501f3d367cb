package main

import (
	"strings"
	"testing"

	"github.com/berthd/berth/hack/testing/script"
)

func TestCommands(t *testing.T) {
	t.Parallel()
	p := script.New(script.Config{Resource: "example.com/gpu"})
	for line, ok := range map[string]bool{
		"": true, "healthy a": true, "unhealthy a": true, "devices a@0 b": true, "devices": true, "devices @": false,
		"on allocate=hang": true, "on allocate": false, "jump": false,
	} {
		if err := command(p, line); (err == nil) != ok {
			t.Errorf("%q: %v", line, err)
		}
	}
	if obey(p, strings.NewReader("unhealthy a\nnonsense\n")) {
		t.Error("stopped without being told")
	}
	if !obey(p, strings.NewReader("healthy a\nstop\nnonsense\n")) {
		t.Error("told to stop, and went on")
	}
}
