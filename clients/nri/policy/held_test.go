package policy

import (
	"testing"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// lostWhole is an engine with a pod that berthd has admitted and lost as a whole, and of which no source has the specification.
func lostWhole(t *testing.T, spec *typesv1.Pod, lose func(*daemon)) (*daemon, *engine, *api.PodSandbox) {
	t.Helper()
	d := startBerthd(t)
	kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": spec}, active: []string{"job-uid"}}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
	job := pod("job", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	e.renew(Config{Client: d.Client, Kubelet: &knows{active: kubelet.active}})
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, nil); err != nil {
		t.Fatal(err)
	}
	lose(d)
	return d, e, job
}

// TestHeldOfAnotherSize: the container has another size than the pod had.
func TestHeldOfAnotherSize(t *testing.T) {
	t.Parallel()
	for _, milli := range []int64{1000, 3000, 1500} {
		_, e, job := lostWhole(t, specOf("job", "2"), (*daemon).loseLedger)
		e.run(job, container(job, "main", "job-1", milli, gib))
		e.pushes(2)
		if own := e.policy.members["job-1"].own; milli%1000 == 0 && own.Len() != int(milli/1000) || milli%1000 != 0 && own.Len() > 0 {
			t.Errorf("a container of %dm has CPUs %s for itself", milli, own)
		}
	}
}

// TestHeldOnlyOnce: what a pod held once is not given to its container that runs elsewhere since.
func TestHeldOnlyOnce(t *testing.T) {
	t.Parallel()
	d, e, job := lostWhole(t, specOf("job", "2"), (*daemon).loseLedger)
	c := container(job, "main", "job-1", 2000, gib)
	first := e.run(job, c)
	e.pushes(2)
	e.stop(job, c)
	other, third := pod("other", "guaranteed"), pod("third", "guaranteed")
	o, th := container(other, "main", "other-1", 6000, gib), container(third, "main", "third-1", 3000, gib)
	e.run(other, o)
	e.stop(other, o)
	e.end(other)
	e.run(third, th)
	c = container(job, "main", "job-2", 2000, gib)
	second := e.run(job, c)
	e.pushes(2)
	if first == second {
		t.Fatalf("it is on the same CPUs %s as before", first)
	}
	e.stop(third, th)
	e.end(third)
	e.pushes(2)
	d.loseLedger()
	e.policy.unreconciled = true
	e.pushes(3)
	if now := e.on("job-2"); now != second {
		t.Errorf("it runs on CPUs %s, berthd loses its ledger and keeps the claim records, and the container is moved to %s", second, now)
	}
}

// TestHeldBeforeAResize: a container that has grown since keeps its CPUs over a loss of the ledger.
func TestHeldBeforeAResize(t *testing.T) {
	t.Parallel()
	d, e, job := lostWhole(t, specOf("job", "2"), (*daemon).loseLedger)
	c := container(job, "main", "job-1", 2000, gib)
	first := e.run(job, c)
	c.Linux.Resources.Cpu.Quota = api.Int64(-1)
	if _, err := e.resize(job, c, size(3000, 3000, gib)); err != nil {
		t.Fatal(err)
	}
	e.pushes(3)
	grown := e.on("job-1")
	if grown == first {
		t.Fatalf("it has not grown: %s", grown)
	}
	d.loseLedger()
	e.policy.unreconciled = true
	e.pushes(1)
	if now := e.on("job-1"); now != grown {
		t.Errorf("it ran on CPUs %s and runs on %s after berthd has lost its ledger and kept the claim records", grown, now)
	}
	e.pushes(3)
}
