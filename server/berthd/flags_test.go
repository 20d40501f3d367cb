package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/berthd/berth/api/trust/trusttest"
)

// TestFlagsThatDecide: every flag says what it names, and what another user could change is refused.
func TestFlagsThatDecide(t *testing.T) {
	t.Parallel()
	trusttest.Classified(t, command(), "beside", "kubelet", "node-name", "cgroup-root", "cgroup-driver", "cgroup-tree",
		"cpu-manager-policy",
		"memory-manager-policy",
		"topology-manager-policy", "topology-manager-scope", "topology-planning", "log-level", "log-format", "cpu-manager-policy-options",
		"topology-manager-policy-options",
		"system-reserved", "kube-reserved", "agent-cgroups", "runtime-cgroups", "devices-unknown", "devices-elsewhere",
		"enforce-node-allocatable", "system-reserved-cgroup",
		"kube-reserved-cgroup", "kernel-tunables", "eviction-hard", "reserved-cpus", "reserved-memory", "failpoint")
	trusttest.Refused(t, command(), func(t *testing.T, args []string) string {
		var out, errs bytes.Buffer
		if code := execute(t.Context(), &out, &errs, args); code == 0 {
			t.Errorf("%q is done", args)
		}
		return strings.Join(strings.Fields(errs.String()), " ")
	})
}
