package policy

import (
	"fmt"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

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
