package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/servertest"
)

// TestContainerdSlicesMoveMemory: in a real containerd, a container with memory of one NUMA node moves to the other one with its
// memory, by a kubelet's resize and by a defragmentation, also with memory that is pinned at first. Meanwhile berthd and
// berth-nri are killed, one after the other and both.
func TestContainerdSlicesMoveMemory(t *testing.T) {
	t.Parallel()
	tree, err := servertest.OpenSlices()
	if err != nil {
		t.Skipf("no systemd to ask: %v", err)
	}
	if runtime.NumCPU() < 8 || !isOnNode(7, 1) || !isOnNode(3, 0) {
		t.Skipf("needs two NUMA nodes with the CPUs 0-3 and 4-7; here are %d CPUs", runtime.NumCPU())
	}
	n := newNode(t, tree)
	_ = n.berthd.End(os.Kill)
	n.topology = "single-numa-node"
	n.startBerthd()
	p := n.pod("trainer", "", map[string]string{"nri.berthd.github.io/max-move-disruption": "move-memory",
		workload.MovableAnnotation: "anywhere"})
	const used, pinned = 24, 6 // MiB: an emulated machine moves few pages in a second
	pid := p.run(1000, 128*mib, func(c *criv1.ContainerConfig) {
		c.Command = []string{"/probe", "hold", strconv.Itoa(used - pinned), ",", "pin", strconv.Itoa(pinned), ",", "wait"}
	})
	n.eventually("the container has its memory", func() bool { return strings.Contains(p.text(), "pins") })
	if got := mems(t, pid); got != "0" {
		t.Fatalf("the container may use memory of nodes %s", got)
	}
	before := pagesOf(t, pid)
	n.eventually("berthd allows a resize to the CPUs that only node 1 has", func() bool {
		err := p.resize(4000, 128*mib)
		if err != nil && !strings.Contains(err.Error(), "has not reported where its memory is") {
			t.Fatal(err)
		}
		return err == nil
	})

	// Nobody carries out the move now. Its memory is on node 0, and the node's memory is nobody else's.
	_ = n.plugin.End(os.Kill)
	_ = n.berthd.End(os.Kill)
	n.startBerthd()
	if !n.moves(p) {
		t.Error("the move has ended without berth-nri")
	}
	if now := pagesOf(t, pid); now[0] < used<<20/os.Getpagesize() {
		t.Errorf("pages by node: %v", now)
	}
	n.startPlugin()
	n.eventually("the container may use memory of node 1", func() bool { return mems(t, pid) != "0" })
	_ = n.berthd.End(os.Kill)
	_ = n.plugin.End(os.Kill)
	n.startBerthd()
	n.startPlugin()

	// Pinned memory stays, and moves after it is free, by another attempt of berth-nri.
	n.eventually("the rest of its memory is on node 1", func() bool {
		return mems(t, pid) == "1" && pagesOf(t, pid)[1] >= (used-pinned)<<20/os.Getpagesize()
	})
	n.eventually("berthd says what stays", func() bool { return strings.Contains(n.log("berthd").String(), "are not on NUMA nodes 1") })
	if now := pagesOf(t, pid); now[0] < pinned<<20/os.Getpagesize() || !n.moves(p) {
		t.Errorf("pages by node: %v; the pod moves: %v", now, n.moves(p))
	}
	if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	n.arrived(p, pid, "1", cpuset.Of(4, 5, 6, 7), before, used)

	// A pod that needs all of node 1 gets it: this one moves back.
	if err := p.resize(1000, 128*mib); err != nil {
		t.Fatal(err)
	}
	before = pagesOf(t, pid)
	n.eventually("a pod with 4 CPUs fits after a move", func() bool { return n.defragment(4) })
	n.arrived(p, pid, "0", cpuset.Of(1, 2, 3), before, used)
	p.remove()
}

// arrived waits until the pod's container is on one of some CPUs, and its memory is on a node only.
func (n *node) arrived(p *pod, pid int, node string, cpus cpuset.Set, before map[int]int, used int) {
	t := n.t
	t.Helper()
	n.eventually("the move to node "+node+" ends", func() bool { return !n.moves(p) })
	if got := mems(t, pid); got != node {
		t.Errorf("the move has ended, and the container may use memory of nodes %s", got)
	}
	after := pagesOf(t, pid)
	t.Logf("pages by node: %v before, %v after", before, after)
	const few = 4 << 20
	for id, count := range after {
		if bytes := count * os.Getpagesize(); strconv.Itoa(id) == node && bytes < used<<20 || strconv.Itoa(id) != node && bytes > few {
			t.Errorf("%d bytes are on node %d", bytes, id)
		}
	}
	n.eventually("the container is on its new CPUs only", func() bool {
		on, err := cpuset.Parse(allowed(pid))
		return err == nil && on.IsSubsetOf(cpus)
	})
}

// moves returns whether berthd moves a pod that was admitted container by container.
func (n *node) moves(p *pod) bool {
	n.t.Helper()
	got, err := n.berth.Allocation().Get(n.ctx(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: p.name +
		"-uid.main"}})
	if err != nil {
		n.t.Fatal(err)
	}
	return got.GetPod().GetMoving()
}

// defragment makes room for a pod with some CPUs on one NUMA node, and returns whether it fits then.
func (n *node) defragment(cpus int) (fits bool) {
	n.t.Helper()
	amounts := map[string]string{"cpu": strconv.Itoa(cpus), "memory": "64Mi"}
	spec := &typesv1.Pod{Metadata: &typesv1.PodMetadata{Name: "big", Uid: "big"}, Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
		Name: "main", Resources: &typesv1.ResourceRequirements{Requests: amounts, Limits: amounts},
	}}}}
	stream, err := n.berth.Admission().Defragment(n.ctx(), &admissionv1.DefragmentRequest{Pod: spec, MaxMoves: 1})
	if err != nil {
		n.t.Fatal(err)
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			n.t.Logf("defragment: %v", err)
			return false
		}
		n.t.Logf("defragment: %v", event)
		if r := event.GetResult(); r != nil {
			return r.GetFits() && r.GetMoved() == 1
		}
	}
}

// isOnNode returns whether a CPU is on a NUMA node.
func isOnNode(cpu, node int) bool {
	_, err := os.Stat(fmt.Sprintf("/sys/devices/system/node/node%d/cpu%d", node, cpu))
	return err == nil
}

// pagesOf counts the anonymous pages of a process on each NUMA node.
func pagesOf(t *testing.T, pid int) map[int]int {
	t.Helper()
	return nodetest.Pages(t, pid, nodetest.OfNoFile)
}
