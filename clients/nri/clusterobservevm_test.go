package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
)

// TestClusterObserveVM: on a machine with two NUMA nodes and a real runtime, 20 pods come and go. berth says of each pod what the
// kubelet's podresources say, explains each rejection with the kubelet's reason, finds nothing wrong, and then five faults.
func TestClusterObserveVM(t *testing.T) {
	cluster.Need(t)
	disk := os.Getenv(vmDisk)
	if disk == "" {
		t.Skipf("needs a machine of its own with several NUMA nodes: %s, which names its disk, is empty; hack/cluster/test.sh boots one",
			vmDisk)
	}
	// The programs of the cluster run on the reserved CPUs (Slow).
	c := newClusterMachine(t, cluster.Options{Slow: true}, disk, map[string]any{
		"cpuManagerPolicy": "static", "reservedSystemCPUs": "0-1", "topologyManagerPolicy": "single-numa-node",
	})
	c.socket = c.Path("observe.sock")
	m := &followed{
		kubernetes: c.kubernetes, rnd: rand.New(rand.NewPCG(1, 1)), most: c.largest() + 1, //nolint:gosec // the same in every run
		container: fmt.Sprintf(`"image": %q, "command": ["/probe", "wait"]`, containerd.ProbeImage),
	}
	m.follow("gpu0@0,gpu1@0,gpu2@1,gpu3@1")
	m.create(12)
	m.withdraw(5)
	m.create(8)
	m.same()
	m.explained()

	m.withdraw(len(m.all()))
	m.pod("own", map[string]string{"cpu": "1", "memory": "32Mi", "example.com/gpu": "1"}, 1)
	m.pod("shared", map[string]string{"cpu": "200m", "memory": "32Mi"}, 1)
	m.healthy()
	last, some := c.all.Max()
	if !some || last < 2 {
		t.Fatalf("the machine has the CPUs %v, expected several", c.all)
	}
	m.faults(planted{
		widened: cgroupFile(t, m.pid("shared"), "cpuset", "cpuset.cpus", "cpuset.cpus"), all: c.all.String(),
		online: fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", last), offline: "0",
		config: m.Path("kubelet.json"), moved: "0,2",
	})
}
