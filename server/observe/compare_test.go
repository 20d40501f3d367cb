package observe_test

import (
	"slices"
	"strings"
	"testing"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/server/internal/kubeletnode/nodetest"
	"github.com/berthd/berth/server/observe"
)

// gone are the pods about which the replay decides otherwise than the kubelet has, by recording. In all of them the kubelet has decided on
// something that the recorded moment does not have.
var gone = map[string][]string{
	// p32-s2 and p34-s4 had CPUs when p37-s10 was rejected, and were removed. In the replay p37-s10 has the room of those after it.
	"smt-intel-2node-uncore/full-default-none":    {"p37-s10", "p39-s5"},
	"smt-intel-4node-options/full-default-none":   {"p37-s10", "p39-s5"},
	"smt-intel-4node-options/full-fullpcpus-none": {"p37-s10", "p38-s12"},
	// The start times are those of a restart of the kubelet, so the order is another one than that of the admissions.
	"v1-cgroupfs-restricted-readd/full-C": {"p29-gdevinit"},
	"v2-systemd-restricted-readd/full-C":  {"p29-gdevinit"},
	// The device plugins had not registered again when the restarted kubelet rejected it.
	"v2-systemd-single-podscope/full-C": {"p29-gdevinit"},
	// The state file of the CPUs was removed, and that of the devices was not: it had its device on a node without free CPUs.
	"v2-systemd-restart/full-after": {"p09-gdev"},
	// The kubelet has not decided about p33-s3 yet, which has no start time and comes first here. A client leaves such a pod out.
	"n12-limits/full-option": {"p32-s2"},
	// The recording is of 1.36.3, and berth decides as 1.37: docs/deviations.md, U5.
	"v2-systemd-podlevel/full-A": {"p41-plx", "p42-ply", "p15-podlevel"},
}

// compareReplay compares what becomes of the pods with the kubelet's planning and its policy with what the kubelet has decided.
func compareReplay(t *testing.T, r nodetest.Recording, n *observe.Node) {
	t.Helper()
	first := replay(t, n)
	var unlike []string
	for i, p := range n.Decided {
		if first.Outcomes[i].Admitted == p.Rejected() {
			unlike = append(unlike, strings.TrimSuffix(p.GetMetadata().GetName(), "-numavm"))
		}
	}
	if !slices.Equal(unlike, gone[r.Name]) {
		t.Errorf("%s: of %d pods, these are decided about otherwise: %q, want %q", r.Name, len(n.Decided), unlike, gone[r.Name])
	}
}

// replay compares the pods of a node as a client does, and returns the row of the kubelet with its policy.
func replay(t *testing.T, n *observe.Node) simulation.Compared {
	t.Helper()
	b, err := bundle.Collect(berth.Over(n, berth.Options{Attempts: 1}).Bundle(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	var pods []*typesv1.Pod
	for _, p := range n.Decided {
		pods = append(pods, p.Pod)
	}
	scene := simulation.Scene{Machine: b.Machine, Config: *b.Config, Devices: b.DevicesByResource(), Facts: b.Node}
	found, err := scene.Compare(t.Context(), pods)
	if err != nil {
		t.Fatal(err)
	}
	first := found.Rows[0]
	if first.Planning != topology.ByContainer || first.Policy != b.Config.Topology.Policy || first.Refused != nil {
		t.Fatalf("the first row is %s, %s: %v", first.Planning, first.Policy, first.Refused)
	}
	return first
}
