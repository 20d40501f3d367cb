package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
)

// TestRuntimeCgroup: the processes in pid files are in their cgroups, with the
// kubelet's score, from the start of berthd on.
func TestRuntimeCgroup(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	place := n.newCgroup("runtime")
	runtime, agent := n.stopped(), n.stopped()
	files := filepath.Join(n.root, "pids")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, pid := range map[string]int{"runtime": runtime.pid(), "agent": agent.pid()} {
		if err := os.WriteFile(filepath.Join(files, name), []byte(strconv.Itoa(pid)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.args = append(n.args, "--runtime-cgroups", place, "--runtime-pid-file", filepath.Join(files, "runtime"),
		"--agent-pid-file", filepath.Join(files, "agent"), "--oom-score-adj", "500")
	d := n.start()
	node, cgroups := nodev1.NewNodeServiceClient(d.conn), cgroupv1.NewCgroupServiceClient(d.conn)
	var found []*nodev1.SystemContainer
	n.eventually("berthd has looked after the processes", func() bool {
		status, err := node.GetStatus(d.ctx(), &nodev1.GetStatusRequest{})
		found = status.GetSystemContainers()
		return err == nil && len(found) == 4
	})
	for i, want := range []struct {
		part nodev1.SystemContainer_Part
		pid  int
	}{
		{nodev1.SystemContainer_PART_BERTHD, d.Cmd.Process.Pid}, {nodev1.SystemContainer_PART_AGENT, agent.pid()},
		{nodev1.SystemContainer_PART_RUNTIME, runtime.pid()}, {nodev1.SystemContainer_PART_PODS, 0},
	} {
		if found[i].GetPart() != want.part || found[i].GetPid() != int32(want.pid) {
			t.Errorf("%v, want %v", found[i], want)
		}
	}
	pids, err := cgroups.ListProcesses(d.ctx(), &cgroupv1.ListProcessesRequest{Name: place})
	if err != nil || !slices.Equal(pids.GetPids(), []int32{int32(runtime.pid())}) {
		t.Errorf("processes in the runtime's cgroup: %v, %v", pids, err)
	}
	lowered := "-999"
	if !mayLowerScores(t) {
		lowered = "0" // and the log has a line
		d.says("oom_score_adj of process " + strconv.Itoa(runtime.pid()) + " to -999")
	}
	for pid, want := range map[int]string{runtime.pid(): lowered, agent.pid(): "500", d.Cmd.Process.Pid: "500"} {
		score, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
		if got := strings.TrimSpace(string(score)); got != want || err != nil {
			t.Errorf("process %d has the score %s, %v, want %s", pid, got, err, want)
		}
	}
}

// mayLowerScores reports whether this machine leaves root the capability for that.
func mayLowerScores(t *testing.T) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	have, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	const sysResource = 24
	return have&(1<<sysResource) != 0
}
