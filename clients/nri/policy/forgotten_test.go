package policy

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
)

// forget starts berthd again without its ledger and its claim records.
func (d *daemon) forget() {
	d.t.Helper()
	d.stop()
	if err := errors.Join(os.RemoveAll(d.config.StateDir), os.RemoveAll(d.config.RootDir+"/claims")); err != nil {
		d.t.Fatal(err)
	}
	d.again()
}

// onCPUsOf returns the containers that run on CPUs of another one.
func (e *engine) onCPUsOf(id string) (ids []string) {
	e.t.Helper()
	own, err := cpuset.Parse(e.on(id))
	if err != nil || own.IsEmpty() {
		e.t.Fatalf("%s runs on %q: %v", id, e.on(id), err)
	}
	for other, text := range e.all() {
		if cpus, err := cpuset.Parse(text); err != nil || other != id && cpus.Overlaps(own) {
			ids = append(ids, other)
		}
	}
	return ids
}

// shortPass is a pass of Follow that has time for one member.
func (e *engine) shortPass() {
	e.t.Helper()
	p := e.policy
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := errors.Join(p.placer.complete(e.t.Context(), func() bool { return true }), p.placer.want(e.t.Context())); err != nil {
		e.t.Fatal(err)
	}
	e.apply(p.writer.response(p.tracks.due(p.view.shared, everyone)))
}

// knowsNot is a kubelet that fails for some pods.
type knowsNot struct {
	*knows
	uids []string
}

func (k *knowsNot) Pod(ctx context.Context, uid string) (*typesv1.Pod, string, error) {
	if slices.Contains(k.uids, uid) {
		return nil, "", errors.New("it does not answer")
	}
	return k.knows.Pod(ctx, uid)
}

// TestForgottenContainerKeepsItsCPUs: berthd has lost its ledger and the claim records, and the kubelet does not give the specification
// of a running pod, so the pod is not admitted again yet. No other container gets its exclusive CPUs, also if some of these are offline.
func TestForgottenContainerKeepsItsCPUs(t *testing.T) {
	t.Parallel()
	for _, on := range []string{"4-7", "4-6"} {
		d := startBerthd(t)
		kubelet := &knowsNot{knows: &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "4"), "web-uid": specOf("web", "500m")}}}
		kubelet.active = []string{"job-uid", "web-uid"}
		e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
		job, web := pod("job", "guaranteed"), pod("web", "guaranteed")
		if err := errors.Join(e.policy.RunPodSandbox(t.Context(), job), e.policy.RunPodSandbox(t.Context(), web)); err != nil {
			t.Fatal(err)
		}
		c, w := container(job, "main", "job-1", 4000, gib), container(web, "main", "web-1", 500, gib)
		e.run(job, c)
		e.run(web, w)
		e.pushes(2)
		e.cpus["job-1"] = on
		kubelet.uids = []string{"job-uid"}
		d.forget()
		if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job, web}, []*api.Container{c, w}); err != nil {
			t.Fatal(err)
		}
		place := func(uid string) {
			t.Helper()
			for range 100 { // a pass ends its search at the pod that the kubelet fails for
				if slices.Contains(d.uids(), uid) {
					return
				}
				e.policy.placer.finder.at = time.Time{}
				e.pushes(1)
			}
			t.Fatalf("berthd has %v, and not %s", d.uids(), uid)
		}
		place("web-uid")
		e.pushes(2)
		if ids := e.onCPUsOf("job-1"); len(ids) > 0 {
			t.Errorf("%v run on CPUs %s", ids, e.on("job-1"))
		}
		kubelet.uids = nil
		place("job-uid")
		e.pushes(2)
		if job, web := e.on("job-1"), e.on("web-1"); job != "4-7" || web != "0-3" {
			t.Errorf("both are admitted again, and run on CPUs %s and %s", job, web)
		}
	}
}

// TestForgottenContainersArePlacedOneByOne: on a large node it takes many passes to admit all pods again. In none of them is a container
// moved to CPUs of one that is not admitted again yet, or created on them.
func TestForgottenContainersArePlacedOneByOne(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
	pods, containers, specs := crowd(e, 20)
	job, late := pod("zjob", "guaranteed"), pod("zlate", "burstable")
	specs["zjob-uid"], specs["zlate-uid"] = specOf("zjob", "4"), specOf("zlate", "0")
	specs["zlate-uid"].Spec.Containers[0].Resources = &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": "100m"}}
	kubelet.pods = specs
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	c := container(job, "main", "zjob-1", 4000, gib)
	e.run(job, c)
	if _, err := e.policy.Synchronize(t.Context(), append(pods, job), append(containers, c)); err != nil {
		t.Fatal(err)
	}
	e.pushes(2)
	if ids := e.onCPUsOf("zjob-1"); len(ids) > 0 {
		t.Fatalf("before the loss %v run on CPUs %s", ids, e.on("zjob-1"))
	}
	d.forget()
	for _, m := range e.policy.node.live() {
		m.match = due
	}
	e.policy.agenda.incomplete = true
	for pass := 0; e.policy.agenda.incomplete; pass++ {
		e.shortPass()
		if pass == 2 {
			e.run(late, container(late, "main", "zlate-1", 100, 0))
		}
		if ids := e.onCPUsOf("zjob-1"); len(ids) > 0 {
			t.Fatalf("pass %d: %v run on CPUs %s, berthd has %v", pass, ids, e.on("zjob-1"), d.uids())
		}
	}
	if got := d.uids(); len(got) != 22 {
		t.Errorf("berthd has %d pods, want all 22: %v", len(got), got)
	}
}
