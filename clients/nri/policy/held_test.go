package policy

import (
	"testing"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
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
		if own := e.policy.node.members["job-1"].own; milli%1000 == 0 && own.Len() != int(milli/1000) || milli%1000 != 0 && own.Len() > 0 {
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
	e.policy.agenda.unreconciled = true
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
	e.policy.agenda.unreconciled = true
	e.pushes(1)
	if now := e.on("job-1"); now != grown {
		t.Errorf("it ran on CPUs %s and runs on %s after berthd has lost its ledger and kept the claim records", grown, now)
	}
	e.pushes(3)
}

// TestTakenCPUsAreLeftFirst: a container has fewer CPUs for itself than it runs on, because an earlier berth-nri ended before it moved it.
// No other one gets the rest while it runs there.
func TestTakenCPUsAreLeftFirst(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	big, web := pod("big", "guaranteed"), pod("web", "burstable")
	c, w := container(big, "main", "big-1", 3000, gib), container(web, "main", "web-1", 200, 0)
	had := e.run(big, c)
	e.run(web, w)
	one := map[string]string{"cpu": "1", "memory": "1Gi"}
	answer, err := d.Admission().Resize(t.Context(), &admissionv1.ResizeRequest{PodUid: "big-uid.main", Owner: d.Owner(),
		Containers: []*admissionv1.ContainerResources{{ContainerName: "main",
			Resources: &typesv1.ResourceRequirements{Requests: one, Limits: one}}}})
	if err != nil || answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%v, %v", answer, err)
	}
	c.Linux.Resources = changed(c.Linux.Resources, size(1000, 1000, gib))
	e.renew(Config{Client: d.Client})
	updates, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{big, web}, []*api.Container{c, w})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range updates {
		cpus := set(t, u.GetLinux().GetResources().GetCpu().GetCpus())
		if u.GetContainerId() == "web-1" && cpus.Overlaps(set(t, had)) {
			t.Errorf("the shared container gets CPUs %s, and the other one runs on %s", cpus, had)
		}
	}
	e.apply(updates)
	e.pushes(3)
	if own, shared := set(t, e.on("big-1")), set(t, e.on("web-1")); own.Len() != 1 || shared.Len() != 7 ||
		own.Overlaps(shared) {
		t.Errorf("in the end they run on %s and %s", own, shared)
	}
}

// TestSandboxesOfAPodHaveOneForm: what is left in an earlier sandbox of a pod is admitted apart after a loss of the ledger. The later
// sandbox is not admitted as a whole, too.
func TestSandboxesOfAPodHaveOneForm(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	spec := map[string]*typesv1.Pod{"web-uid": specOf("web", "1")}
	e := newEngine(t, Config{Client: d.Client, Kubelet: &knows{pods: spec, active: []string{"web-uid"}}})
	first, second := pod("web", "guaranteed"), pod("web", "guaranteed")
	second.Id += "-2"
	if err := e.policy.RunPodSandbox(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	c := container(first, "main", "web-1", 1000, gib)
	e.run(first, c)
	if err := e.policy.RunPodSandbox(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	kubelet := &knows{active: []string{"web-uid"}}
	e.renew(Config{Client: d.Client, Kubelet: kubelet})
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{first, second}, []*api.Container{c}); err != nil {
		t.Fatal(err)
	}
	d.forget()
	e.policy.agenda.unreconciled = true
	e.pushes(3)
	kubelet.pods = spec
	if _, err := e.create(second, container(second, "main", "web-2", 1000, gib)); err != nil {
		t.Error(err)
	}
	if uids := d.uids(); len(uids) != 1 {
		t.Errorf("berthd has %v", uids)
	}
}
