package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/host/sysfs"
)

// needNodes skips tests that need memory on several NUMA nodes, and gives the
// machine.
func needNodes(t *testing.T, n int) *machine.Topology {
	t.Helper()
	s, err := sysfs.Host()
	if err != nil {
		t.Skipf("the machine cannot be told: %v", err)
	}
	m, err := machine.New(s)
	if err != nil {
		t.Fatal(err)
	}
	if have := m.CPUNodeMask(); have.Len() < n {
		t.Skipf("needs %d NUMA nodes with CPUs, this machine has %s", n, have)
	}
	return m
}

var pagesOnNode = regexp.MustCompile(` N(\d+)=(\d+)`)

// pages counts by node the pages that a process has and that belong to no file
// (numa(7)).
func (p *process) pages() map[int]int {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/numa_maps", p.pid()))
	if err != nil {
		p.t.Fatal(err)
	}
	counts := map[int]int{}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " file=") {
			continue
		}
		for _, m := range pagesOnNode.FindAllStringSubmatch(line, -1) {
			node, _ := strconv.Atoi(m[1])
			n, _ := strconv.Atoi(m[2])
			counts[node] += n
		}
	}
	return counts
}

// TestMemoryIsPinned admits a pod for each node of the machine that wants as many
// CPUs as a node has, one node after the other, and counts where the memory lies
// that its process uses.
func TestMemoryIsPinned(t *testing.T) {
	t.Parallel()
	m := needNodes(t, 2)
	n := newNode(t, "--memory-manager-policy", "Static", "--system-reserved", "memory=28Mi", "--reserved-memory", "0:memory=128Mi",
		"--topology-manager-policy", "restricted")
	n.needKernel()
	d := n.start()
	var used numa.Mask
	for node := range m.CPUNodeMask().All() {
		cpus := m.CPUsInNode(node).Len()
		if node == 0 {
			cpus-- // the reserved one
		}
		if cpus == 0 {
			continue
		}
		uid := fmt.Sprint("pinned", node)
		r := map[string]string{"cpu": strconv.Itoa(cpus), "memory": "64Mi"}
		answer := d.admitted(pod(uid, r, r)).GetAllocations()[0]
		const mib = 32
		p := n.stoppedWith(mib)
		before := p.pages()
		started := d.run(p, uid, "main", "c-"+uid)
		p.works()
		mems, err := numa.Parse(started.GetCpusetMems())
		if err != nil || mems.Len() != 1 || mems.Overlaps(used) {
			t.Fatalf("pod %s is on memory nodes %s, %v, after %s; CPUs %s", uid, started.GetCpusetMems(), err, used, answer.GetCpus().GetCpus())
		}
		used = used.Union(mems)
		own, _ := mems.Lowest()
		after := p.pages()
		if got, least := after[own]-before[own], mib<<20/os.Getpagesize(); got < least {
			t.Errorf("pod %s got %d pages on node %d, want at least %d", uid, got, own, least)
		}
		for other, pages := range after {
			if other != own && pages > before[other] {
				t.Errorf("pod %s got %d pages on node %d, its memory is on %d", uid, pages-before[other], other, own)
			}
		}
	}
	d.check()
}
