package policy

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
)

// TestReconcileCallsLittle: the comparison of the containers with the ledger costs calls for those
// that differ, and one for each at the first time.
func TestReconcileCallsLittle(t *testing.T) {
	t.Parallel()
	const n = 30
	d := startBerthd(t)
	kubelet := &knows{}
	c := Config{Client: d.Client, Kubelet: kubelet}
	e := newEngine(t, c)
	pods, containers, specs := crowd(e, n)
	kubelet.pods = specs
	if _, err := e.policy.Synchronize(t.Context(), pods, containers); err != nil {
		t.Fatal(err)
	}
	if got := len(d.uids()); got != n {
		t.Fatalf("berthd has %d pods", got)
	}
	calls := 0
	d.OnAnswer(func(proto.Message) { calls++ })
	e.policy.Recount()
	if _, _, err := e.policy.look(t.Context()); err != nil || e.policy.incomplete {
		t.Fatal(err, e.policy.incomplete)
	}
	const fixed = 10
	if calls > fixed {
		t.Errorf("a comparison without a difference has cost %d calls, expected at most %d", calls, fixed)
	}
	later := New(e.policy.Config)
	calls = 0
	if _, err := later.Synchronize(t.Context(), pods, containers); err != nil || later.incomplete {
		t.Fatal(err, later.incomplete)
	}
	if calls > 2*n+fixed {
		t.Errorf("the first comparison of %d containers has cost %d calls", 2*n, calls)
	}
}

// TestReconcileGoesOn: a pass that runs out of time keeps what it has done. Containers that it has not
// come to stay where they are.
func TestReconcileGoesOn(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	trainer := pod("trainer", "guaranteed")
	own := e.run(trainer, container(trainer, "main", "trainer-1", 2000, gib))
	pods, containers, _ := crowd(e, 3)
	p := New(e.policy.Config)
	p.synchronized = true
	for _, s := range append(pods, trainer) {
		p.sandbox(s)
	}
	tr := container(trainer, "main", "trainer-1", 2000, gib)
	tr.Pid, tr.State = 1, api.ContainerState_CONTAINER_RUNNING
	containers = append(containers, tr)
	for _, c := range containers {
		p.take(p.sandboxes[c.GetPodSandboxId()], c, nil)
	}
	p.incomplete = true
	passes := 0
	for ; p.incomplete && passes < 100; passes++ {
		if err := p.complete(t.Context(), func() bool { return true }); err != nil {
			t.Fatal(err)
		}
		if err := p.want(t.Context()); err != nil {
			t.Fatal(err)
		}
		m := p.members["trainer-1"]
		if c, _ := p.tracker.Get(m.id); !c.WantedCPUs.IsEmpty() && c.WantedCPUs.String() != own {
			t.Fatalf("pass %d: the container with CPUs %s gets CPUs %s", passes, own, c.WantedCPUs)
		}
	}
	if passes < len(containers) || passes == 100 {
		t.Errorf("%d passes for %d containers", passes, len(containers))
	}
	for _, m := range p.live() {
		if c, _ := p.tracker.Get(m.id); m.key == "" || m.match != compared || c.WantedCPUs.IsEmpty() {
			t.Errorf("container %s: key %q, match %d, CPUs %s", m.id, m.key, m.match, c.WantedCPUs)
		}
	}
}

// TestKubeletAwayAtSynchronize: the specification of a running pod is found when the kubelet answers
// again, so the pod can be resized. Without it, a container that berthd has lost waits for it.
func TestKubeletAwayAtSynchronize(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{pods: specsOf("job")}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
	job := pod("job", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	c := container(job, "main", "job-1", 1000, gib)
	own := e.run(job, c)
	c.Linux.Resources.Cpu.Cpus, c.Linux.Resources.Cpu.Quota = own, api.Int64(int64(-1)) // as adjusted
	kubelet.err = errors.New("away")
	synchronize := func() {
		t.Helper()
		updates, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{c})
		if err != nil || len(updates) > 0 {
			t.Fatal(updates, err)
		}
	}
	synchronize()
	if _, err := e.resize(job, c, size(2000, 2000, gib)); err == nil {
		t.Error("a pod of which nothing is known was resized")
	}
	kubelet.err = nil
	if _, err := e.resize(job, c, size(2000, 2000, gib)); err != nil {
		t.Error(err)
	}
	if err := e.policy.push(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	own = e.on("job-1")
	c.Linux.Resources.Cpu.Cpus = own

	kubelet.err = errors.New("away")
	if _, err := d.Admission().RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "job-uid"}); err != nil {
		t.Fatal(err)
	}
	synchronize()
	if m := e.policy.members["job-1"]; m.match != unplaced || len(d.uids()) > 0 {
		t.Errorf("match %d, berthd has %v", m.match, d.uids())
	}
	if e.on("job-1") != own {
		t.Errorf("the container is on %s, was on %s", e.on("job-1"), own)
	}
	kubelet.err = nil
	e.policy.searchAt = e.policy.Now()
	if err := e.policy.push(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"job-uid"}) {
		t.Errorf("berthd has %v, want the pod as a whole", got)
	}
}
