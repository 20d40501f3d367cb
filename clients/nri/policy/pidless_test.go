package policy

import (
	"io/fs"
	"slices"
	"testing"

	"github.com/containerd/nri/pkg/api"
)

// withoutProcess is a sandbox of a runtime that does not report its process.
func withoutProcess(name string) *api.PodSandbox {
	p := pod(name, "guaranteed")
	p.Pid = 0
	return p
}

// TestPodWithoutProcessLives: a sandbox without a process, of which no container runs, has not ended by that alone. A container that has
// crashed returns to its CPUs after a new connection, and after a start of berth-nri. Something else shows that the pod has ended.
func TestPodWithoutProcessLives(t *testing.T) {
	t.Parallel()
	gone, there := func(string, int64) (int64, error) { return 0, fs.ErrNotExist }, func(string, int64) (int64, error) { return -1, nil }
	for _, row := range []struct {
		name, runtime string
		kubelet       Source
		quota         func(string, int64) (int64, error)
		lives         bool
	}{
		{"nothing else is known", "cri-o", nil, nil, true},
		{"the kubelet has the pod", "cri-o", &knows{active: []string{"job-uid"}}, nil, true},
		{"the kubelet does not answer", "cri-o", &knows{activeErr: fs.ErrPermission}, nil, true},
		{"its cgroup is there", "cri-o", nil, there, true},
		{"no cgroup is there", "cri-o", nil, gone, true},
		{"the kubelet does not have the pod", "cri-o", &knows{}, nil, false},
		{"its cgroup is not there, and others are", "cri-o", nil, func(cgroup string, _ int64) (int64, error) {
			if cgroup == pod("web", "guaranteed").GetLinux().GetCgroupParent() {
				return there(cgroup, 0)
			}
			return gone(cgroup, 0)
		}, false},
		{"the runtime reports processes", "containerd", nil, nil, false},
	} {
		for _, again := range []bool{false, true} {
			t.Run(row.name, func(t *testing.T) {
				t.Parallel()
				d := startBerthd(t)
				c := Config{Client: d.Client, Kubelet: row.kubelet, Host: Host{PodQuota: row.quota}}
				e := newEngine(t, Config{Client: d.Client})
				job, web := withoutProcess("job"), withoutProcess("web")
				main, side := container(job, "main", "job-1", 2000, gib), container(web, "main", "web-1", 200, gib)
				had := e.run(job, main)
				e.run(web, side)
				e.stop(job, main)
				if again {
					e.renew(c)
				}
				e.hears(c.Kubelet)
				e.policy.quotas.set = c.PodQuota
				if _, err := e.policy.Configure(t.Context(), "", row.runtime, "v2.3.0"); err != nil {
					t.Fatal(err)
				}
				if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job, web}, []*api.Container{side}); err != nil {
					t.Fatal(err)
				}
				e.pushes(2)
				if has := slices.Contains(d.uids(), "job-uid.main"); has != row.lives {
					t.Fatalf("berthd has %v", d.uids())
				}
				if row.lives {
					if now := e.run(job, container(job, "main", "job-2", 2000, gib)); now != had {
						t.Errorf("the container was on CPUs %s, and returns to %s", had, now)
					}
				}
			})
		}
	}
}

// TestEndedSandboxIsForgotten: a sandbox that has ended without an event does not stay.
func TestEndedSandboxIsForgotten(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	job := pod("job", "guaranteed")
	c := container(job, "main", "job-1", 2000, gib)
	e.run(job, c)
	e.stop(job, c)
	e.ended = true
	e.pushes(2)
	if left := len(e.policy.node.sandboxes) + len(e.policy.node.members); left > 0 || len(d.uids()) > 0 {
		t.Errorf("%d sandboxes and members are left, and berthd has %v", left, d.uids())
	}
	// A runtime tells of it later.
	if err := e.policy.StopPodSandbox(t.Context(), job); err != nil || len(e.policy.node.sandboxes) > 0 {
		t.Errorf("%d sandboxes are left: %v", len(e.policy.node.sandboxes), err)
	}
}
