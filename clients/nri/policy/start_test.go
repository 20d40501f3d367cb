package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/managers/placement"
)

// begin requests a start that takes its time: the container has no process yet.
func (e *engine) begin(p *api.PodSandbox, c *api.Container) {
	e.t.Helper()
	if err := e.policy.StartContainer(e.t.Context(), p, c); err != nil {
		e.t.Fatalf("start %s: %v", c.GetId(), err)
	}
}

// complete gives a container whose start was requested its process.
func (e *engine) complete(p *api.PodSandbox, c *api.Container) {
	e.t.Helper()
	e.mu.Lock()
	e.next++
	c.Pid, c.State = uint32(e.next), api.ContainerState_CONTAINER_RUNNING
	e.pids[e.next] = c.GetId()
	e.mu.Unlock()
	if err := e.policy.PostStartContainer(e.t.Context(), p, c); err != nil {
		e.t.Fatal(err)
	}
}

// made creates a container that does not run yet.
func (e *engine) made(p *api.PodSandbox, c *api.Container) *api.Container {
	e.t.Helper()
	if _, err := e.create(p, c); err != nil {
		e.t.Fatalf("create %s: %v", c.GetId(), err)
	}
	return c
}

// TestStartThatWasGivenUp: the kubelet gives up a start that the runtime completes later, and makes another container of that
// name. No container with exclusive CPUs starts on CPUs of the first one, from its start until it has left them.
func TestStartThatWasGivenUp(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		completes string // when the runtime completes the start
		restarts  bool   // berth-nri is started again before that
	}{
		"before the next container starts":  {completes: "first"},
		"after an exclusive one is created": {completes: "last"},
		"never":                             {},
		"before, and berth-nri is new":      {completes: "first", restarts: true},
		"after, and berth-nri is new":       {completes: "last", restarts: true},
		"never, and berth-nri is new":       {restarts: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			late := time.Duration(0)
			e := newEngine(t, Config{Client: d.Client, Now: func() time.Time { return time.Unix(1000, 0).Add(late) }})
			web, job := pod("web", "burstable"), pod("job", "guaranteed")
			first := e.made(web, container(web, "main", "web-1", 100, 0))
			e.begin(web, first)
			second := e.made(web, container(web, "main", "web-2", 100, 0))
			if row.completes == "first" {
				e.complete(web, first)
			}
			if err := e.start(web, second); err != nil {
				t.Fatalf("the next container of the name does not start: %v", err)
			}
			if row.restarts {
				e.policy = New(e.settings)
				if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{web}, []*api.Container{first, second}); err != nil {
					t.Fatal(err)
				}
			}
			c := e.made(job, container(job, "main", "job-1", 4000, gib))
			e.pushes(2)
			err := e.start(job, c)
			if row.completes != "first" && (err == nil || !strings.Contains(err.Error(),
				"container main of default/web, which is being started")) {
				t.Fatalf("a container with exclusive CPUs starts while the start of another one may be completed: %v", err)
			}
			if row.completes == "last" {
				e.complete(web, first)
			}
			if row.completes == "" {
				e.put("web-1", "")
				late = placement.StartTime
			}
			for i := 0; err != nil && i < 5; i++ {
				e.pushes(1)
				err = e.start(job, c)
			}
			own := set(t, e.on("job-1"))
			if err != nil || own.Overlaps(set(t, e.on("web-1"))) || own.Overlaps(set(t, e.on("web-2"))) {
				t.Errorf("the exclusive container: %v; containers run on %v", err, e.all())
			}
		})
	}
}

// TestStartOutlivesItsPod: the start of a container with exclusive CPUs is in progress when its pod ends, and may have been given up
// before. The CPUs stay the pod's until the process has ended, or the time of the start is over, even if berth-nri starts again.
func TestStartOutlivesItsPod(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{false, true} {
		for row := range 4 {
			completes, renewed := row%2 == 1, row/2 == 1
			t.Run(fmt.Sprintf("replaced %v, completes %v, new policy %v", replaced, completes, renewed), func(t *testing.T) {
				t.Parallel()
				d := startBerthd(t)
				late := time.Duration(0)
				e := newEngine(t, Config{Client: d.Client, Now: func() time.Time { return time.Unix(1000, 0).Add(late) }})
				job, other := pod("job", "guaranteed"), pod("other", "guaranteed")
				first := e.made(job, container(job, "main", "job-1", 4000, gib))
				e.begin(job, first)
				if replaced {
					second := container(job, "main", "job-2", 4000, gib)
					e.run(job, second)
					e.stop(job, second)
				}
				if err := e.policy.StopPodSandbox(t.Context(), job); err != nil {
					t.Fatal(err)
				}
				if renewed {
					job.Pid = 0
					e.renew(e.settings)
					if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{first}); err != nil {
						t.Fatal(err)
					}
				}
				if completes {
					e.complete(job, first)
				}
				if err := e.policy.RemovePodSandbox(t.Context(), job); err != nil {
					t.Fatal(err)
				}
				e.pushes(2)
				if got := d.uids(); !slices.Equal(got, []string{"job-uid.main"}) {
					t.Errorf("the process of an ended pod may run, and berthd has %v", got)
				}
				if _, err := e.create(other, container(other, "main", "other-0", 4000, gib)); err == nil {
					t.Error("another container gets CPUs on which the process may run")
				}
				if completes {
					e.mu.Lock()
					delete(e.cpus, "job-1")
					e.mu.Unlock()
				} else {
					late = placement.StartTime
				}
				e.pushes(2)
				if e.run(other, container(other, "main", "other-1", 4000, gib)); !slices.Equal(d.uids(), []string{"other-uid.main"}) {
					t.Errorf("berthd has %v", d.uids())
				}
			})
		}
	}
}

// TestProcessOfAnUnknownContainer: the runtime starts a container that no earlier event has told of. No other container starts on
// CPUs that it has.
func TestProcessOfAnUnknownContainer(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, job := pod("web", "burstable"), pod("job", "guaranteed")
	w := container(web, "main", "web-1", 100, 0)
	e.put("web-1", "0-7")
	e.complete(web, w)
	c := e.made(job, container(job, "main", "job-1", 4000, gib))
	if err := e.start(job, c); err == nil {
		t.Errorf("a container starts on CPUs %s, and an unknown one runs on %s", e.on("job-1"), e.on("web-1"))
	}
	e.pushes(2)
	e.startsAlone(job, c, "web-1")
	if got := d.uids(); !slices.Equal(got, []string{"job-uid.main", "web-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}
}

// TestRefusedStartsLeaveNoID: a container whose start is refused again and again leaves no id in berthd.
func TestRefusedStartsLeaveNoID(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, job := pod("web", "burstable"), pod("job", "guaranteed")
	e.run(web, container(web, "main", "web-1", 100, 0))
	e.stuck = true // it does not leave the CPUs
	for i := range 5 {
		if c := e.made(job, container(job, "main", fmt.Sprint("job-", i), 4000, gib)); e.start(job, c) == nil {
			t.Fatal("a container starts while another one is on its CPUs")
		}
	}
	e.stuck = false
	e.pushes(2)
	e.run(job, container(job, "main", "job-9", 4000, gib))
	list, err := d.Allocation().List(t.Context(), &allocationv1.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.GetPods() {
		if ids := p.GetContainers()[0].GetContainerIds(); len(ids) != 1 {
			t.Errorf("berthd has containers %v of %s, want the one that runs", ids, p.GetUid())
		}
	}
}

// TestPassedLives: a container that was let pass has lives like any other. While its start may be completed, no container with exclusive
// CPUs starts where it may run, even if its pod has ended or the start was given up. After its end, nobody waits for a process that was
// never seen.
func TestPassedLives(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		then func(e *engine, p *api.PodSandbox, c *api.Container) error
		over time.Duration // until it is in nobody's way
	}{
		"its pod ends during the start": {over: placement.StartTime,
			then: func(e *engine, p *api.PodSandbox, _ *api.Container) error {
				return e.policy.StopPodSandbox(e.t.Context(), p)
			}},
		"the start is given up": {over: placement.StartTime,
			then: func(e *engine, p *api.PodSandbox, c *api.Container) error {
				next := e.made(p, container(p, c.Name, "system-2", 64_000, gib))
				return e.start(p, next)
			}},
		"it has ended": {over: ending,
			then: func(e *engine, p *api.PodSandbox, c *api.Container) error {
				_, err := e.policy.StopContainer(e.t.Context(), p, c)
				return err
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			late := time.Duration(0)
			e := newEngine(t, Config{Client: d.Client, PassNamespaces: []string{"kube-system"},
				Now: func() time.Time { return time.Unix(1000, 0).Add(late) }})
			system, job := pod("system", "guaranteed"), pod("job", "guaranteed")
			system.Namespace = "kube-system"
			c := e.made(system, container(system, "main", "system-1", 64_000, gib)) // berthd refuses it
			e.begin(system, c)
			if err := row.then(e, system, c); err != nil {
				t.Fatal(err)
			}
			o := e.made(job, container(job, "main", "job-1", 4000, gib))
			e.pushes(2)
			if err := e.start(job, o); err == nil || !strings.Contains(err.Error(), "container main of kube-system/system") {
				t.Errorf("a container starts on CPUs %s while another one may run there: %v", e.on("job-1"), err)
			}
			late = row.over
			e.put("system-1", "")
			e.pushes(2)
			if err := e.start(job, o); err != nil {
				t.Errorf("nothing is on CPUs %s any more: %v", e.on("job-1"), err)
			}
		})
	}
}
