package policy

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// told has the events about pods.
type told struct {
	sync.Mutex
	events []PodEvent
}

func (t *told) tell(e PodEvent) {
	t.Lock()
	defer t.Unlock()
	t.events = append(t.events, e)
}

// about lists the reasons and messages of a pod's events.
func (t *told) about(pod string) (out []string) {
	t.Lock()
	defer t.Unlock()
	for _, e := range t.events {
		if e.Name == pod {
			out = append(out, e.Reason+": "+e.Message)
		}
	}
	return out
}

// TestBeforeBerthdWasEverReady: an installation refuses no pod while berthd has never been ready on the node. When it is ready, running
// pods are admitted in the order in which they began; those that do not fit stay on the shared CPUs. Both have events. From then
// on a container does not start without berthd.
func TestBeforeBerthdWasEverReady(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	d.stop()
	var events told
	e := newEngine(t, Config{Client: d.Client, Established: func() bool { return false }, Tell: events.tell})
	names := []string{"z-first", "m-second", "a-third"} // not in the order of their names
	for _, name := range names {
		p := pod(name, "guaranteed")
		if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
			t.Fatalf("a sandbox is refused: %v", err)
		}
		e.run(p, container(p, "main", name, 3000, gib))
	}
	shared := pod("shared", "besteffort")
	e.run(shared, container(shared, "main", "shared", 0, 0))
	if e.policy.EverReady() {
		t.Error("berthd is said to have been ready")
	}
	d.again()
	e.follow()
	eventually(t, "what fits has CPUs, and what does not is told so", func() bool {
		return len(events.about("z-first")) == 1 && len(events.about("m-second")) == 1 && len(events.about("a-third")) == 1
	})
	for name, want := range map[string]string{
		"z-first":  "Placed: container main ran without a place, and has CPUs",
		"m-second": "Placed: container main ran without a place, and has CPUs",
		"a-third":  "NotPlaced: container main is on the shared CPUs until berthd has a place: ",
	} {
		if got := events.about(name)[0]; !strings.HasPrefix(got, want) ||
			(want[0] == 'P') != strings.Contains(got, "its memory stays where it is") {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	eventually(t, "the containers have left each other", func() bool {
		return len(e.on("z-first")) == 3 && len(e.on("m-second")) == 3 && e.on("a-third") == e.on("shared")
	})
	if got := events.about("shared"); len(got) != 0 {
		t.Errorf("events about a pod without exclusive CPUs: %q", got)
	}
	d.stop()
	p := pod("later", "besteffort")
	if _, err := e.create(p, container(p, "main", "later", 0, 0)); err == nil {
		t.Error("a container starts without berthd, which was ready before")
	}
	d.again()
}

// TestStandby: while another program assigns the CPUs of the node, containers start as without this policy, updates are left as they
// are, and nothing is moved. Afterwards all of it is placed.
func TestStandby(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	e.follow()
	before := pod("before", "guaranteed")
	e.run(before, container(before, "main", "before", 2000, gib))
	eventually(t, "the container has CPUs", func() bool { return len(e.on("before")) == 3 })
	e.policy.SetStandby(errdefs.Preconditionf("the kubelet's CPU manager has the policy static"))
	moved := make(chan struct{}, 100)
	e.before = func([]*api.ContainerUpdate) { moved <- struct{}{} }

	p := pod("p", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	c := container(p, "main", "p", 2000, gib)
	c.Linux.Resources.Cpu.Cpus = "4-5" // the kubelet's
	adjust, err := e.create(p, c)
	if err != nil || adjust.GetLinux() != nil {
		t.Fatalf("a container is adjusted, or refused: %v, %v", adjust, err)
	}
	e.mu.Lock()
	e.cpus["p"] = "4-5"
	e.mu.Unlock()
	if err := e.start(p, c); err != nil {
		t.Fatal(err)
	}
	updates, err := e.policy.UpdateContainer(t.Context(), p, c, &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: "6-7"}})
	if err != nil || len(updates) > 0 {
		t.Errorf("an update of the kubelet is changed: %v, %v", updates, err)
	}
	shared := pod("shared", "besteffort")
	e.run(shared, container(shared, "main", "shared", 0, 0))
	if len(moved) > 0 || e.on("shared") != "" || e.on("p") != "4-5" {
		t.Errorf("%d updates; containers have CPUs %v", len(moved), e.all())
	}
	e.before = nil
	e.policy.SetStandby(nil)
	eventually(t, "all containers are placed", func() bool {
		uids := d.uids()
		return len(uids) == 3 && e.on("shared") != "" && len(e.on("p")) == 3
	})
}

// TestStartsWhileAway: the runtime has started containers on all CPUs while it had no connection. When it lists them, each gets its place,
// or its pod has an event that says why not, once for each reason. A container that starts again while its pod has a place is one of them.
func TestStartsWhileAway(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	var events told
	devices := &untold{pods: map[string]error{"waits": errors.New("the kubelet does not answer")}}
	kubelet := &knows{pods: map[string]*typesv1.Pod{"whole-uid": specOf("whole", "2")}, active: []string{"whole-uid", "again-uid"}}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet, Devices: devices, Tell: events.tell})
	again := pod("again", "guaranteed")
	first := container(again, "main", "again-1", 1000, gib)
	e.run(again, first)
	e.mu.Lock()
	delete(e.cpus, first.Id)
	e.mu.Unlock()

	pods := []*api.PodSandbox{again}
	second := container(again, "main", "again-2", 1000, gib)
	e.runs(second)
	containers := []*api.Container{second}
	for _, row := range []struct {
		name  string
		milli int64
	}{{"whole", 2000}, {"apart", 1000}, {"large", 7000}, {"waits", 1000}, {"shared", 100}} {
		class := "guaranteed"
		if row.name == "shared" {
			class = "burstable"
		}
		p := pod(row.name, class)
		c := container(p, "main", row.name+"-1", row.milli, gib)
		e.runs(c)
		pods, containers = append(pods, p), append(containers, c)
	}
	updates, err := e.policy.Synchronize(t.Context(), pods, containers)
	if err != nil {
		t.Fatal(err)
	}
	e.apply(updates)
	e.pushes(10)
	for name, want := range map[string]string{
		"again": "Placed: container main ran without a place, and has CPUs",
		"whole": "Placed: container main ran without a place, and has CPUs",
		"apart": "Placed: container main ran without a place, and has CPUs",
		"large": "NotPlaced: container main is on the shared CPUs until berthd has a place: ",
		"waits": "NotPlaced: container main has no place yet, and stays on the CPUs on which it runs: ",
	} {
		if got := events.about(name); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("the events of %s are %q, want %q", name, got, want)
		}
	}
	if got := events.about("waits"); len(got) == 1 && !strings.Contains(got[0], "the kubelet does not answer") {
		t.Errorf("the event does not say why: %q", got)
	}
	if got := events.about("shared"); len(got) != 0 {
		t.Errorf("events about a pod without exclusive CPUs: %q", got)
	}
	devices.pods = nil
	e.pushes(3)
	if got := events.about("waits"); len(got) != 2 || !strings.HasPrefix(got[1], "Placed: ") {
		t.Errorf("the kubelet answers again, and the events are %q", got)
	}
	e.pushes(3)
	for id, cpus := range map[string]int{"again-2": 1, "whole-1": 2, "apart-1": 1, "waits-1": 1} {
		if set, err := cpuset.Parse(e.on(id)); err != nil || set.Len() != cpus {
			t.Errorf("%s runs on CPUs %s, want %d of its own", id, e.on(id), cpus)
		}
	}
	if e.on("large-1") != e.on("shared-1") {
		t.Errorf("a container without a place runs on CPUs %s, and the shared ones are %s", e.on("large-1"), e.on("shared-1"))
	}
}

// untold is a kubelet that does not tell the devices of some pods.
type untold struct{ pods map[string]error }

func (u *untold) Devices(_ context.Context, _, name string) (map[string][]*typesv1.ExternalDevice, error) {
	return nil, u.pods[name]
}
