package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/managers/cpuset"
)

// TestPassedStartWaits: what berthd refuses or does not answer is let pass, and not a start on CPUs where another container may be.
func TestPassedStartWaits(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("berthd is away: %v", away), func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			e := newEngine(t, Config{Client: d.Client, Pass: true})
			web, job := pod("web", "burstable"), pod("job", "guaranteed")
			w := e.made(web, container(web, "main", "web-1", 100, 0))
			e.begin(web, w)
			c := e.made(job, container(job, "main", "job-1", 4000, gib))
			if away {
				d.stop()
				defer d.again()
			}
			err := e.start(job, c)
			if err == nil || !strings.Contains(err.Error(), "container main of default/web, which is being started") {
				t.Errorf("a container starts on CPUs %s while another one may be on them: %v", e.on("job-1"), err)
			}
			e.complete(web, w)
			if err := e.start(job, c); err != nil {
				t.Errorf("the other container runs on CPUs %s: %v", e.on("web-1"), err)
			}
		})
	}
}

// TestPassedBesideALateContainer: berth-nri is told of a container with CPUs of its own after it has estimated the shared CPUs without
// berthd.
func TestPassedBesideALateContainer(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, Pass: true, Host: Host{Online: online}})
	p, web := pod("own", "guaranteed"), pod("web", "burstable")
	c := container(p, "main", "own-1", 2000, gib)
	e.run(p, c)
	d.stop()
	e.renew(e.settings)
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{p}, nil); err != nil {
		t.Fatal(err)
	}
	if err := e.policy.PostStartContainer(t.Context(), p, c); err != nil {
		t.Fatal(err)
	}
	e.run(web, container(web, "main", "web-1", 100, 0))
	e.alone("own-1")
	d.again()
}

// TestPassedWithNoCPULeft: no CPU is known to be shared, and berthd is away. A container that is let pass starts on CPUs of others: none
// would start otherwise, also the one of berthd.
func TestPassedWithNoCPULeft(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, Pass: true})
	p, web := pod("own", "guaranteed"), pod("web", "burstable")
	e.run(p, container(p, "main", "own-1", 4000, gib))
	d.stop()
	e.policy.view.shared = cpuset.Set{} // all are of claims or containers that berthd has lost
	if got := e.run(web, container(web, "main", "web-1", 100, 0)); got != "" {
		t.Errorf("it starts on CPUs %q", got)
	}
	d.again()
}

// TestPassedRunsOnSharedCPUs: a container that was let pass runs on as many shared CPUs as it requests. They are shared also when berthd is
// away while the runtime connects again.
func TestPassedRunsOnSharedCPUs(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, Pass: true})
	p, big, web := pod("own", "guaranteed"), pod("big", "guaranteed"), pod("web", "burstable")
	c, b := container(p, "main", "own-1", 5000, gib), container(big, "main", "big-1", 3000, gib)
	w := container(web, "main", "web-1", 100, 0)
	e.run(p, c)
	e.run(web, w)
	if got := set(t, e.run(big, b)); got.Len() != 3 {
		t.Fatalf("this is no case of the test: it runs on CPUs %s", got)
	}
	d.stop()
	e.stop(p, c)
	e.end(p)
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{big, web}, []*api.Container{b, w}); err != nil {
		t.Fatal(err)
	}
	d.again()
	e.stuck = true // it does not leave them yet
	e.pushes(1)
	if m := e.policy.node.members["big-1"]; m.own.IsEmpty() || !e.policy.view.forgotten.IsSubsetOf(m.own) {
		t.Errorf("it is to have CPUs %s, runs on %s, and these are not shared: %s", m.own, e.on("big-1"), e.policy.view.forgotten)
	}
}

// TestStartedWithoutBerthd: a container starts although berthd does not answer. When it answers again, it gets the id of the container.
func TestStartedWithoutBerthd(t *testing.T) {
	t.Parallel()
	for _, pass := range []bool{true, false} { // or the runtime starts it anyway
		t.Run(fmt.Sprintf("let pass: %v", pass), func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			e := startsAnyway(t, Config{Client: d.Client, Pass: pass})
			p := pod("own", "guaranteed")
			c := e.made(p, container(p, "main", "own-1", 2000, gib))
			e.pushes(1)
			d.stop()
			e.startAnyway(p, c)
			d.again()
			e.pushes(2)
			list, err := d.Allocation().List(t.Context(), &allocationv1.ListRequest{})
			if err != nil || !slices.Equal(list.GetPods()[0].GetContainers()[0].GetContainerIds(), []string{"own-1"}) {
				t.Errorf("berthd has %v, %v", list, err)
			}
		})
	}
}
