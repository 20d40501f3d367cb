package policy

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
)

// loseLedger starts berthd again without its ledger. The claim records are left.
func (d *daemon) loseLedger() {
	d.t.Helper()
	d.stop()
	if err := os.RemoveAll(d.config.StateDir); err != nil {
		d.t.Fatal(err)
	}
	d.again()
}

// startAgain starts berth-nri again and connects the runtime, which has one container.
func (e *engine) startAgain(config Config, pod *api.PodSandbox, c *api.Container) {
	e.t.Helper()
	e.renew(config)
	updates, err := e.policy.Synchronize(e.t.Context(), []*api.PodSandbox{pod}, []*api.Container{c})
	if err != nil {
		e.t.Fatal(err)
	}
	e.apply(updates)
}

// refusedResizes counts the resizes that berthd refuses. A client repeats one of a lost pod longer than a pass has time.
type refusedResizes struct {
	grpc.ClientConnInterface
	calls atomic.Int32
}

func (r *refusedResizes) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	err := r.ClientConnInterface.Invoke(ctx, method, req, reply, opts...)
	if err != nil && strings.HasSuffix(method, "/Resize") {
		r.calls.Add(1)
	}
	return err
}

// TestClaimRecordsKeepPlaces: berthd has lost its ledger and has the claim records, and berth-nri starts again at the same time. It learns
// from berthd how the pods were admitted: each keeps its CPUs, is admitted in the form that it had, and once. There are CPUs free that a
// pod would get that is planned anew.
func TestClaimRecordsKeepPlaces(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		whole bool
		// late means that the kubelet does not have the specification at first.
		late bool
		// counted is the size that berthd counts when it loses the ledger; the container runs with 2000m. 0 for the same.
		counted int64
		// wanted are the CPUs that the kubelet's specification has then, as of a resize that is to come; empty for 2.
		wanted string
		uid    string
	}{
		"by itself":             {uid: "job-uid.main"},
		"by itself, other size": {counted: 3000, uid: "job-uid.main"},
		"whole":                 {whole: true, uid: "job-uid"},
		"whole, known later":    {whole: true, late: true, uid: "job-uid"},
		"whole, other size":     {whole: true, counted: 3000, wanted: "3", uid: "job-uid"},
		"whole, to be resized":  {whole: true, wanted: "3", uid: "job-uid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			kubelet := &knows{active: []string{"first-uid", "job-uid"}}
			if test.whole {
				kubelet.pods = map[string]*typesv1.Pod{"job-uid": specOf("job", "2")}
			}
			refused := &refusedResizes{ClientConnInterface: d.Conn()}
			config := Config{Client: berth.Over(refused, berth.Options{}), Kubelet: kubelet}
			e := newEngine(t, config)
			first, job := pod("first", "guaranteed"), pod("job", "guaranteed")
			f, c := container(first, "main", "first-1", 2000, gib), container(job, "main", "job-1", 2000, gib)
			e.run(first, f)
			if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			had := e.run(job, c)
			e.stop(first, f)
			e.end(first)
			e.pushes(2)
			if test.wanted != "" {
				kubelet.pods["job-uid"] = specOf("job", test.wanted)
			}
			if test.counted != 0 {
				// Berthd agrees, and the runtime fails to carry it out.
				if _, err := e.policy.UpdateContainer(t.Context(), job, c, size(test.counted, test.counted, 0)); err != nil {
					t.Fatal(err)
				}
			}
			c.Linux.Resources.Cpu.Cpus = had
			d.loseLedger()

			specs := kubelet.pods
			if test.late {
				kubelet.pods = nil
			}
			e.startAgain(config, job, c)
			e.pushes(2)
			if got := e.on("job-1"); got != had {
				t.Errorf("the container ran on CPUs %s, and is moved to %s", had, got)
			}
			kubelet.pods = specs
			e.clock(func() time.Time { return time.Now().Add(compareInterval) })
			e.pushes(3)
			if got := d.uids(); !slices.Equal(got, []string{test.uid}) {
				t.Errorf("berthd has %v, want %s", got, test.uid)
			}
			if got := e.on("job-1"); got != had {
				t.Errorf("the container ran on CPUs %s, and is moved to %s after all", had, got)
			}
			if n := refused.calls.Load(); n > 0 {
				t.Errorf("berth-nri has resized a pod %d times that berthd does not have", n)
			}
			d.expect("after the ledger was lost", test.uid, "main", 2000, gib)
			next := pod("next", "guaranteed")
			if got := set(t, e.run(next, container(next, "main", "next-1", 2000, gib))); got.Overlaps(set(t, had)) {
				t.Errorf("another pod gets CPUs %s", got)
			}
		})
	}
}

// TestLostPodWithoutSource: berthd has lost a whole pod and knows what it holds, and no source has its specification. Its container keeps
// its CPUs. When that has ended, the next one is admitted by itself.
func TestLostPodWithoutSource(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{active: []string{"job-uid"}, pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "2")}}
	config := Config{Client: d.Client, Kubelet: kubelet}
	e := newEngine(t, config)
	job := pod("job", "guaranteed")
	c := container(job, "main", "job-1", 2000, gib)
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	had := e.run(job, c)
	c.Linux.Resources.Cpu.Cpus = had
	d.loseLedger()
	kubelet.pods = nil
	e.startAgain(config, job, c)
	e.pushes(3)
	if got, uids := e.on("job-1"), d.uids(); got != had || len(uids) > 0 {
		t.Errorf("the container ran on CPUs %s, and is on %s; berthd has %v", had, got, uids)
	}
	e.stop(job, c)
	e.clock(func() time.Time { return time.Now().Add(compareInterval) })
	e.pushes(2)
	e.run(job, container(job, "main", "job-2", 2000, gib))
	if got := d.uids(); !slices.Equal(got, []string{"job-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}
}
