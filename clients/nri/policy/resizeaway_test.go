package policy

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
)

// TestUnplacedIsNotResized: a container that could not be compared with the ledger yet is not resized, however often the kubelet
// tries, and gets no quota on its exclusive CPUs. When berthd is back, it is.
func TestUnplacedIsNotResized(t *testing.T) {
	t.Parallel()
	for _, listed := range []bool{true, false} { // by the runtime, when it connected
		for name, to := range map[string]*api.LinuxResources{"more CPUs": size(3000, 3000, 0), "more memory": size(0, 0, 2*gib)} {
			t.Run(fmt.Sprintf("%s, listed %v", name, listed), func(t *testing.T) {
				t.Parallel()
				d := startBerthd(t)
				e := newEngine(t, Config{Client: d.Client})
				job := pod("job", "guaranteed")
				c := container(job, "main", "job-1", 2000, gib)
				had := e.run(job, c)
				c.Linux.Resources.Cpu.Cpus, c.Linux.Resources.Cpu.Quota = had, api.Int64(-1) // as adjusted
				e.renew(Config{Client: d.Client})
				d.stop()
				var list []*api.Container
				if listed {
					list = append(list, c)
				}
				if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, list); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					if u, err := e.resize(job, c, to); err == nil {
						t.Errorf("resized while berthd is away: %v", u)
					}
				}
				if u, err := e.resize(job, c, size(0, 0, 0)); err != nil || u.GetLinux().GetResources().GetCpu().GetQuota() != nil {
					t.Errorf("what is no resize: %v, %v", u, err)
				}
				other := size(0, 0, 0)
				other.Cpu.Cpus = "0-7"
				if u, err := e.resize(job, c, other); err != nil || u.GetLinux().GetResources().GetCpu().GetCpus() != had {
					t.Errorf("the container was on CPUs %s, and is moved to others: %v, %v", had, u, err)
				}
				c.Linux.Resources.Cpu.Quota = api.Int64(200_000) // by another program
				d.again()
				quota := int64(0)
				e.before = func(updates []*api.ContainerUpdate) {
					quota = updates[len(updates)-1].GetLinux().GetResources().GetCpu().GetQuota().GetValue()
				}
				e.pushes(3)
				if e.on("job-1") != had || quota != -1 {
					t.Errorf("the container was on CPUs %s and is on %s, with quota %d", had, e.on("job-1"), quota)
				}
				d.expect("berthd is back", "job-uid.main", "main", 2000, gib)
				e.before = nil
				if _, err := e.resize(job, c, to); err != nil {
					t.Errorf("berthd is back: %v", err)
				}
			})
		}
	}
}

// TestHalfDoneResizeIsUndone: berthd has resized a container, and ends before the policy knows the new CPUs. The runtime was told that the
// resize has failed, and keeps the old size.
func TestHalfDoneResizeIsUndone(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		d := startBerthd(t)
		kubelet, key := &knows{}, "web-uid.main"
		if whole {
			kubelet.pods, key = specsOf("web"), "web-uid"
		}
		e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
		web := pod("web", "burstable")
		if err := e.policy.RunPodSandbox(t.Context(), web); err != nil {
			t.Fatal(err)
		}
		w := container(web, "main", "web-1", 1000, gib)
		e.run(web, w)
		d.OnAnswer(func(m proto.Message) {
			if _, ok := m.(*admissionv1.ResizeResponse); ok {
				d.stop()
			}
		})
		if _, err := e.resize(web, w, size(500, 500, 0)); err == nil {
			t.Error("no error")
		}
		d.OnAnswer(nil)
		d.again()
		d.expect("before it is compared", key, "main", 500, gib)
		e.pushes(3)
		d.expect("the runtime has the old size", key, "main", 1000, gib)
	}
}

// TestResizeThatFailsIsTakenBack: the runtime has failed to carry out a resize, and the kubelet takes it back, of which
// no event tells. Berthd counts what the runtime has, and so it does if the runtime confirms the resize late. A resize
// that was confirmed stays.
func TestResizeThatFailsIsTakenBack(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{true, false} {
		t.Run(fmt.Sprintf("whole CPUs %v", whole), func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			e := newEngine(t, Config{Client: d.Client})
			var later time.Duration
			e.clock(func() time.Time { return time.Now().Add(later) })
			job, first, second := pod("job", "guaranteed"), int64(2000), int64(3000)
			if !whole {
				first, second = 500, 900
			}
			c := container(job, "main", "job-1", first, gib)
			had := e.run(job, c)
			to := size(second, second, gib)
			fails := func() {
				t.Helper()
				if _, err := e.policy.UpdateContainer(t.Context(), job, c, to); err != nil {
					t.Fatal(err)
				}
				d.expect("a resize is in progress", "job-uid.main", "main", second, gib)
				later += askTime - time.Second
				e.pushes(2)
				d.expect("a resize may still be in progress", "job-uid.main", "main", second, gib)
				later += time.Minute
				e.pushes(3)
				d.expect("a resize was not confirmed", "job-uid.main", "main", first, gib)
			}
			fails()
			if whole && e.on("job-1") != had {
				t.Errorf("it was on CPUs %s, and is on %s", had, e.on("job-1"))
			}
			c.Linux.Resources = changed(c.Linux.Resources, to)
			if err := e.policy.PostUpdateContainer(t.Context(), job, c); err != nil {
				t.Fatal(err)
			}
			e.pushes(3)
			d.expect("a resize was confirmed late", "job-uid.main", "main", second, gib)

			to, first, second = size(first, first, gib), second, first
			if _, err := e.resize(job, c, to); err != nil {
				t.Fatal(err)
			}
			if err := e.policy.PostUpdateContainer(t.Context(), job, c); err != nil {
				t.Fatal(err)
			}
			later += time.Hour
			e.pushes(3)
			d.expect("a resize was confirmed", "job-uid.main", "main", second, gib)
		})
	}
}
