package policy

import (
	"testing"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// TestRefusedGrowthIsRepeated: the runtime fails to give a container more CPUs. The process runs on a part of them then,
// which does not mean that it was given all and has narrowed itself.
func TestRefusedGrowthIsRepeated(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	job := pod("job", "guaranteed")
	c := container(job, "main", "job-1", 1000, gib)
	e.run(job, c)
	if _, err := e.resize(job, c, size(2000, 2000, 0)); err != nil {
		t.Fatal(err)
	}
	e.fails, e.stuck = map[string]bool{"job-1": true}, true
	e.pushes(1)
	e.fails, e.stuck = nil, false
	e.pushes(2)
	if got := set(t, e.on("job-1")); got.Len() != 2 {
		t.Errorf("the container runs on CPUs %s, want two", got)
	}
}

// TestUnmovedProcessIsNotPushedAtOnce: a runtime confirms an update, and the process stays where it is. The update is not
// repeated without a pause.
func TestUnmovedProcessIsNotPushedAtOnce(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, job := pod("web", "burstable"), pod("job", "guaranteed")
	e.run(web, container(web, "main", "web-1", 500, 0))
	e.pushes(2)
	e.stuck = true
	if _, err := e.create(job, container(job, "main", "job-1", 2000, gib)); err != nil {
		t.Fatal(err)
	}
	for pass := range 5 {
		select {
		case <-e.policy.agenda.kicked:
		default:
		}
		e.pushes(1)
		select {
		case <-e.policy.agenda.kicked:
			if pass > 1 {
				t.Fatalf("pass %d asks for another one at once", pass)
			}
		default:
		}
	}
}

// TestReplacedContainerHasNoSize: a container was created and never started, and another one of its name runs and was
// resized. The size of the first one is not that of the container when the runtime connects again.
func TestReplacedContainerHasNoSize(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, Kubelet: &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "1")},
		active: []string{"job-uid"}}})
	job := pod("job", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	first, second := container(job, "main", "job-1", 1000, gib), container(job, "main", "job-2", 1000, gib)
	if _, err := e.create(job, first); err != nil {
		t.Fatal(err)
	}
	e.run(job, second)
	if _, err := e.resize(job, second, size(2000, 2000, 0)); err != nil {
		t.Fatal(err)
	}
	second.Linux.Resources = changed(second.Linux.Resources, size(2000, 2000, 0))
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{first, second}); err != nil {
		t.Fatal(err)
	}
	e.pushes(2)
	d.expect("the container that runs was resized", "job-uid", "main", 2000, gib)
}

// TestStartThatReadLess: while a container is started, more CPUs become shared. Its start has read those of before. That does not
// mean that it was given all and has narrowed itself.
func TestStartThatReadLess(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"confirmed before its process is shown": false, "confirmed later": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			e := newEngine(t, Config{Client: d.Client})
			web, job := pod("web", "burstable"), pod("job", "guaranteed")
			w, j := container(web, "main", "web-1", 500, 0), container(job, "main", "job-1", 2000, gib)
			e.run(job, j)
			if _, err := e.create(web, w); err != nil {
				t.Fatal(err)
			}
			read := e.on("web-1")
			if err := e.policy.StartContainer(t.Context(), web, w); err != nil {
				t.Fatal(err)
			}
			begin := func() {
				e.put("web-1", read)
				e.mu.Lock()
				e.pids[77] = "web-1"
				e.mu.Unlock()
				w.Pid = 77
				if err := e.policy.PostStartContainer(t.Context(), web, w); err != nil {
					t.Error(err)
				}
			}
			e.stop(job, j)
			e.end(job)
			if late {
				e.stuck, e.before = true, func([]*api.ContainerUpdate) { begin() }
			}
			e.pushes(1)
			if e.stuck, e.before = false, nil; !late {
				begin()
			}
			e.pushes(2)
			if got := e.on("web-1"); got != "0-7" {
				t.Errorf("the container runs on CPUs %s, want 0-7", got)
			}
		})
	}
}
