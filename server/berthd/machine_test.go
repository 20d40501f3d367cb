package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/store"
)

// changingNode is a node whose machine is a file that a test changes.
type changingNode struct {
	*node
	file string
}

// newChangingNode has a berthd that follows the machine within milliseconds, with settings of the
// configuration in place of the flags of the policy.
func newChangingNode(t *testing.T, m *machine.Topology, settings string) changingNode {
	t.Helper()
	n := changingNode{node: newNode(t)}
	n.kernel = false
	n.file = filepath.Join(n.root, "machine.json")
	n.config = filepath.Join(n.root, "berth.yaml")
	text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\ncpu: {policy: static}\nhotplug:\n  poll: 10ms\n  debounce: 1ms\n" + settings
	if err := os.WriteFile(n.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n.args = append(n.args, "--machine", n.file)
	n.become(m)
	return n
}

// become replaces the machine.
func (n changingNode) become(m *machine.Topology) {
	n.t.Helper()
	text, err := m.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.file+".new", text, 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(n.file+".new", n.file); err != nil {
		n.t.Fatal(err)
	}
}

// findings lists the kinds of the check's findings, with their pods.
func (d *daemon) findings() (out []string) {
	d.t.Helper()
	check, err := d.inspect.Check(d.ctx(), &inspectv1.CheckRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range check.GetFindings() {
		out = append(out, f.GetKind().String()+" "+f.GetHolder().GetPodUid())
	}
	return out
}

func (d *daemon) machine() *nodev1.GetMachineResponse {
	d.t.Helper()
	m, err := nodev1.NewNodeServiceClient(d.conn).GetMachine(d.ctx(), &nodev1.GetMachineRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	return m
}

func (d *daemon) cpuState() *cpuv1.GetStateResponse {
	d.t.Helper()
	s, err := cpuv1.NewCPUServiceClient(d.conn).GetState(d.ctx(), &cpuv1.GetStateRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	return s
}

// uses waits until berthd uses a machine.
func (d *daemon) uses(m *machine.Topology) {
	d.t.Helper()
	d.eventually("berthd uses the changed machine", func() bool {
		got := d.machine()
		snapshot, err := machine.Load(got.GetSnapshotJson())
		c := machine.Compare(m, snapshot)
		return err == nil && c.Empty()
	})
}

// TestMachineChanges: CPUs, memory and huge pages come and go while berthd runs. Pods keep what
// they hold, who lost something is a finding, and admissions get what there is.
func TestMachineChanges(t *testing.T) {
	t.Parallel()
	const shape = "1s2n4c1t,mem=4Gi,huge=2Mi:8"
	whole := machinetest.Build(shape)
	n := newChangingNode(t, whole, "reserved: {system: {cpu: \"1\"}}\n")
	d := n.start()
	ctx := d.ctx()
	watch, err := d.allocation.Watch(ctx, &allocationv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	d.admitted(guaranteed("x", 2, 0))
	d.admitted(burstable("s"))
	own := d.pods()["x"].GetContainers()[0].GetCpus().GetList()
	if own != "1-2" {
		t.Fatalf("x has %s", own)
	}

	less := machinetest.Build(shape, machinetest.Offline("2,5"))
	n.become(less)
	d.uses(less)
	if got := d.machine().GetOfflinePlaces(); len(got) != 2 || got[0].GetCpu() != 2 || got[0].GetNumaNode() != 0 ||
		got[1].GetCpu() != 5 || got[1].GetNumaNode() != 1 {
		t.Errorf("places %v", got)
	}
	if got := d.findings(); fmt.Sprint(got) != "[FINDING_KIND_POLICY x]" {
		t.Errorf("findings %q", got)
	}
	if got := d.pods()["x"].GetContainers()[0].GetCpus().GetList(); got != own {
		t.Errorf("x has %s, had %s", got, own)
	}
	if got := d.pods()["s"].GetContainers()[0].GetCpus().GetList(); got != "0,3-4,6-7" {
		t.Errorf("s runs on %s", got)
	}
	if v := d.admit(guaranteed("y", 5, 0)); v.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED {
		t.Errorf("five CPUs of four: %s", v.GetVerdict())
	}
	for seen := false; !seen; {
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range m.GetEvents() {
			seen = seen || e.GetMachine().GetOfflineCpus().GetList() == "2,5" && e.GetMachine().GetCpus().GetList() == "0-7"
		}
	}

	n.become(whole)
	d.uses(whole)
	d.check()
	d.admitted(guaranteed("y", 5, 0))
	d.remove("y")

	more := machinetest.Build("1s3n4c1t,mem=4Gi,huge=2Mi:32")
	n.become(more)
	d.uses(more)
	d.check()
	d.admitted(guaranteed("z", 9, 0))
	d.remove("z")
	revision := d.cpuState().GetRevision()
	if got := d.pods()["x"].GetContainers()[0].GetCpus().GetList(); got != own {
		t.Errorf("x has %s, had %s", got, own)
	}
	n.become(less)
	d.uses(less)
	for _, uid := range []string{"x", "s"} {
		d.remove(uid)
	}
	d.check()
	d.free("while it runs", revision, "4 4 4")
	d.free("while it runs", d.cpuState().GetRevision(), "3 3")
	d.stop()
	n.become(machinetest.Build("1s1n8c1t,mem=1Gi"))
	d = n.start()
	d.free("after a start", revision, "4 4 4")
}

// free checks how many CPUs each NUMA node had at a revision.
func (d *daemon) free(when string, revision uint64, want string) {
	d.t.Helper()
	got, err := fitv1.NewFitServiceClient(d.conn).GetFreeResources(d.ctx(),
		&fitv1.GetFreeResourcesRequest{At: &typesv1.Moment{Moment: &typesv1.Moment_Revision{Revision: revision}}})
	if err != nil {
		d.t.Fatalf("%s: %v", when, err)
	}
	var cpus []uint64
	for _, n := range got.GetFree().GetNodes() {
		for _, r := range n.GetResources() {
			if r.GetResource() == "cpu" {
				cpus = append(cpus, r.GetCapacity())
			}
		}
	}
	if text := strings.Trim(fmt.Sprint(cpus), "[]"); text != want {
		d.t.Errorf("%s: the NUMA nodes had %s CPUs at revision %d, want %s", when, text, revision, want)
	}
}

// TestMachineChangesWhileKilled: whatever step of a change a crash comes at, the start uses the
// changed machine, and reserves the same CPUs as a berthd that was not killed.
func TestMachineChangesWhileKilled(t *testing.T) {
	t.Parallel()
	whole, less := machinetest.Build("1s1n4c2t"), machinetest.Build("1s1n4c2t", machinetest.Offline("4"))
	for _, point := range []string{store.BeforeBegin, store.AfterPut, store.BeforeCommit, store.AfterCommit, app.AfterMachineChange, ""} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			n := newChangingNode(t, whole, "reserved: {system: {cpu: \"2\"}}\n")
			d := n.start()
			d.admitted(guaranteed("x", 2, 0))
			d.admitted(guaranteed("y", 2, 0))
			if got := d.cpuState().GetReserved().GetList(); got != "0,4" {
				t.Fatalf("reserved are %s", got)
			}
			d.stop()
			if point == "" {
				d = n.start()
			} else {
				d = n.start("--failpoint", point+":kill:1")
			}
			n.become(less)
			if point == "" {
				d.uses(less)
				d.kill()
			} else {
				<-d.Ended
			}
			d = n.start()
			d.uses(less)
			if got := d.cpuState().GetReserved().GetList(); got != "0,4" {
				t.Errorf("after a crash at %s, %s are reserved", point, got)
			}
			d.check()
			n.become(whole)
			d.uses(whole)
			d.check()
			if got := d.cpuState().GetReserved().GetList(); got != "0,4" {
				t.Errorf("then %s are reserved", got)
			}
		})
	}
}

// TestReservedCPUsMove: by configuration, an amount of reserved CPUs is always of CPUs online.
func TestReservedCPUsMove(t *testing.T) {
	t.Parallel()
	whole, less := machinetest.Build("1s1n4c2t"), machinetest.Build("1s1n4c2t", machinetest.Offline("4"))
	n := newChangingNode(t, whole, "  reservedCPUs: move\nreserved: {system: {cpu: \"2\"}}\n")
	d := n.start()
	n.become(less)
	d.uses(less)
	if got := d.cpuState().GetReserved().GetList(); got != "0-1" {
		t.Errorf("reserved are %s", got)
	}
}

// TestMemoryDoesNotFit: the configuration reserves memory of a NUMA node that is gone. Nothing of the node is given out meanwhile.
func TestMemoryDoesNotFit(t *testing.T) {
	t.Parallel()
	whole := machinetest.Build("1s1n4c1t1m,mem=2Gi")
	n := newChangingNode(t, whole, `memory: {policy: Static, reserved: [{numaNode: 1, limits: {memory: 100Mi}}]}
reserved: {cpus: "0", system: {memory: 100Mi}, evictionHard: {}}
`)
	d := n.start()
	large := func(uid string) *typesv1.Pod {
		r := map[string]string{"cpu": "1", "memory": "2500Mi"}
		return pod(uid, r, r)
	}
	d.admitted(large("x"))
	n.become(machinetest.Build("1s1n4c1t,mem=2Gi"))
	d.eventually("the memory of the missing node is out of use", func() bool {
		m, err := machine.Load(d.machine().GetSnapshotJson())
		if err != nil {
			return false
		}
		left, ok := m.Node(1)
		return ok && left.MemoryBytes == 0
	})
	if got := d.findings(); len(got) != 1 {
		t.Errorf("findings %v", got)
	}
	d.remove("x")
	if v := d.admit(large("y")); v.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED {
		t.Errorf("more memory than there is: %s", v.GetVerdict())
	}
	n.become(whole)
	d.uses(whole)
	d.admitted(large("z"))
	d.check()
}

// TestMachineDoesNotFit: where the configuration does not fit the changed machine, missing CPUs are
// taken out of use nevertheless, and berthd follows when the machine fits again.
func TestMachineDoesNotFit(t *testing.T) {
	t.Parallel()
	whole := machinetest.Build("1s2n2c1t,mem=2Gi")
	n := newChangingNode(t, whole, `memory: {policy: Static, reserved: [{numaNode: 1, limits: {memory: 100Mi}}]}
reserved: {cpus: "0", system: {memory: 100Mi}, evictionHard: {}}
`)
	d := n.start()
	d.admitted(guaranteed("x", 2, 0))
	n.become(machinetest.Build("1s1n2c1t,mem=2Gi"))
	d.eventually("the CPUs of the missing node are out of use", func() bool { return d.machine().GetOfflineCpus().GetList() == "2-3" })
	if v := d.admit(guaranteed("y", 2, 0)); v.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED {
		t.Errorf("two CPUs of one: %s", v.GetVerdict())
	}
	n.become(whole)
	d.uses(whole)
	d.check()
	d.admitted(guaranteed("z", 1, 0))
}
