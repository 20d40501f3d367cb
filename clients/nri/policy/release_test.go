package policy

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/managers/cpuset"
)

// TestRelease: an orderly end gives all containers all CPUs again, and exclusive ones their quota. Nothing
// is placed afterwards.
func TestRelease(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	moved := ""
	e := newEngine(t, Config{Client: d.Client,
		Host: Host{Move: func(_ int, _, _ string, cpus cpuset.Set) error { moved = cpus.String(); return nil }}})
	shared, own := pod("shared", "burstable"), pod("own", "guaranteed")
	e.run(shared, container(shared, "main", "shared-1", 100, 0))
	if got := e.run(own, container(own, "main", "own-1", 2000, gib)); got == "0-7" {
		t.Fatalf("the container has CPUs %s", got)
	}
	quotas, tries := map[string]int64{}, 0
	e.before = func(updates []*api.ContainerUpdate) {
		tries++
		for _, u := range updates {
			if r := u.GetLinux().GetResources(); r.GetCpu().GetQuota() != nil {
				quotas[u.GetContainerId()] = r.GetCpu().GetQuota().GetValue()
			}
			if got := u.GetLinux().GetResources().GetCpu().GetMems(); got != "0-1" {
				t.Errorf("container %s gets memory nodes %q", u.GetContainerId(), got)
			}
		}
	}
	all := Everything{CPUs: cpuset.Of(0, 1, 2, 3, 4, 5, 6, 7), Mems: "0-1"}

	// A runtime that does not carry out updates, or does not answer: the end says so, and names the containers.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, r := range []Updater{deaf{}, hangs{}} {
		if err := e.policy.Release(ctx, r, all); err == nil || !strings.Contains(err.Error(), "main of default/own") ||
			!strings.Contains(err.Error(), "main of default/shared") {
			t.Errorf("updates without effect: %v", err)
		}
	}
	if err := e.policy.Release(t.Context(), e, all); err != nil {
		t.Fatal(err)
	}
	for id, cpus := range e.all() {
		if cpus != "0-7" {
			t.Errorf("container %s has CPUs %s", id, cpus)
		}
	}
	if len(quotas) != 1 || quotas["own-1"] != 200_000 || moved != "0-7" || tries != 1 {
		t.Errorf("quotas %v, the sandboxes are on %s, %d tries", quotas, moved, tries)
	}
	late := pod("late", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	adjust, updates, err := e.policy.CreateContainer(t.Context(), late, container(late, "main", "late-1", 2000, gib))
	if adjust != nil || updates != nil || err != nil {
		t.Errorf("a container after the end: %v, %v, %v", adjust, updates, err)
	}
	if updates, err := e.policy.UpdateContainer(t.Context(), own, container(own, "main", "own-1", 2000, gib),
		&api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(uint64(512))}}); updates != nil || err != nil {
		t.Errorf("a resize after the end: %v, %v", updates, err)
	}
}

// TestReleaseOfClaims: a container with a claim gets the quota of its limit again, with what the kubelet has added for the claim.
func TestReleaseOfClaims(t *testing.T) {
	t.Parallel()
	for tier, row := range map[string]struct {
		limit, want int64 // in milli-CPU
		later       bool  // berth-nri was started again, and the runtime has no quota
	}{"burstable": {1000, 3000, false}, "guaranteed": {500, 2500, true}} {
		d := startPooled(t)
		d.claims()
		e := newEngine(t, Config{Client: d.Client})
		p := pod("user", tier)
		c := using(container(p, "main", "user-1", 500, gib), "claim-1:left")
		c.Linux.Resources = size(500, row.limit+2000, 3*gib)
		e.run(p, c)
		if row.later {
			c.Linux.Resources.Cpu.Quota = api.Int64(int64(-1))
			e.policy = New(e.settings)
			if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{p}, []*api.Container{c}); err != nil {
				t.Fatal(err)
			}
		}
		quota := int64(0)
		e.before = func(updates []*api.ContainerUpdate) {
			for _, u := range updates {
				quota = u.GetLinux().GetResources().GetCpu().GetQuota().GetValue()
			}
		}
		if err := e.policy.Release(t.Context(), e, Everything{CPUs: cpuset.Of(0, 1, 2, 3, 4, 5, 6, 7)}); err != nil {
			t.Fatal(err)
		}
		if quota != row.want*100 {
			t.Errorf("%s: the container gets the quota %d, want %d", tier, quota, row.want*100)
		}
	}
}

// TestReleaseWithOfflineCPUs: containers get CPUs that are offline, too, and the kernel shows only those that are online.
func TestReleaseWithOfflineCPUs(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	inner, online := e.policy.kernel.cpus, cpuset.Of(0, 1, 2, 3, 4, 5, 6, 7)
	e.policy.kernel.cpus = func(pid int) (cpuset.Set, error) {
		cpus, err := inner(pid)
		return cpus.Intersect(online), err
	}
	web := pod("web", "burstable")
	e.run(web, container(web, "main", "web-1", 100, 0)) // it has all CPUs that are online
	all := Everything{CPUs: cpuset.Of(0, 1, 2, 3, 4, 5, 6, 7, 8), Online: online}
	if err := e.policy.Release(t.Context(), e, all); err != nil {
		t.Fatal(err)
	}
	if got := e.on("web-1"); got != "0-8" {
		t.Errorf("the container has CPUs %s", got)
	}
}

// TestReleaseOfNarrowedProcesses: a process that has chosen CPUs for itself keeps them, and a cgroup above
// may have fewer CPUs than the machine. Neither is a failure, unless the runtime refuses the update.
func TestReleaseOfNarrowedProcesses(t *testing.T) {
	t.Parallel()
	all := Everything{CPUs: cpuset.Of(0, 1, 2, 3, 4, 5, 6, 7)}
	for name, within := range map[string]cpuset.Set{"its own choice": cpuset.Of(2), "a cgroup above": cpuset.Of(0, 1, 2, 3, 4, 5)} {
		d := startBerthd(t)
		e := newEngine(t, Config{Client: d.Client})
		inner := e.policy.kernel.cpus
		e.policy.kernel.cpus = func(pid int) (cpuset.Set, error) {
			cpus, err := inner(pid)
			if pid != sandboxPID {
				cpus = cpus.Intersect(within)
			}
			return cpus, err
		}
		shared, own := pod("shared", "burstable"), pod("own", "guaranteed")
		e.run(shared, container(shared, "main", "shared-1", 100, 0))
		if cpus := set(t, e.run(own, container(own, "main", "own-1", 2000, gib))); cpus.Len() != 2 {
			t.Fatalf("%s: the container is on %s", name, cpus)
		}
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		e.before = func([]*api.ContainerUpdate) {
			if tries++; tries > 1 {
				cancel()
			}
		}
		e.fails = map[string]bool{"own-1": true}
		if err := e.policy.Release(ctx, e, all); err == nil || strings.Contains(err.Error(), "shared") ||
			!strings.Contains(err.Error(), "main of default/own") {
			t.Errorf("%s, and one update is refused: %v", name, err)
		}
		// An update that was requested before the end may still be carried out.
		e.calls.Lock()
		e.fails, e.before = nil, nil
		e.calls.Unlock()
		if err := e.policy.Release(t.Context(), e, all); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// deaf is a runtime that does nothing.
type deaf struct{}

func (deaf) UpdateContainers([]*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }

// hangs is a runtime that never answers.
type hangs struct{}

func (hangs) UpdateContainers([]*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { select {} }
