package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/server/internal/host/sysctl"
)

// TestKernelSettings: berthd leaves the kernel's settings alone unless it is configured
// otherwise, and can insist on them.
func TestKernelSettings(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	before, err := sysctl.Compare(os.DirFS("/proc"), sysctl.Wanted())
	if err != nil {
		t.Fatal(err)
	}
	d := n.start()
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", d.Cmd.Process.Pid))
	if err != nil {
		t.Error(err)
	}
	if strings.TrimSpace(string(score)) != "-999" {
		// Lowering it needs CAP_SYS_RESOURCE; without it, the log has a line.
		d.says("berthd keeps its score of the out-of-memory killer")
	}
	d.stop()
	after, err := sysctl.Compare(os.DirFS("/proc"), sysctl.Wanted())
	if err != nil || len(after) != len(before) {
		t.Errorf("settings that differ: %v, %v; before the start %v", after, err, before)
	}
	strict := n.launch("--kernel-tunables", "require")
	if ready := strict.readyOrDead(); ready != (len(before) == 0) {
		t.Fatalf("ready: %t, with settings that differ: %v\n%s", ready, before, strict.log)
	}
	for _, setting := range before {
		if !strings.Contains(strict.log.String(), setting.String()) {
			t.Errorf("the log is silent about %s:\n%s", setting, strict.log)
		}
	}
}

// TestCgroupVersionIsRefused: cgroup v1 is good enough unless it is refused.
func TestCgroupVersionIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	_, err := os.Stat(cgroupMount + "/cgroup.controllers")
	unified := err == nil
	d := n.launch("--fail-cgroupv1")
	if ready := d.readyOrDead(); ready != unified {
		t.Errorf("ready: %t on a unified tree: %t\n%s", ready, unified, d.log)
	}
	if !unified && !strings.Contains(d.log.String(), "node.failCgroupV1") {
		t.Errorf("the log does not name the setting:\n%s", d.log)
	}
}

// TestReservedCgroupHasToBeThere: limits for the system's cgroup need that cgroup.
func TestReservedCgroupHasToBeThere(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	args := []string{
		"--reserved-cpus=", "--enforce-node-allocatable", "pods,system-reserved", "--system-reserved", "cpu=500m,memory=64Mi,pid=1000",
		"--system-reserved-cgroup", "/" + n.cgroup + "/system",
	}
	d := n.launch(args...)
	if d.readyOrDead() || !strings.Contains(d.log.String(), n.cgroup+"/system") {
		t.Fatalf("it started, or does not name the cgroup:\n%s", d.log)
	}
	// The operator makes the system's cgroup.
	other := n.start()
	for _, dir := range n.cgroupDirs() {
		if strings.HasSuffix(dir, n.cgroup) {
			if err := os.MkdirAll(dir+"/system", 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	other.stop()
	n.start(args...)
	if got := n.memoryLimit("system"); got != "67108864" {
		t.Errorf("the system may use %s", got)
	}
	if _, pids := n.file("system", "pids.max"); pids != "1000" {
		t.Errorf("the system may have %s processes", pids)
	}
	if _, shares := n.file("system", "cpu.shares", "cpu.weight"); shares != "512" && shares != "20" {
		t.Errorf("the system weighs %s", shares)
	}
}

// TestAllCPUsWithoutAPolicy: under the CPU policy none the cgroup of all pods names
// every CPU, which keeps systemd from taking the controller away.
func TestAllCPUsWithoutAPolicy(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	d := n.start("--cpu-manager-policy", "none")
	d.admitted(burstable("a"))
	p := n.stopped()
	d.run(p, "a", "main", "c-a")
	_, text := n.file("kubepods", "cpuset.cpus")
	got, err := cpuset.Parse(text)
	if err != nil || got != p.allowed() {
		t.Errorf("all pods have CPUs %q, %v; a process of one may run on %s", text, err, p.allowed())
	}
	d.remove("a")
}
