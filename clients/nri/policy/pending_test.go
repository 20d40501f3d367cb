package policy

import (
	"slices"
	"testing"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// TestPending: a pod is pending until all of its containers have started once, whatever becomes of them and of the connection.
func TestPending(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	two := specOf("two", "1")
	two.Spec.InitContainers = []*typesv1.Container{{Name: "init"}}
	two.Spec.Containers = append(two.Spec.Containers, &typesv1.Container{Name: "side",
		Resources: &typesv1.ResourceRequirements{Limits: map[string]string{"cpu": "1", "memory": "1Gi"}}})
	changes := 0
	e := newEngine(t, Config{Client: d.Client, Kubelet: &knows{pods: map[string]*typesv1.Pod{"two-uid": two}},
		Scheduler: Scheduler{Started: func() { changes++ }}})
	pending := func(when string, want ...string) {
		t.Helper()
		if got := e.policy.Pending(); !slices.Equal(got, want) {
			t.Errorf("%s: pending %v, expected %v", when, got, want)
		}
	}
	job := pod("two", "guaranteed")
	pending("no pod")
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	pending("a sandbox", "default/two")
	first := container(job, "init", "init-1", 0, 0)
	e.run(job, first)
	e.stop(job, first)
	main := container(job, "main", "main-1", 1000, gib)
	e.run(job, main)
	pending("one of two", "default/two")
	side := container(job, "side", "side-1", 1000, gib)
	if _, err := e.create(job, side); err != nil {
		t.Fatal(err)
	}
	pending("the other one is made", "default/two")
	if err := e.start(job, side); err != nil {
		t.Fatal(err)
	}
	pending("both")
	e.stop(job, main)
	pending("one has ended")
	if changes != 3 {
		t.Errorf("%d changes, expected 3: init, main and side", changes)
	}
	main.State = api.ContainerState_CONTAINER_STOPPED
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{side}); err != nil {
		t.Fatal(err)
	}
	pending("the runtime has connected again, and has removed the container that ended")
	e.renew(Config{Client: d.Client, Kubelet: e.settings.Kubelet})
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{main, side}); err != nil {
		t.Fatal(err)
	}
	pending("another berth-nri")

	web := pod("web", "burstable") // its specification is not known
	if err := e.policy.RunPodSandbox(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	pending("a sandbox without a specification", "default/web")
	e.run(web, container(web, "main", "web-1", 200, gib))
	pending("its container")
}
