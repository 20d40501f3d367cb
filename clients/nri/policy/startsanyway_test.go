package policy

import (
	"fmt"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/clients/nri/abilities"
	"github.com/berthd/berth/managers/placement"
)

// startsAnyway returns a runtime that starts a container although a plugin refuses the start.
func startsAnyway(t *testing.T, c Config) *engine {
	t.Helper()
	e := newEngine(t, c)
	if _, err := e.policy.Configure(t.Context(), "", "cri-o", "1.36.3"); err != nil {
		t.Fatal(err)
	}
	return e
}

// startAnyway starts a container, whatever the policy says.
func (e *engine) startAnyway(p *api.PodSandbox, c *api.Container) {
	e.t.Helper()
	e.calls.Lock()
	_ = e.policy.StartContainer(e.t.Context(), p, c)
	e.calls.Unlock()
	e.complete(p, c)
}

// vanish ends the process of a container without an event.
func (e *engine) vanish(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.cpus, id)
}

// alone fails unless a container is alone on its CPUs.
func (e *engine) alone(id string) {
	e.t.Helper()
	if others := e.onCPUsOf(id); len(others) > 0 {
		e.t.Errorf("on CPUs %s of %s run %v", e.on(id), id, others)
	}
}

// TestRefusedCreationSendsNothing: the answer that refuses a creation moves nobody. A container without a process, which the next answer
// is to move, has its old CPUs until then.
func TestRefusedCreationSendsNothing(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{0, placement.StartTime} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			now := time.Unix(1000, 0)
			e := startsAnyway(t, Config{Client: d.Client, Now: func() time.Time { return now }})
			hung, web, job := pod("hung", "burstable"), pod("web", "burstable"), pod("job", "guaranteed")
			h := container(hung, "main", "hung-1", 100, 0)
			e.run(hung, h)
			w := e.made(web, container(web, "main", "web-1", 100, 0))
			if _, err := e.policy.StopContainer(t.Context(), hung, h); err != nil { // its process hangs
				t.Fatal(err)
			}
			now = now.Add(late)
			e.policy.sweepNow(t.Context())
			if _, err := e.create(job, container(job, "main", "job-1", 4000, gib)); err == nil {
				t.Fatal("a container is made for CPUs on which the process of another one hangs")
			}
			e.vanish("hung-1")
			c := container(job, "main", "job-2", 4000, gib)
			if _, err := e.create(job, c); err != nil {
				t.Fatalf("the creation is refused although the answer can move the others: %v", err)
			}
			e.startAnyway(job, c)
			e.startAnyway(web, w)
			e.alone("job-2")
		})
	}
}

// TestRequestOvertakesAnswer: a requested update is carried out after the answer that moves the same container. While it would bring the
// container to CPUs of a new one, this is not made.
func TestRequestOvertakesAnswer(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := startsAnyway(t, Config{Client: d.Client})
	web, was, job := pod("web", "burstable"), pod("was", "guaranteed"), pod("job", "guaranteed")
	first, c, requests := container(was, "main", "was-1", 4000, gib), container(job, "main", "job-1", 4000, gib), 0
	e.run(web, container(web, "main", "web-1", 100, 0))
	e.run(was, first)
	e.stop(was, first)
	e.end(was)
	e.before = func([]*api.ContainerUpdate) { // the shared CPUs have grown
		if requests++; requests > 1 {
			e.alone("job-1")
		} else if _, err := e.create(job, c); err == nil {
			e.startAnyway(job, c)
		}
	}
	if e.pushes(1); requests == 0 {
		t.Fatal("nothing was requested")
	}
	if e.before = nil; e.on("job-1") == "" {
		e.run(job, c)
	}
	e.alone("job-1")
}

// TestUnstoredIsNotMoved: the runtime skips updates of a container that it does not store yet, without an error. One that it made without
// CPUs of berth-nri's may be anywhere until it is stored.
func TestUnstoredIsNotMoved(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	d.stop()
	e := startsAnyway(t, Config{Client: d.Client, PassNamespaces: []string{"kube-system"}})
	system, job := pod("system", "burstable"), pod("job", "guaranteed")
	system.Namespace, system.Pid = "kube-system", 0
	s, c := container(system, "main", "system-1", 100, 0), container(job, "main", "job-1", 4000, gib)
	adjust, _, err := e.policy.CreateContainer(t.Context(), system, s)
	if err != nil || adjust.GetLinux().GetResources().GetCpu().GetCpus() != "" {
		t.Fatalf("this is no case of the test: %v, %v", adjust, err)
	}
	d.again()
	if _, err := e.create(job, c); err == nil {
		t.Error("a container is made for CPUs on which another one may be made")
	}
	e.put("system-1", "0-7")
	if err := e.policy.PostCreateContainer(t.Context(), system, s); err != nil {
		t.Fatal(err)
	}
	e.made(job, c)
	e.startAnyway(job, c)
	e.startAnyway(system, s)
	e.alone("job-1")
}

// TestOnlyWhatIsInTheWayHasToMove: the creation of a container with CPUs of its own fails if one that may be on these cannot be moved, and
// not for others in the same answer.
func TestOnlyWhatIsInTheWayHasToMove(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := startsAnyway(t, Config{Client: d.Client, Unsolicited: abilities.UnsolicitedNever})
	web, was := pod("web", "burstable"), pod("was", "guaranteed")
	first := container(was, "main", "was-1", 3000, gib)
	e.run(was, first)
	e.run(web, container(web, "main", "web-1", 100, 0)) // on the CPUs that are left
	e.stop(was, first)
	e.end(was)
	for i, row := range []struct {
		name string
		must bool
	}{{"web gets CPUs besides", false}, {"web leaves CPUs", true}} {
		job := pod(fmt.Sprint("job", i), "guaranteed")
		_, updates, err := e.policy.CreateContainer(t.Context(), job, container(job, "main", job.Name+"-1", 2000, gib))
		if err != nil || len(updates) != 1 || updates[0].GetContainerId() != "web-1" || updates[0].GetIgnoreFailure() == row.must {
			t.Errorf("%s: %v, %v", row.name, updates, err)
		}
		e.apply(updates)
	}
}
