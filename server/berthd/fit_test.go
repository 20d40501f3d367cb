package main

import (
	"testing"

	"google.golang.org/protobuf/proto"
)

// TestNodeIsFull: without a scheduler berthd itself keeps the requests of all
// pods within what is allocatable.
func TestNodeIsFull(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--cgroup-tree", "memory")
	d := n.start("--machine", "4c,mem=1Gi", "--node-fit=true", "--max-pods", "3",
		"--system-reserved", "memory=100Mi", "--eviction-hard", "memory.available<100Mi")
	tests := []struct {
		uid, cpu, memory string
		reason           string
	}{
		{"first", "1500m", "100Mi", ""},
		{"cpu", "1501m", "100Mi", "OutOfcpu"},
		{"memory", "1500m", "725Mi", "OutOfmemory"},
		{"rest", "1500m", "724Mi", ""},
		{"nothing", "0", "0", ""},
		{"fourth", "0", "0", "OutOfpods"},
	}
	for _, tt := range tests {
		resp := d.admit(pod(tt.uid, map[string]string{"cpu": tt.cpu, "memory": tt.memory}, nil))
		if resp.GetReason() != tt.reason {
			t.Errorf("pod %s: %s %q: %s, want %q", tt.uid, resp.GetVerdict(), resp.GetReason(), resp.GetMessage(), tt.reason)
		}
	}
	// No pod is evicted for a more important one: that is the agent's task.
	critical := pod("critical", map[string]string{"cpu": "100m"}, nil)
	critical.Spec.PriorityClassName, critical.Spec.Priority = "system-node-critical", proto.Int32(2000001000)
	if resp := d.admit(critical); resp.GetReason() != "OutOfpods" || len(d.pods()) != 3 {
		t.Errorf("a critical pod: %q, %d pods are left", resp.GetReason(), len(d.pods()))
	}
}
