package policy

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// single starts a berthd with the policy single-numa-node, and a runtime with a policy that is followed.
func single(t *testing.T, change func(*config.Config)) (*daemon, *engine) {
	t.Helper()
	d := startBerthdWith(t, func(c *config.Config) {
		pinned(c)
		c.Topology.Policy = topology.SingleNUMANode
		change(c)
	})
	e := newEngineOf(t, Config{Client: d.Client})
	e.readsMemory()
	if _, err := e.policy.Synchronize(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	e.follow()
	return d, e
}

// runPod makes and starts the container of a guaranteed pod that may move.
func (e *engine) runPod(name string, milli, memory int64) (*api.PodSandbox, *api.Container) {
	e.t.Helper()
	p := pod(name, "guaranteed")
	p.Annotations = map[string]string{workload.MovableAnnotation: "anywhere"}
	c := container(p, "main", name+"-1", milli, memory)
	e.run(p, c)
	return p, c
}

// A defragmentation moves a container with its memory, and tells where the memory was before and after.
func TestDefragMovesMemory(t *testing.T) {
	t.Parallel()
	d, e := single(t, func(*config.Config) {})
	e.runPod("trainer", 2000, 2*gib)
	e.runPod("other", 2000, 2*gib)
	if e.at("trainer-1") != numa.Of(0) || e.at("other-1") != numa.Of(1) {
		t.Fatalf("memory on nodes %s and %s", e.at("trainer-1"), e.at("other-1"))
	}
	amounts := map[string]string{"cpu": "3", "memory": "3Gi"}
	big := &typesv1.Pod{Metadata: &typesv1.PodMetadata{Name: "big", Uid: "big"}, Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
		Name: "main", Resources: &typesv1.ResourceRequirements{Requests: amounts, Limits: amounts},
	}}}}
	eventually(t, "the pod fits after a move", func() bool {
		stream, err := d.Admission().Defragment(t.Context(), &admissionv1.DefragmentRequest{Pod: big})
		if err != nil {
			t.Fatal(err)
		}
		var moved *admissionv1.PodMoved
		for {
			event, err := stream.Recv()
			if err != nil {
				return false
			}
			if m := event.GetMoved(); m != nil {
				moved = m
			}
			if r := event.GetResult(); r != nil {
				if r.GetFits() && (moved.GetBytesBefore()[0] != usedBytes || moved.GetBytesAfter()[1] != usedBytes ||
					moved.GetBytesAfter()[0] != 0) {
					t.Errorf("moved: %v", moved)
				}
				return r.GetFits()
			}
		}
	})
	if e.at("trainer-1") != numa.Of(1) || e.memsOf("trainer-1") != "1" {
		t.Errorf("memory on nodes %s of %s", e.at("trainer-1"), e.memsOf("trainer-1"))
	}
	eventually(t, "the container is on node 1", func() bool { return set(t, e.on("trainer-1")).IsSubsetOf(set(t, "4-7")) })
}

// A container that loses its CPUs gets others of another node, and its memory moves there.
func TestLostCPUsMoveMemory(t *testing.T) {
	t.Parallel()
	file := ""
	become := func(options ...machinetest.Option) {
		t.Helper()
		m, err := machinetest.Build("1s2n4c1t,mem=4Gi", options...).Marshal()
		if err == nil {
			err = errors.Join(os.WriteFile(file+".new", m, 0o600), os.Rename(file+".new", file))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	d, e := single(t, func(c *config.Config) {
		file = c.RootDir + "/machine.json"
		become()
		c.Machine, c.Hotplug.Poll.Duration, c.Hotplug.Debounce.Duration = file, 10*time.Millisecond, time.Millisecond
		c.Hotplug.OnLost = config.LostReplace
	})
	e.runPod("trainer", 2000, 2*gib)
	become(machinetest.Offline("1-3"))
	eventually(t, "the container is on node 1", func() bool {
		return set(t, e.on("trainer-1")).IsSubsetOf(set(t, "4-7")) && e.at("trainer-1") == numa.Of(1)
	})
	eventually(t, "the move ends", func() bool { return !d.moves("trainer-uid.main") })
	if e.memsOf("trainer-1") != "1" {
		t.Errorf("memory nodes %s", e.memsOf("trainer-1"))
	}
}

// A container that is created again in the middle of a move has the memory nodes of that moment, and ids that a failed start has
// left do not hold up the move.
func TestRestartDuringAMoveOfMemory(t *testing.T) {
	t.Parallel()
	d, e, p, c := moving(t, func(*Config, *engine) {})
	e.follow()
	ghost := &lifecyclev1.PreStartContainerRequest{PodUid: "trainer-uid.main", ContainerName: "main", ContainerId: "ghost"}
	e.mu.Lock()
	e.pins = true
	e.mu.Unlock()
	eventually(t, "berthd allows the move", func() bool {
		_, err := e.resize(p, c, size(4000, 4000, 0))
		return err == nil
	})
	eventually(t, "the container may only use memory of node 1", func() bool { return e.memsOf("trainer-1") == "1" })
	if _, err := d.Lifecycle().PreStartContainer(t.Context(), ghost); err != nil {
		t.Fatal(err)
	}
	e.stop(p, c)
	again := container(p, "main", "trainer-2", 4000, 2*gib)
	e.mu.Lock()
	e.pins = false
	e.mu.Unlock()
	e.run(p, again)
	if got := e.memsOf("trainer-2"); got != "1" {
		t.Errorf("the next container has memory nodes %s", got)
	}
	eventually(t, "the move ends", func() bool { return !d.moves("trainer-uid.main") })
	eventually(t, "the next container is on CPUs 4-7 only", func() bool { return e.on("trainer-2") == "4-7" })
	if e.at("trainer-2") != numa.Of(1) {
		t.Errorf("its memory is on nodes %s", e.at("trainer-2"))
	}
}

// A container does not start with memory nodes from before a move of its pod.
func TestStartWithOldMemoryNodes(t *testing.T) {
	t.Parallel()
	d := startBerthdWith(t, pinned)
	e := newEngineOf(t, Config{Client: d.Client})
	e.readsMemory()
	if _, err := e.policy.Synchronize(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	p := pod("trainer", "guaranteed")
	c := container(p, "main", "trainer-1", 2000, 2*gib)
	if _, err := e.create(p, c); err != nil {
		t.Fatal(err)
	}
	amounts := map[string]string{"cpu": "4", "memory": "2Gi"}
	req := &admissionv1.ResizeRequest{PodUid: "trainer-uid.main", Owner: d.Owner(), Containers: []*admissionv1.ContainerResources{{
		ContainerName: "main", Resources: &typesv1.ResourceRequirements{Requests: amounts, Limits: amounts},
	}}}
	answer, err := d.Resize(t.Context(), req)
	if err != nil || answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%v, %v", answer, err)
	}
	eventually(t, "the move ends, because nothing runs", func() bool { return !d.moves("trainer-uid.main") })
	if err := e.start(p, c); err == nil || !strings.Contains(err.Error(), "its memory nodes were 0 when it was created, and are 1 now") {
		t.Errorf("the start: %v", err)
	}
	// The runtime may have read the nodes before an update of the container.
	second := container(p, "main", "trainer-2", 4000, 2*gib)
	if _, err := e.create(p, second); err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	e.mems["trainer-2"] = "0-1"
	e.mu.Unlock()
	if err := e.start(p, second); err == nil || !strings.Contains(err.Error(),
		"its cgroup may use memory of NUMA nodes 0-1, and not of 1 only") {
		t.Errorf("the start: %v", err)
	}
	third := container(p, "main", "trainer-3", 4000, 2*gib)
	e.run(p, third)
	if e.at("trainer-3") != numa.Of(1) {
		t.Errorf("memory on nodes %s", e.at("trainer-3"))
	}
}

// A runtime that has applied older memory nodes than the last ones is sent them again.
func TestOldMemoryNodesAreReplaced(t *testing.T) {
	t.Parallel()
	_, e, _, _ := moving(t, func(*Config, *engine) {})
	now := time.Now()
	e.clock(func() time.Time { return now })
	if err := e.policy.push(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	e.mems["trainer-1"] = "0-1"
	e.mu.Unlock()
	now = now.Add(compareInterval)
	if err := e.policy.push(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if got := e.memsOf("trainer-1"); got != "0" {
		t.Errorf("memory nodes %s", got)
	}
}

// A container with memory of a NUMA node that is gone starts again on the other ones.
func TestStartWithoutALostNode(t *testing.T) {
	t.Parallel()
	file := ""
	become := func(shape string) {
		t.Helper()
		m, err := machinetest.Build(shape).Marshal()
		if err == nil {
			err = errors.Join(os.WriteFile(file+".new", m, 0o600), os.Rename(file+".new", file))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	d := startBerthdWith(t, func(c *config.Config) {
		pinned(c)
		file = c.RootDir + "/machine.json"
		become("1s2n4c1t,mem=4Gi")
		c.Machine, c.Hotplug.Poll.Duration, c.Hotplug.Debounce.Duration = file, 10*time.Millisecond, time.Millisecond
	})
	e := newEngineOf(t, Config{Client: d.Client})
	e.readsMemory()
	if _, err := e.policy.Synchronize(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	e.follow()
	p, c := e.runPod("trainer", 2000, 5*gib)
	if got := e.memsOf("trainer-1"); got != "0,1" {
		t.Fatalf("memory nodes %s", got)
	}
	become("1s1n8c1t,mem=4Gi")
	eventually(t, "the runtime gets the nodes that are left", func() bool { e.policy.agenda.kick(); return e.memsOf("trainer-1") == "0" })
	e.stop(p, c)
	e.run(p, container(p, "main", "trainer-2", 2000, 5*gib))
	if got := e.memsOf("trainer-2"); got != "0" {
		t.Errorf("memory nodes %s", got)
	}
	become("1s2n4c1t,mem=4Gi")
	eventually(t, "the runtime gets the node that is back", func() bool { e.policy.agenda.kick(); return e.memsOf("trainer-2") == "0,1" })
}

// Memory that stays for long is reported less often: each pass reads berthd's whole ledger. As soon as some of it has moved, reports
// are frequent again.
func TestReportsOfMemoryThatStays(t *testing.T) {
	t.Parallel()
	reads := 0
	d, e, p, c := moving(t, func(c *Config, _ *engine) {
		read := c.Memory
		c.Memory = func(cgroup string, pid int) (Memory, error) {
			if pid != 0 {
				reads++
			}
			return read(cgroup, pid)
		}
	})
	now := time.Now()
	e.clock(func() time.Time { return now })
	pass := func() {
		t.Helper()
		now = now.Add(moveInterval)
		if err := e.policy.push(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	e.mu.Lock()
	e.pins = true
	e.mu.Unlock()
	eventually(t, "berthd allows the move", func() bool {
		pass()
		_, err := e.resize(p, c, size(4000, 4000, 0))
		return err == nil
	})
	eventually(t, "the container may only use memory of node 1", func() bool { pass(); return e.memsOf("trainer-1") == "1" })
	const second = int(time.Second / moveInterval)
	for range 5 * second {
		pass()
	}
	reads = 0
	for range 10 * second {
		pass()
	}
	if reads < 9 || reads > 11 {
		t.Errorf("%d reports in 10 seconds", reads)
	}
	e.release()
	eventually(t, "the move ends", func() bool { pass(); return !d.moves("trainer-uid.main") })
}

// staying moves a container whose memory stays on node 0, and returns how to make a pass after moveInterval. sent are the memory nodes of
// the container's updates.
func staying(t *testing.T, change func(*Config, *engine)) (d *daemon, e *engine, now *time.Time, pass func(), sent *[]string) {
	t.Helper()
	d, e, p, c := moving(t, change)
	now, sent = new(time.Now()), new([]string)
	e.clock(func() time.Time { return *now })
	e.mu.Lock()
	e.pins = true
	e.before = func(updates []*api.ContainerUpdate) {
		for _, u := range updates {
			if u.GetContainerId() == "trainer-1" {
				*sent = append(*sent, u.GetLinux().GetResources().GetCpu().GetMems())
			}
		}
	}
	e.mu.Unlock()
	pass = func() {
		*now = now.Add(moveInterval)
		_ = e.policy.push(t.Context(), e) // an error is one of berthd
	}
	eventually(t, "berthd allows the move", func() bool {
		pass()
		_, err := e.resize(p, c, size(4000, 4000, 0))
		return err == nil
	})
	eventually(t, "the container may only use memory of node 1", func() bool { pass(); return e.memsOf("trainer-1") == "1" })
	pass()
	*sent = nil
	return d, e, now, pass, sent
}

// Memory that something has used for a moment when its nodes changed moves later, by another change of the nodes.
func TestMemoryThatStaysMovesLater(t *testing.T) {
	t.Parallel()
	d, e, now, pass, sent := staying(t, func(*Config, *engine) {})
	began := *now
	for now.Sub(began) < protocol.MoveRetryInterval*3/2 {
		pass()
	}
	if got := strings.Join(*sent, " "); got != "0,1 1" {
		t.Errorf("memory nodes in order: %q", got)
	}
	e.mu.Lock()
	e.pins = false
	e.mu.Unlock()
	eventually(t, "the move ends", func() bool { pass(); return !d.moves("trainer-uid.main") })
	if e.at("trainer-1") != numa.Of(1) || e.memsOf("trainer-1") != "1" {
		t.Errorf("memory on nodes %s of %s", e.at("trainer-1"), e.memsOf("trainer-1"))
	}
	if passed := now.Sub(began); passed < 2*protocol.MoveRetryInterval-2*time.Second {
		t.Errorf("it has moved after %s", passed)
	}
}

// A rest that berthd takes for arrived memory begins no other attempt: the move ends, and others may get the node.
func TestFewBytesStay(t *testing.T) {
	t.Parallel()
	var few atomic.Bool
	d, _, now, pass, sent := staying(t, func(c *Config, _ *engine) {
		read := c.Memory
		c.Memory = func(cgroup string, pid int) (Memory, error) {
			m, err := read(cgroup, pid)
			if err == nil && few.Load() {
				m.Bytes = map[int]uint64{0: 1 << 20, 1: usedBytes}
			}
			return m, err
		}
	})
	began := *now
	for now.Sub(began) < protocol.MoveRetryInterval-4*time.Second {
		pass()
	}
	few.Store(true)
	for now.Sub(began) < 2*protocol.MoveRetryInterval {
		pass()
	}
	if slices.Contains(*sent, "0,1") {
		t.Errorf("memory nodes in order: %q", *sent)
	}
	eventually(t, "the move ends", func() bool { pass(); return !d.moves("trainer-uid.main") })
}

// An attempt ends although berthd goes away in the middle of it.
func TestOutageInAnAttempt(t *testing.T) {
	t.Parallel()
	_, e, now, _, sent := staying(t, func(*Config, *engine) {})
	ctx, goAway := context.WithCancel(t.Context())
	e.mu.Lock()
	before := e.before
	e.before = func(updates []*api.ContainerUpdate) {
		before(updates)
		if slices.Contains(*sent, "0,1") {
			goAway()
		}
	}
	e.mu.Unlock()
	for began := *now; now.Sub(began) < 2*protocol.MoveRetryInterval && len(*sent) == 0; {
		*now = now.Add(moveInterval)
		_ = e.policy.push(ctx, e)
	}
	if got := strings.Join(*sent, " "); got != "0,1 1" || e.memsOf("trainer-1") != "1" {
		t.Errorf("memory nodes in order: %q; it has %s", got, e.memsOf("trainer-1"))
	}
}
