package policy

import (
	"fmt"
	"testing"

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
