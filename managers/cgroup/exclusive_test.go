package cgroup_test

import (
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

// A container with exclusive CPUs has no quota, unless the configuration keeps it.
func TestQuotaWithExclusiveCPUs(t *testing.T) {
	t.Parallel()
	pod := ledgertest.Pod("u", "c")
	both := workload.Quantities{workload.CPU: 2000, workload.Memory: 64 << 20}
	pod.Pod.Containers[0].Requests, pod.Pod.Containers[0].Limits = both, both
	pod.Pod.QoS, pod.QoS = workload.Guaranteed, workload.Guaranteed
	pod.Claims = []ledger.Claim{{
		Owner: ledger.Owner{Pod: "u", Container: "c"}, CPUs: &ledger.CPUs{Set: cpuset.Of(2, 3), Use: ledger.CPUExclusive},
	}}
	d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")}).View())
	d.PutPod(pod)
	layout, err := cgroup.NewLayout("/", cgroup.Cgroupfs)
	if err != nil {
		t.Fatal(err)
	}
	for keep, want := range map[bool]int64{false: cgroup.Unlimited, true: 200000} {
		config := cgroup.DefaultConfig(memtree.V2())
		config.QuotaWithExclusiveCPUs = keep
		node, err := cgroup.PodNode(pod, layout, config)
		if err != nil {
			t.Fatal(err)
		}
		container := cgroup.AdmittedResources(d.View(), pod, &pod.Pod.Containers[0], config)
		if got, inner := *node.Values.CPUQuotaUS, *container.Values.CPUQuotaUS; got != want || inner != want {
			t.Errorf("kept %t: quotas %d and %d, want %d", keep, got, inner, want)
		}
	}
}
