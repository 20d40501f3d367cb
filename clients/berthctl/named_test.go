package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/api/trust/trusttest"
	"github.com/berthd/berth/clients/internal/command"
)

// TestFlagsThatDecide: every flag says what it names, and what another user could change is neither run nor believed.
func TestFlagsThatDecide(t *testing.T) {
	t.Parallel()
	c := &command.Ctl{Env: command.Env{Now: time.Now}}
	trusttest.Classified(t, root(c),
		"active", "admission-id", "at", "call", "caller", "changes", "color", "cpu", "cpu-manager-policy-options",
		"cpu-manager-policy", "detail", "device", "eviction-hard", "filter", "format", "holds", "id", "kind", "kube-reserved",
		"listen", "max-disruption", "memory", "memory-manager-policy", "name", "namespace", "node", "output", "owner", "pod",
		"rate", "reason", "reserved-cpus", "reserved-memory", "resource", "selector", "set", "since", "sort", "sort-by",
		"system-reserved", "then", "topology-manager-policy-options", "topology-manager-policy", "topology-manager-scope",
		"topology-planning", "types", "uid", "until", "verdict")
	trusttest.Refused(t, root(c), func(t *testing.T, args []string) string {
		switch {
		case args[0] == "--endpoint":
			args = append([]string{"get", "pods"}, args...)
		case args[0] == "podresources":
			args = slices.Insert(args, 1, "list")
		}
		got := invoke(t.Context(), "", "", args...)
		if got.code == command.ExitDone {
			t.Errorf("%q is done", args)
		}
		return strings.Join(strings.Fields(got.err), " ")
	})
}
