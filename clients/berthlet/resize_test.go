package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berthlet/agent"
)

// TestResize resizes a running pod: berthd changes its cgroup, and berthlet keeps the new amounts when berthd was
// restarted, and for a container that it starts again.
func TestResize(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.manifest("a", head+`
  restartPolicy: Always
  containers:
  - {name: main, image: root, command: [/probe, show, ",", wait], resources: {requests: {cpu: 100m, memory: 16Mi}, limits: {memory: 48Mi}}}
`)
	n.running("a")
	pid := n.pid("a", "main")
	to := map[string]string{"cpu": "200m", "memory": "96Mi"}
	got, err := n.client.Admission().Resize(t.Context(), &admissionv1.ResizeRequest{
		PodUid: "a-uid", Owner: "berthlet", Containers: []*admissionv1.ContainerResources{{
			ContainerName: "main", Resources: &typesv1.ResourceRequirements{Requests: to, Limits: map[string]string{"memory": "96Mi"}},
		}},
	})
	if err != nil || got.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%v, %v", got, err)
	}
	limit := func(attempt int) bool {
		for _, line := range n.output("a", "main", attempt) {
			if value, ok := strings.CutPrefix(line, "cgroup.memory.max="); ok {
				return value == "100663296"
			}
			if value, ok := strings.CutPrefix(line, "cgroup.memory.limit_in_bytes="); ok {
				return value == "100663296"
			}
		}
		return false
	}
	_ = n.berthd.End(os.Kill)
	n.startBerthd()
	if got := n.pid("a", "main"); got != pid {
		t.Errorf("it is process %d, and was %d", got, pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.until("a", "was restarted", func(p agent.PodStatus) bool { return allRun(p) && p.Restarts() == 1 })
	n.eventually("the new container has the new limit", func() bool { return limit(1) })
	n.withdraw("a")
	n.noPods()
}
