package policy

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
)

// shrinks is a container of four CPUs whose resize to two berthd has carried out without an answer.
func shrinks(t *testing.T) (*daemon, *engine, *api.PodSandbox, *api.Container) {
	t.Helper()
	d := startBerthd(t)
	client, v := d.valve()
	e := newEngine(t, Config{Client: client})
	job := pod("job", "guaranteed")
	c := container(job, "main", "job-1", 4000, gib)
	e.run(job, c)
	e.pushes(2)
	d.shrinkUnanswered(e, v, job, c)
	return d, e, job, c
}

// shrinkUnanswered resizes a container to two CPUs, and the answer of berthd is lost.
func (d *daemon) shrinkUnanswered(e *engine, v *valve, job *api.PodSandbox, c *api.Container) {
	d.t.Helper()
	before := d.revision()
	lose(d.t, v, func(ctx context.Context) error {
		_, err := e.policy.UpdateContainer(ctx, job, c, size(2000, 2000, gib))
		return err
	}, func() bool { return d.revision() != before })
}

// TestSettleBeforeOthers: another container of the pod, which is admitted by itself, does not get the CPUs that berthd has taken from
// one whose resize it has not answered.
func TestSettleBeforeOthers(t *testing.T) {
	t.Parallel()
	for _, same := range []bool{false, true} {
		_, e, job, _ := shrinks(t)
		p := pod("other", "guaranteed")
		if same {
			p = job
		}
		_, err := e.create(p, container(p, "second", "second-1", 4000, gib))
		e.pushes(3)
		has, _ := cpuset.Parse(e.on("job-1"))
		if err == nil || has.Len() != 4 {
			t.Errorf("same pod %v: the other is created: %v; the container that keeps its size of 4 CPUs runs on %s", same, err, has)
		}
	}
}

// TestSettleAfterAConnection: the runtime connects again while berthd is away.
func TestSettleAfterAConnection(t *testing.T) {
	t.Parallel()
	d, e, job, c := shrinks(t)
	d.connectWithoutBerthd(e, []*api.PodSandbox{job}, c)
	p := pod("other", "guaranteed")
	_, err := e.create(p, container(p, "second", "second-1", 4000, gib))
	e.pushes(3)
	has, _ := cpuset.Parse(e.on("job-1"))
	if err == nil || has.Len() != 4 {
		t.Errorf("the other is created: %v; the container that keeps its size of 4 CPUs runs on %s", err, has)
	}
}

// TestRefusedLeavesItsCPUs: berthd has lost its ledger, and another pod gets CPUs of a container, which is refused then. The refused
// container goes to the shared CPUs, and the other one starts.
func TestRefusedLeavesItsCPUs(t *testing.T) {
	t.Parallel()
	d := startBerthdWith(t, func(c *config.Config) {
		c.CPU.Options = map[string]string{"strict-cpu-reservation": "true"}
	})
	e := newEngine(t, Config{Client: d.Client})
	job, other := pod("job", "guaranteed"), pod("other", "guaranteed")
	e.run(job, container(job, "main", "job-1", 7000, gib))
	e.pushes(2)
	d.forget()
	o := container(other, "main", "other-1", 2000, gib)
	if _, err := e.create(other, o); err != nil {
		t.Fatal(err)
	}
	var err error
	for range 10 {
		e.pushes(2)
		if err = e.start(other, o); err == nil {
			break
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// hookedKubelet is a kubelet that does something when it is called.
type hookedKubelet struct {
	*knows
	hook func()
}

func (k *hookedKubelet) Pod(ctx context.Context, uid string) (*typesv1.Pod, string, error) {
	k.hook()
	return k.knows.Pod(ctx, uid)
}

// TestSettleWithoutAnAnswer: berthd does not answer in time either when the size is compared before an admission. The size is still not
// known, so nothing is admitted.
func TestSettleWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	client, v := d.valve()
	kubelet := &hookedKubelet{&knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "4")}, active: []string{"job-uid"}}, func() {}}
	e := newEngine(t, Config{Client: client, Kubelet: kubelet})
	job := pod("job", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	c := container(job, "main", "job-1", 4000, gib)
	e.run(job, c)
	e.pushes(2)
	d.shrinkUnanswered(e, v, job, c)
	m := e.policy.node.members["job-1"]
	m.pod.unfound = true // so that the kubelet is called, and the connection hangs from then on
	kubelet.hook = func() { v.set(true) }
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	e.policy.mu.Lock()
	err := e.policy.sizes.settle(ctx, "other-uid")
	unsure := m.unsure
	e.policy.mu.Unlock()
	v.set(false)
	if unsure && err == nil {
		t.Errorf("the size of %s is not known, and others may be admitted (the time that is left: %v)", m.title(), ctx.Err())
	}
}
