package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/managers/cpuset"
)

// madeUpQuotas are those of pods' cgroups.
type madeUpQuotas struct {
	mu   sync.Mutex
	of   map[string]int64
	fail error
}

func (q *madeUpQuotas) set(cgroup string, quota int64) (before int64, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, ok := q.of[cgroup]
	if !ok {
		return 0, fs.ErrNotExist
	}
	if q.fail != nil {
		return 0, q.fail
	}
	if quota != 0 {
		q.of[cgroup] = quota
	}
	return before, nil
}

func (q *madeUpQuotas) put(cgroup string, quota int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of[cgroup] = quota
}

func (q *madeUpQuotas) get(cgroup string) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.of[cgroup]
}

// TestPodQuota: the cgroup of a pod has no quota while a container of the pod has exclusive CPUs. Other pods keep
// theirs. The kubelet's last quota comes back at the end, also from a berth-nri that was started later.
func TestPodQuota(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	const own, shared = "/kubepods/podown", "/kubepods/burstable/podshared"
	q := &madeUpQuotas{of: map[string]int64{own: 200_000, shared: 50_000}}
	e := newEngine(t, Config{Client: d.Client, Host: Host{PodQuota: q.set}})
	e.follow()
	pods := []*api.PodSandbox{pod("own", "guaranteed"), pod("shared", "burstable")}
	containers := []*api.Container{container(pods[0], "main", "own-1", 2000, gib), container(pods[1], "main", "shared-1", 100, 0)}
	for i, p := range pods {
		e.run(p, containers[i])
	}
	eventually(t, "the pod has no quota", func() bool { return q.get(own) == -1 })
	q.put(own, 300_000) // the kubelet, for a resize
	e.policy.agenda.kick()
	eventually(t, "the pod has no quota again", func() bool { return q.get(own) == -1 })

	// A quota that cannot be changed keeps nothing from happening.
	q.mu.Lock()
	q.fail = errors.New("read-only file system")
	q.mu.Unlock()
	late := pod("late", "guaranteed")
	if got := e.run(late, container(late, "main", "late-1", 1000, gib)); got == "" {
		t.Error("a container has no CPUs")
	}
	q.mu.Lock()
	q.fail = nil
	q.mu.Unlock()

	all := Everything{CPUs: cpuset.Of(0, 1, 2, 3, 4, 5, 6, 7)}
	if err := e.policy.Release(t.Context(), e, all); err != nil {
		t.Fatal(err)
	}
	if q.get(own) != 300_000 || q.get(shared) != 50_000 {
		t.Errorf("at the end: %v", q.of)
	}
}

// TestPodQuotaTakenOver: what an earlier berth-nri has removed is restored to the runtime's value.
func TestPodQuotaTakenOver(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	const own = "/kubepods/podown"
	q := &madeUpQuotas{of: map[string]int64{own: -1}}
	e := newEngine(t, Config{Client: d.Client, Host: Host{PodQuota: q.set}})
	p := pod("own", "guaranteed")
	p.Linux.PodResources = &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(200_000)}}
	c := container(p, "main", "own-1", 2000, gib)
	e.run(p, c)
	if _, _, err := e.policy.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The container ends, and the pod stays: nothing needs a pod without quota.
	e.stop(p, c)
	if _, _, err := e.policy.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := q.get(own); got != 200_000 {
		t.Errorf("the pod has the quota %d", got)
	}
}

// TestPodQuotaAfterAnotherBerth: an earlier berth-nri has removed the quota of a pod, and this one does not know the
// pod's place, because berthd is away, or knows that the pod has no exclusive CPUs any more. The pod gets its quota
// back, and at the end every sandbox gets its CPUs back.
func TestPodQuotaAfterAnotherBerth(t *testing.T) {
	t.Parallel()
	const own, burst = "/kubepods/podown", "/kubepods/burstable/podburst"
	for name, change := range map[string]struct {
		berthd   func(d *daemon)
		ended    bool // the container with exclusive CPUs
		released bool
	}{
		"berthd is away":          {berthd: func(d *daemon) { d.stop() }, released: true},
		"the container has ended": {ended: true},
		"quotas stay, by the configuration": {berthd: func(d *daemon) {
			d.stop()
			d.config.Cgroups.QuotaWithExclusiveCPUs = true
			d.again()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			q := &madeUpQuotas{of: map[string]int64{own: 250_000, burst: -1}}
			moved := map[string]cpuset.Set{}
			e := newEngine(t, Config{Client: d.Client, Host: Host{PodQuota: q.set,
				Move: func(_ int, _, cgroup string, cpus cpuset.Set) error { moved[cgroup] = cpus; return nil }}})
			p, b := pod("own", "guaranteed"), pod("burst", "burstable")
			// A runtime sums up the limits, although a container of the burstable pod has none.
			p.Linux.PodResources = &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(250_000)}}
			b.Linux.PodResources = &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(50_000)}}
			c, side, bc := container(p, "main", "own-1", 2000, gib), container(p, "side", "own-2", 500, gib),
				container(b, "main", "burst-1", 500, 0)
			e.run(p, c)
			e.run(p, side)
			e.run(b, bc)
			e.pushes(1)
			if got := q.get(own); got != -1 {
				t.Fatalf("the pod has the quota %d", got)
			}
			if change.berthd != nil {
				change.berthd(d)
			}
			c.Linux.Resources.Cpu.Quota = api.Int64(-1) // as the runtime has it
			if change.ended {
				e.mu.Lock()
				delete(e.cpus, "own-1")
				e.mu.Unlock()
				c.State, c.Pid = api.ContainerState_CONTAINER_STOPPED, 0
			}
			returned := map[string]int64{}
			e.before = func(updates []*api.ContainerUpdate) {
				for _, u := range updates {
					if quota := u.GetLinux().GetResources().GetCpu().GetQuota(); quota != nil {
						returned[u.GetContainerId()] = quota.GetValue()
					}
				}
			}
			e.policy = New(e.settings)
			updates, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{p, b}, []*api.Container{c, side, bc})
			if err != nil {
				t.Fatal(err)
			}
			e.before(updates)
			if change.released {
				all := cpuset.Of(0, 1, 2, 3, 4, 5, 6, 7)
				if err := e.policy.Release(t.Context(), e, Everything{CPUs: all}); err != nil {
					t.Fatal(err)
				}
				if moved[own] != all || moved[burst] != all {
					t.Errorf("the sandboxes are on %v", moved)
				}
			} else {
				e.pushes(3)
			}
			if q.get(own) != 250_000 || q.get(burst) != -1 {
				t.Errorf("the pods have the quotas %v", q.of)
			}
			if got := returned["own-1"]; !change.ended && got != 200_000 {
				t.Errorf("the container gets the quota %d", got)
			}
			if change.released {
				d.again()
			}
		})
	}
}

// TestPodLevelQuota: a pod with pod-level resources keeps its quota while a container has no other limit. Container by
// container, each has the pod's amount.
func TestPodLevelQuota(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	const own = "/kubepods/podown"
	q := &madeUpQuotas{of: map[string]int64{own: 200_000}}
	e := newEngine(t, Config{Client: d.Client, Host: Host{PodQuota: q.set}})
	p := pod("own", "guaranteed")
	one, two := container(p, "one", "own-1", 2000, gib), container(p, "two", "own-2", 2000, gib)
	p.Linux.PodResources = one.Linux.Resources.Copy()
	for _, step := range []struct {
		do   func()
		want int64
	}{
		{func() { e.run(p, one) }, -1},
		{func() { e.run(p, two) }, 200_000},
		{func() { e.stop(p, two) }, -1},
		{func() { e.stop(p, one) }, 200_000},
	} {
		step.do()
		e.pushes(1)
		if got := q.get(own); got != step.want {
			t.Errorf("the containers have CPUs %v, and the pod the quota %d, want %d", e.all(), got, step.want)
		}
	}
}

// TestPodQuotaIsTheKubelets: a quota that the kubelet has set later is not replaced by an older one.
func TestPodQuotaIsTheKubelets(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	const own = "/kubepods/podown"
	q := &madeUpQuotas{of: map[string]int64{own: 200_000}}
	e := newEngine(t, Config{Client: d.Client, Host: Host{PodQuota: q.set}})
	p := pod("own", "guaranteed")
	e.run(p, container(p, "main", "own-1", 2000, gib))
	e.pushes(1)
	q.put(own, 300_000) // the kubelet, for a resize
	if err := e.policy.Release(t.Context(), e, Everything{CPUs: cpuset.Of(0, 1, 2, 3, 4, 5, 6, 7)}); err != nil {
		t.Fatal(err)
	}
	if got := q.get(own); got != 300_000 {
		t.Errorf("the kubelet's quota of 300000 became %d", got)
	}
}

// TestPodQuotaAfterAResize: the kubelet sets the quota of a pod again when it resizes the pod, after the events of the resize. The quota is
// removed soon after, without another event.
func TestPodQuotaAfterAResize(t *testing.T) {
	t.Parallel()
	for name, resize := range map[string]func(e *engine, p *api.PodSandbox, other *api.Container) error{
		"of a container": func(e *engine, p *api.PodSandbox, other *api.Container) error {
			_, err := e.resize(p, other, size(400, 400, gib))
			return err
		},
		"of the pod": func(e *engine, p *api.PodSandbox, _ *api.Container) error {
			return e.policy.PostUpdatePodSandbox(e.t.Context(), p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			const own = "/kubepods/podown"
			q := &madeUpQuotas{of: map[string]int64{own: 250_000}}
			e := newEngine(t, Config{Client: d.Client, Host: Host{PodQuota: q.set}})
			p := pod("own", "guaranteed")
			other := container(p, "other", "own-2", 500, gib)
			e.run(p, container(p, "main", "own-1", 2000, gib))
			e.run(p, other)
			e.pushes(1)
			for len(e.policy.agenda.kicked) > 0 {
				<-e.policy.agenda.kicked
			}
			if err := resize(e, p, other); err != nil {
				t.Fatal(err)
			}
			q.put(own, 240_000)
			eventually(t, "the policy compares again", func() bool {
				select {
				case <-e.policy.agenda.kicked:
					e.pushes(1)
				default:
				}
				return q.get(own) == -1
			})
		})
	}
}

// TestPodQuotaFailureIsLoggedOnce: the same failures of several pods are one line, in whatever order they are found.
func TestPodQuotaFailureIsLoggedOnce(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	var log strings.Builder
	e := newEngine(t, Config{Client: d.Client, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Host: Host{PodQuota: func(cgroup string, _ int64) (int64, error) {
			return 0, fmt.Errorf("openat %s/cpu.max: read-only file system", cgroup)
		}}})
	for _, n := range []string{"a", "b", "c", "d"} {
		p := pod(n, "guaranteed")
		e.run(p, container(p, "main", n+"-1", 1000, gib))
	}
	e.pushes(20)
	text := log.String()
	if strings.Count(text, "quota of pods") != 1 || !strings.Contains(text, "pods=4") ||
		!strings.Contains(text, "default/c keeps its CPU quota") || strings.Contains(text, "default/d keeps") {
		t.Errorf("the log of 20 passes:\n%s", text)
	}
}
