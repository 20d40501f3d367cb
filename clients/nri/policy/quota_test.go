package policy

import (
	"errors"
	"io/fs"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/managers/cpuset"
)

// quotas are those of pods' cgroups.
type quotas struct {
	mu   sync.Mutex
	of   map[string]int64
	fail error
}

func (q *quotas) set(cgroup string, quota int64) (before int64, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, ok := q.of[cgroup]
	if !ok {
		return 0, fs.ErrNotExist
	}
	if q.fail != nil {
		return 0, q.fail
	}
	q.of[cgroup] = quota
	return before, nil
}

func (q *quotas) put(cgroup string, quota int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of[cgroup] = quota
}

func (q *quotas) get(cgroup string) int64 {
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
	q := &quotas{of: map[string]int64{own: 200_000, shared: 50_000}}
	e := newEngine(t, Config{Client: d.Client, PodQuota: q.set})
	e.follow()
	pods := []*api.PodSandbox{pod("own", "guaranteed"), pod("shared", "burstable")}
	containers := []*api.Container{container(pods[0], "main", "own-1", 2000, gib), container(pods[1], "main", "shared-1", 100, 0)}
	for i, p := range pods {
		e.run(p, containers[i])
	}
	eventually(t, "the pod has no quota", func() bool { return q.get(own) == -1 })
	q.put(own, 300_000) // the kubelet, for a resize
	e.policy.kick()
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
	q := &quotas{of: map[string]int64{own: -1}}
	e := newEngine(t, Config{Client: d.Client, PodQuota: q.set})
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
