package policy

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/placement"
)

// put has the fake's kernel run a container on some CPUs.
func (e *engine) put(id, cpus string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cpus[id] = cpus
}

// startsAlone has a container of its own tried until it starts, and checks that it then
// shares no CPU with another one.
func (e *engine) startsAlone(p *api.PodSandbox, c *api.Container, others ...string) {
	e.t.Helper()
	eventually(e.t, "container "+c.GetId()+" starts", func() bool { return e.start(p, c) == nil })
	own := set(e.t, e.on(c.GetId()))
	for _, id := range others {
		if cpus := set(e.t, e.on(id)); cpus.Overlaps(own) {
			e.t.Errorf("container %s runs on %s, and %s on %s", c.GetId(), own, id, cpus)
		}
	}
}

// TestNotStoredYet has a container that shares CPUs between its creation and its entry in
// the runtime's store. The runtime answers an update of it without an error and does
// nothing.
func TestNotStoredYet(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	e.follow()
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	w, tr := container(web, "main", "web-1", 500, 0), container(trainer, "main", "trainer-1", 2000, gib)
	adjust, _, err := e.policy.CreateContainer(t.Context(), web, w)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.create(trainer, tr); err != nil {
		t.Fatal(err)
	}
	if err := e.start(trainer, tr); err == nil || !strings.Contains(err.Error(), "container main of default/web, which is being started") {
		t.Errorf("a container started while another one was made that has its CPUs: %v", err)
	}
	e.put("web-1", adjust.GetLinux().GetResources().GetCpu().GetCpus())
	if err := e.policy.PostCreateContainer(t.Context(), web, w); err != nil {
		t.Fatal(err)
	}
	if err := e.start(web, w); err != nil {
		t.Errorf("a container that shares CPUs waits for another one: %v", err)
	}
	e.startsAlone(trainer, tr, "web-1")
}

// TestStartUnderWay has a container whose start the runtime has begun with the CPUs of
// before: updates until its end only change what the next start would read.
func TestStartUnderWay(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	e.follow()
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	w, tr := container(web, "main", "web-1", 500, 0), container(trainer, "main", "trainer-1", 2000, gib)
	if _, err := e.create(web, w); err != nil {
		t.Fatal(err)
	}
	read := e.on("web-1")
	if _, err := e.create(trainer, tr); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the runtime is told other CPUs", func() bool { return !set(t, e.on("web-1")).Overlaps(set(t, e.on("trainer-1"))) })
	if err := e.policy.StartContainer(t.Context(), web, w); err != nil {
		t.Fatal(err)
	}
	if err := e.start(trainer, tr); err == nil || !strings.Contains(err.Error(), "container main of default/web, which is being started") {
		t.Errorf("a container started while the start of another one was under way: %v", err)
	}
	e.put("web-1", read)
	e.mu.Lock()
	e.pids[77] = "web-1"
	e.mu.Unlock()
	w.Pid = 77
	if err := e.policy.PostStartContainer(t.Context(), web, w); err != nil {
		t.Fatal(err)
	}
	e.startsAlone(trainer, tr, "web-1")
}

// TestStartOverdue has a container that was made and never starts: in the end it keeps
// nobody from his CPUs.
func TestStartOverdue(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	var late time.Duration
	e := newEngine(t, Config{Client: d.Client, Now: func() time.Time { return time.Unix(1000, 0).Add(late) }})
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	if _, err := e.create(web, container(web, "main", "web-1", 500, 0)); err != nil {
		t.Fatal(err)
	}
	tr := container(trainer, "main", "trainer-1", 2000, gib)
	if _, err := e.create(trainer, tr); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := e.policy.push(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.start(trainer, tr); err == nil {
		t.Error("a container started while another one was being started")
	}
	late = 3 * time.Minute
	if err := e.policy.push(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	e.startsAlone(trainer, tr)
}

// TestLateResize has the runtime carry a resize out after it has moved the container.
func TestLateResize(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	w, tr := container(web, "main", "web-1", 500, 0), container(trainer, "main", "trainer-1", 2000, gib)
	e.run(web, w)
	updates, err := e.policy.UpdateContainer(t.Context(), web, w, size(700, 0, gib))
	if err != nil {
		t.Fatal(err)
	}
	e.run(trainer, tr)
	e.apply(updates)
	if set(t, e.on("web-1")).Overlaps(set(t, e.on("trainer-1"))) {
		t.Errorf("after the resize: %v", e.all())
	}
}

// TestAnswersFailNobody: an update in an answer concerns those who are in the way, and its
// failure is not that of the container that is made.
func TestAnswersFailNobody(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, other, trainer := pod("web", "burstable"), pod("other", "burstable"), pod("trainer", "guaranteed")
	e.run(web, container(web, "main", "web-1", 500, 0))
	e.put("web-1", "0-3") // somebody has moved it
	if _, updates, err := e.policy.CreateContainer(t.Context(), other, container(other, "main", "other-1", 500, 0)); err != nil ||
		len(updates) > 0 {
		t.Errorf("a container that shares CPUs: updates %v, %v", updates, err)
	}
	e.put("web-1", "0-7")
	_, updates, err := e.policy.CreateContainer(t.Context(), trainer, container(trainer, "main", "trainer-1", 2000, gib))
	if err != nil || len(updates) != 1 || !updates[0].GetIgnoreFailure() {
		t.Errorf("a container of its own: updates %v, %v", updates, err)
	}
}

// TestSuccessor replaces a pod whose container has ended and whose sandbox is still there.
func TestSuccessor(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	first, second := pod("first", "guaranteed"), pod("second", "guaranteed")
	c := container(first, "main", "first-1", 7000, gib)
	e.run(first, c)
	// The runtime says that it has ended, and a process is left.
	if _, err := e.policy.StopContainer(t.Context(), first, c); err != nil {
		t.Fatal(err)
	}
	next := container(second, "main", "second-1", 7000, gib)
	if _, err := e.create(second, next); err == nil || !strings.Contains(err.Error(),
		"CPUs 1-7 are held by container main of default/first, which is ending") {
		t.Errorf("the successor of a container that is ending: %v", err)
	}
	e.stop(first, c)
	e.run(second, next)
	// The next one is made while the process of the one before is there: it does not start.
	if got := d.uids(); !slices.Equal(got, []string{"second-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}
}

// TestSuccessorBeforeTheEvents replaces a pod that was killed, of whose end the runtime has
// not told yet: the kernel says that its processes have gone. A pod that is only between
// two runs of its container keeps its place.
func TestSuccessorBeforeTheEvents(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		whole, sandboxGone, admitted bool
	}{
		"a container apart":           {admitted: true},
		"a pod, and its sandbox":      {whole: true, sandboxGone: true, admitted: true},
		"a pod whose sandbox is left": {whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			config := Config{Client: d.Client}
			if c.whole {
				config.Manifests = manifests(t, manifestOf("first", "{limits: {cpu: 7, memory: 1Gi}}"),
					manifestOf("second", "{limits: {cpu: 7, memory: 1Gi}}"))
			}
			e := newEngine(t, config)
			first, second := pod("first", "guaranteed"), pod("second", "guaranteed")
			second.Pid = 0 // the runtime has not made its process yet
			if err := e.policy.RunPodSandbox(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			e.run(first, container(first, "main", "first-1", 7000, gib))
			if err := e.policy.RunPodSandbox(t.Context(), second); (err == nil) == c.whole {
				t.Fatalf("beside a pod that runs: %v", err)
			}
			e.mu.Lock()
			delete(e.cpus, "first-1")
			e.ended = c.sandboxGone
			e.mu.Unlock()
			err := e.policy.RunPodSandbox(t.Context(), second)
			if err == nil {
				_, err = e.create(second, container(second, "main", "second-1", 7000, gib))
			}
			if (err == nil) != c.admitted {
				t.Errorf("the successor: %v", err)
			}
		})
	}
}

// TestStoppedPodRuns has a process outlive the end of its pod, as the runtime tells it.
func TestStoppedPodRuns(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	trainer := pod("trainer", "guaranteed")
	e.run(trainer, container(trainer, "main", "trainer-1", 2000, gib))
	for _, end := range []error{e.policy.StopPodSandbox(t.Context(), trainer), e.policy.RemovePodSandbox(t.Context(), trainer)} {
		if end != nil {
			t.Fatal(end)
		}
	}
	if got := d.uids(); !slices.Equal(got, []string{"trainer-uid.main"}) {
		t.Errorf("a process runs, and berthd has %v", got)
	}
	e.mu.Lock()
	delete(e.cpus, "trainer-1")
	e.mu.Unlock()
	if !e.policy.sweepNow(t.Context()) {
		t.Error("the end of the process was not seen")
	}
	if got := d.uids(); len(got) > 0 || len(e.policy.node.sandboxes) > 0 || len(e.policy.node.members) > 0 {
		t.Errorf("berthd still has %v; known are %v and %v", got, e.policy.node.sandboxes, e.policy.node.members)
	}
}

// TestPIDUsedAgain: another process that has got the number of a container's, or of a sandbox's,
// does not hold what these had.
func TestPIDUsedAgain(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	var again atomic.Bool // all numbers are other processes' now
	e := newEngine(t, Config{Client: d.Client, Host: Host{BornAt: func(int) (uint64, error) {
		if again.Load() {
			return 2, nil
		}
		return 1, nil
	}}})
	first, second := pod("first", "guaranteed"), pod("second", "guaranteed")
	for _, p := range []*api.PodSandbox{first, second} {
		e.run(p, container(p, "main", p.GetName()+"-1", 2000, gib))
	}
	if err := e.policy.StopPodSandbox(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if got := d.uids(); len(got) != 2 {
		t.Errorf("processes run, and berthd has %v", got)
	}
	// The list of a runtime that starts again names the same process.
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{first, second}, []*api.Container{
		{Id: "first-1", Name: "main", PodSandboxId: first.GetId(), Pid: 1, State: api.ContainerState_CONTAINER_RUNNING},
		{Id: "second-1", Name: "main", PodSandboxId: second.GetId(), Pid: 2, State: api.ContainerState_CONTAINER_RUNNING},
	}); err != nil {
		t.Fatal(err)
	}
	again.Store(true)
	if e.policy.sweepNow(t.Context()); len(d.uids()) > 0 {
		t.Errorf("no process is left, and berthd has %v", d.uids())
	}
}

// TestNeverRan frees what a container has that was made and never got a process, once its
// sandbox's process has gone.
func TestNeverRan(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	trainer := pod("trainer", "guaranteed")
	if _, err := e.create(trainer, container(trainer, "main", "trainer-1", 2000, gib)); err != nil {
		t.Fatal(err)
	}
	if e.policy.sweepNow(t.Context()) {
		t.Error("a container that is being started has ended")
	}
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	e.policy.sweepNow(t.Context())
	if got := d.uids(); len(got) > 0 {
		t.Errorf("berthd still has %v", got)
	}
}

// TestListOfTheDead has a runtime list a container without a process in a sandbox without
// one: neither starts any more.
func TestListOfTheDead(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	trainer := pod("trainer", "guaranteed")
	c := container(trainer, "main", "trainer-1", 2000, gib)
	if _, err := e.create(trainer, c); err != nil {
		t.Fatal(err)
	}
	trainer.Pid, c.State, e.ended = 0, api.ContainerState_CONTAINER_CREATED, true
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{trainer}, []*api.Container{c}); err != nil {
		t.Fatal(err)
	}
	if got := d.uids(); len(got) > 0 {
		t.Errorf("berthd still has %v", got)
	}
	// If it starts all the same, it has a place again.
	trainer.Pid, e.ended = sandboxPID, false
	if err := e.start(trainer, c); err != nil {
		t.Error(err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"trainer-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}
}

// TestEmptyList has a runtime that tells of nothing while containers run.
func TestEmptyList(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, trainer, next := pod("web", "burstable"), pod("trainer", "guaranteed"), pod("next", "guaranteed")
	e.run(web, container(web, "main", "web-1", 500, 0))
	own := set(t, e.run(trainer, container(trainer, "main", "trainer-1", 2000, gib)))
	if _, err := e.policy.Synchronize(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"trainer-uid.main", "web-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}
	c := container(next, "main", "next-1", 4000, gib)
	if _, err := e.create(next, c); err != nil {
		t.Fatal(err)
	}
	if cpus := set(t, e.on("next-1")); cpus.Len() != 4 || cpus.Overlaps(own) {
		t.Errorf("the next container has %s, and another one %s", cpus, own)
	}
	e.mu.Lock()
	maps.DeleteFunc(e.cpus, func(id, _ string) bool { return id != "next-1" })
	e.ended = true
	e.mu.Unlock()
	e.policy.sweepNow(t.Context())
	if got := d.uids(); slices.Contains(got, "trainer-uid.main") || slices.Contains(got, "web-uid.main") {
		t.Errorf("berthd still has %v", got)
	}
}

// TestListWithoutSandboxes: a list has the containers, and not their sandboxes. They keep their CPUs, and one whose start is in progress
// still blocks others.
func TestListWithoutSandboxes(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, trainer, next := pod("web", "burstable"), pod("trainer", "guaranteed"), pod("next", "guaranteed")
	tr := container(trainer, "main", "trainer-1", 2000, gib)
	own := e.run(trainer, tr)
	w := e.made(web, container(web, "main", "web-1", 500, 0))
	e.begin(web, w)
	if _, err := e.policy.Synchronize(t.Context(), nil, []*api.Container{w, tr}); err != nil {
		t.Fatal(err)
	}
	e.pushes(2)
	if got := d.uids(); !slices.Equal(got, []string{"trainer-uid.main", "web-uid.main"}) || e.on("trainer-1") != own {
		t.Errorf("berthd has %v, and the containers are on CPUs %v", got, e.all())
	}
	n := e.made(next, container(next, "main", "next-1", 4000, gib))
	if err := e.start(next, n); err == nil {
		t.Errorf("a container starts while another one may start on its CPUs: %v", e.all())
	}
	e.complete(web, w)
	e.pushes(2)
	e.startsAlone(next, n, "web-1", "trainer-1")
}

// TestSandboxWithoutUID: a sandbox that no kubelet has made has no uid. It does not keep pods in berthd that have ended.
func TestSandboxWithoutUID(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	gone := &typesv1.Pod{Metadata: &typesv1.PodMetadata{Name: "gone", Namespace: "default", Uid: "gone-uid"},
		Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "main"}}}}
	if _, err := d.Client.Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: gone}}); err != nil {
		t.Fatal(err)
	}
	byHand := &api.PodSandbox{Id: "by-hand", Name: "by-hand", Namespace: "default", Pid: sandboxPID}
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{byHand}, nil); err != nil {
		t.Fatal(err)
	}
	if got := d.uids(); len(got) > 0 {
		t.Errorf("berthd still has %v", got)
	}
}

// TestListWithoutASandbox: a list lacks the sandbox of a container that has crashed, and the sandbox's process is there. The container
// that replaces the crashed one has its CPUs. Once the process has ended, the pod is released.
func TestListWithoutASandbox(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	trainer, next := pod("trainer", "guaranteed"), pod("next", "guaranteed")
	c := container(trainer, "main", "trainer-1", 2000, gib)
	own := set(t, e.run(trainer, c))
	e.stop(trainer, c)
	if _, err := e.policy.Synchronize(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	e.made(next, container(next, "main", "next-1", 2000, gib))
	e.made(trainer, container(trainer, "main", "trainer-2", 2000, gib))
	if got := set(t, e.on("trainer-2")); got != own {
		t.Errorf("the next container of the name is on CPUs %s, and the one before was on %s", got, own)
	}
	if _, err := e.policy.Synchronize(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	clear(e.cpus)
	e.ended = true
	e.mu.Unlock()
	e.policy.sweepNow(t.Context())
	if got := d.uids(); len(got) > 0 {
		t.Errorf("berthd still has %v", got)
	}
}

// TestListWithoutAStart: a list lacks a container whose start is in progress. It keeps its CPUs until its process shows, or until the
// start is overdue.
func TestListWithoutAStart(t *testing.T) {
	t.Parallel()
	for _, starts := range []bool{true, false} {
		t.Run(fmt.Sprint(starts), func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			now := time.Now()
			e := newEngine(t, Config{Client: d.Client, Now: func() time.Time { return now }})
			trainer := pod("trainer", "guaranteed")
			c := e.made(trainer, container(trainer, "main", "trainer-1", 2000, gib))
			own := set(t, e.on("trainer-1"))
			e.begin(trainer, c)
			if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{trainer}, nil); err != nil {
				t.Fatal(err)
			}
			e.policy.sweepNow(t.Context())
			e.made(trainer, container(trainer, "second", "trainer-2", 2000, gib))
			if second := set(t, e.on("trainer-2")); second.Len() != 2 || second.Overlaps(own) {
				t.Errorf("the second container has CPUs %s, the first one starts on %s", second, own)
			}
			if starts {
				e.complete(trainer, c)
				if got := set(t, e.on("trainer-1")); got != own {
					t.Errorf("it runs on CPUs %s, and its start was permitted on %s", got, own)
				}
				return
			}
			now = now.Add(placement.StartTime)
			e.policy.sweepNow(t.Context())
			if e.policy.node.members["trainer-1"] != nil {
				t.Error("a start that is overdue is waited for")
			}
		})
	}
}

// TestSandboxesMove keeps the processes of sandboxes on the shared CPUs.
func TestSandboxesMove(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	moved := map[int]string{}
	e := newEngine(t, Config{Client: d.Client, Host: Host{Move: func(pid int, _, _ string, cpus cpuset.Set) error {
		moved[pid] = cpus.String()
		return nil
	}}})
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	web.Pid = sandboxPID + 1
	e.run(web, container(web, "main", "web-1", 500, 0))
	if moved[sandboxPID+1] != "0-7" {
		t.Errorf("the sandbox's process is on %v", moved)
	}
	own := set(t, e.run(trainer, container(trainer, "main", "trainer-1", 2000, gib)))
	shared := set(t, "0-7").Minus(own).String()
	if !maps.Equal(moved, map[int]string{sandboxPID: shared, sandboxPID + 1: shared}) {
		t.Errorf("the sandboxes' processes are on %v, want %s", moved, shared)
	}
	late := pod("late", "burstable")
	late.Pid = sandboxPID + 2
	if err := e.policy.RunPodSandbox(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	if moved[sandboxPID+2] != shared {
		t.Errorf("a new sandbox's process is on %q, want %s", moved[sandboxPID+2], shared)
	}
}

// TestQuiet: a container's life leaves no line in the log.
func TestQuiet(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	var log bytes.Buffer
	e := newEngine(t, Config{Client: d.Client, Log: slog.New(slog.NewTextHandler(&log, nil))})
	log.Reset()
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	w, tr := container(web, "main", "web-1", 500, 0), container(trainer, "main", "trainer-1", 2000, gib)
	e.run(web, w)
	e.run(trainer, tr)
	if err := e.policy.push(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	e.stop(trainer, tr)
	e.end(trainer)
	e.end(web)
	if log.Len() > 0 {
		t.Errorf("the log has\n%s", log.String())
	}
}

// TestFailuresAreNamed: who could not be moved is named as people know him.
func TestFailuresAreNamed(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	var log bytes.Buffer
	e := newEngine(t, Config{Client: d.Client, Log: slog.New(slog.NewTextHandler(&log, nil))})
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	e.run(web, container(web, "main", "web-1", 500, 0))
	e.stuck = true
	tr := container(trainer, "main", "trainer-1", 2000, gib)
	if _, err := e.create(trainer, tr); err != nil {
		t.Fatal(err)
	}
	e.fails = map[string]bool{"web-1": true}
	if err := e.policy.push(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "main of default/web") {
		t.Errorf("the log has\n%s", log.String())
	}
	if err := e.start(trainer, tr); err == nil {
		t.Error("a container started while another one was on its CPUs")
	}
}

// TestTwoSandboxes has a pod with two sandboxes, of which the one ends that has the
// container: its place is the other's to keep, and to give back.
func TestTwoSandboxes(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	first, again, next := pod("trainer", "guaranteed"), pod("trainer", "guaranteed"), pod("next", "guaranteed")
	again.Id = "trainer-sandbox-2"
	for _, p := range []*api.PodSandbox{first, again} {
		if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	c := container(again, "main", "trainer-1", 7000, gib)
	e.run(again, c)
	e.stop(again, c)
	e.end(again)
	if got := d.uids(); !slices.Equal(got, []string{"trainer-uid.main"}) {
		t.Errorf("the pod lives, and berthd has %v", got)
	}
	n := container(next, "main", "next-1", 7000, gib)
	e.run(next, n)
	e.stop(next, n)
	e.end(next)
	e.run(first, container(first, "main", "trainer-2", 7000, gib))
	e.end(first)
	if got := d.uids(); len(got) > 0 {
		t.Errorf("berthd still has %v", got)
	}
}

// TestReplaced has a list with a container whose making was cut off, beside the one that
// was made in its place long ago and runs: the first one starts no more.
func TestReplaced(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	w := container(web, "main", "web-2", 500, 0)
	w.CreatedAt = time.Now().Add(-placement.StartTime).UnixNano()
	e.run(web, w)
	left := container(web, "main", "web-1", 500, 0)
	left.State, left.Linux.Resources.Cpu.Cpus = api.ContainerState_CONTAINER_CREATED, "0-7"
	left.CreatedAt = w.CreatedAt - 1
	again := New(e.settings)
	if _, err := again.Synchronize(t.Context(), []*api.PodSandbox{web}, []*api.Container{left, w}); err != nil {
		t.Fatal(err)
	}
	e.policy = again
	tr := container(trainer, "main", "trainer-1", 2000, gib)
	if _, err := e.create(trainer, tr); err != nil {
		t.Fatal(err)
	}
	e.startsAlone(trainer, tr, "web-2")
}

// TestPassedWithoutCPUs: a container that was let pass while the shared CPUs are unknown may run anywhere until its
// process is seen. No container with exclusive CPUs starts before.
func TestPassedWithoutCPUs(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	d.stop()
	e := newEngine(t, Config{Client: d.Client, PassNamespaces: []string{"kube-system"}})
	system, own := pod("system", "burstable"), pod("own", "guaranteed")
	system.Namespace = "kube-system"
	c, o := container(system, "main", "system-1", 100, 0), container(own, "main", "own-1", 2000, gib)
	if _, err := e.create(system, c); err != nil {
		t.Fatal(err)
	}
	e.put("system-1", "0-7") // the runtime's choice
	d.again()
	if _, err := e.create(own, o); err != nil {
		t.Fatal(err)
	}
	if err := e.start(own, o); err == nil || !strings.Contains(err.Error(), "container main of kube-system/system") {
		t.Errorf("a container starts on CPUs %s while another one may run there: %v", e.on("own-1"), err)
	}
	if err := e.start(system, c); err != nil {
		t.Fatal(err)
	}
	e.follow()
	e.startsAlone(own, o, "system-1")
}

// TestPassedBeforeBerthdAnswers: berth-nri was started again while berthd is away. Containers that are let pass start on
// the CPUs that are shared according to the processes of the node.
func TestPassedBeforeBerthdAnswers(t *testing.T) {
	t.Parallel()
	for name, sandboxes := range map[string]string{"sandboxes on all CPUs": "0-7", "sandboxes on the shared CPUs": "0,3-7",
		"of an older state": "0,2-4", "no sandbox has a process": "0-7"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			e := newEngine(t, Config{Client: d.Client, PassNamespaces: []string{"kube-system"}, Host: Host{Online: online}})
			p, web := pod("own", "guaranteed"), pod("web", "burstable")
			if name == "no sandbox has a process" {
				p.Pid, web.Pid = 0, 0
			}
			c, w := container(p, "main", "own-1", 2000, gib), container(web, "main", "web-1", 100, 0)
			own := set(t, e.run(p, c))
			e.run(web, w)
			d.stop()
			inner := e.policy.kernel.cpus
			e.settings.CPUsOf = func(pid int) (cpuset.Set, error) {
				if pid == sandboxPID {
					return set(t, sandboxes), nil
				}
				return inner(pid)
			}
			e.policy = New(e.settings)
			if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{p, web}, []*api.Container{c, w}); err != nil {
				t.Fatal(err)
			}
			system := pod("system", "burstable")
			system.Namespace = "kube-system"
			adjust, err := e.create(system, container(system, "main", "system-1", 100, 0))
			if err != nil {
				t.Fatal(err)
			}
			want := set(t, sandboxes).Minus(own)
			if got := adjust.GetLinux().GetResources().GetCpu().GetCpus(); got != want.String() {
				t.Errorf("a container of kube-system starts on CPUs %q, want %s", got, want)
			}
			d.again()
		})
	}
}
