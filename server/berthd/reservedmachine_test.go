package main

import (
	"slices"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// removed returns a machine from which CPUs were removed, so that they are not even offline.
func removed(t *testing.T, m *machine.Topology, cpus ...int) *machine.Topology {
	t.Helper()
	s := m.Snapshot()
	s.CPUs = slices.DeleteFunc(s.CPUs, func(c machine.CPU) bool { return slices.Contains(cpus, c.ID) })
	out, err := machine.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestReservedCPUsComeBack: CPUs that are reserved by number, and as many as an amount says, are
// reserved again after they were removed and added again.
func TestReservedCPUsComeBack(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]string{"by number": "reserved: {cpus: \"0,3\"}\n",
		"an amount": "reserved: {system: {cpu: \"2\"}}\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole := machinetest.Build("1s1n4c2t")
			n := newChangingNode(t, whole, settings)
			d := n.start()
			before := d.cpuState().GetReserved().GetList()
			set, err := cpuset.Parse(before)
			if err != nil {
				t.Fatal(err)
			}
			gone, _ := set.Max()
			n.become(removed(t, whole, gone))
			d.uses(removed(t, whole, gone))
			t.Logf("without CPU %d: reserved %s", gone, d.cpuState().GetReserved().GetList())
			n.become(whole)
			d.uses(whole)
			if got := d.cpuState().GetReserved().GetList(); got != before {
				t.Errorf("reserved are %s, want %s", got, before)
			}
			d.kill()
			d = n.start()
			if got := d.cpuState().GetReserved().GetList(); got != before {
				t.Errorf("after a restart %s are reserved, want %s", got, before)
			}
		})
	}
}

// TestReservedGoesOffline: a CPU that is reserved by number goes offline.
func TestReservedGoesOffline(t *testing.T) {
	t.Parallel()
	whole, less := machinetest.Build("1s1n8c1t"), machinetest.Build("1s1n8c1t", machinetest.Offline("1,5"))
	n := newChangingNode(t, whole, "reserved: {cpus: \"0-1\"}\n")
	d := n.start()
	d.admitted(guaranteed("x", 1, 0))
	n.become(less)
	d.eventually("CPU 5 is out of use", func() bool { return d.machine().GetOfflineCpus().GetList() == "1,5" })
	if got := d.cpuState().GetReserved().GetList(); got != "0-1" {
		t.Errorf("reserved %s", got)
	}
	d.admitted(guaranteed("y", 4, 0))
}
