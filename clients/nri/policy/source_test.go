package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// knows is a source with the pods of a kubelet, by uid, and its error.
type knows struct {
	pods      map[string]*typesv1.Pod
	from      string // FromKubelet, if empty
	err       error
	active    []string
	activeErr error
}

func (k *knows) Pod(_ context.Context, uid string) (*typesv1.Pod, string, error) {
	return proto.CloneOf(k.pods[uid]), cmp.Or(k.from, FromKubelet), k.err
}

// specOf is a pod of one container with so many CPUs.
func specOf(name, cpu string) *typesv1.Pod {
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: name, Namespace: "default", Uid: name + "-uid"},
		Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
			Name: "main", Resources: &typesv1.ResourceRequirements{Limits: map[string]string{"cpu": cpu, "memory": "1Gi"}},
		}}},
	}
}

// TestInitOfAKnownPod: a pod whose specification is known is planned as a whole: its init container runs on CPUs of the app, which needs
// all of NUMA node 1. Containers of an unknown one are placed one by one.
func TestInitOfAKnownPod(t *testing.T) {
	t.Parallel()
	for known, want := range map[bool]string{true: "4 4-7", false: "1 4-7"} {
		d := startBerthdWith(t, func(c *config.Config) { c.Topology.Policy = topology.SingleNUMANode })
		spec := specOf("job", "4")
		spec.Spec.InitContainers = []*typesv1.Container{{Name: "warm",
			Resources: &typesv1.ResourceRequirements{Limits: map[string]string{"cpu": "1", "memory": "1Gi"}}}}
		c := Config{Client: d.Client}
		if known {
			c.Kubelet = &knows{pods: map[string]*typesv1.Pod{"job-uid": spec}}
		}
		e := newEngine(t, c)
		p := pod("job", "guaranteed")
		if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		warm := container(p, "warm", "job-warm", 1000, gib)
		got := e.run(p, warm)
		e.stop(p, warm)
		main := e.run(p, container(p, "main", "job-main", 4000, gib))
		if got += " " + main; got != want {
			t.Errorf("specification known %t: the containers have CPUs %s, want %s", known, got, want)
		}
	}
}

// TestStaticPodNames: the kubelet names a static pod after its manifest and the node. A pod whose name
// only begins as a manifest's is another one.
func TestStaticPodNames(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, NodeName: "n1", Manifests: manifests(t,
		manifestOf("web", "{limits: {cpu: 2, memory: 1Gi}}"))})
	for name, whole := range map[string]bool{"web-n1": true, "web-helper-n1": false, "web-n2": false, "web-": false} {
		p := pod(name, "guaranteed")
		p.Annotations = map[string]string{workload.SourceAnnotation: "file"}
		if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := slices.Contains(d.uids(), name+"-uid"); got != whole {
			t.Errorf("pod %s is placed as the manifest web: %v, want %v", name, got, whole)
		}
	}
}

// TestKubeletKnows: what the kubelet says of a pod counts before a manifest does, and where the
// kubelet cannot say, the other sources do.
func TestKubeletKnows(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "2")}}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet, Manifests: manifests(t,
		manifestOf("job", "{limits: {cpu: 64, memory: 1Gi}}"), manifestOf("late", "{limits: {cpu: 1, memory: 1Gi}}"))})
	job := pod("job", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatalf("the kubelet's pod, whose manifest asks for too much: %v", err)
	}
	if _, err := e.create(job, container(job, "main", "job-1", 2000, gib)); err != nil {
		t.Error(err)
	}
	kubelet.err = errors.New("away")
	if err := e.policy.RunPodSandbox(t.Context(), pod("late", "guaranteed")); err != nil {
		t.Fatal(err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"job-uid", "late-uid"}) {
		t.Errorf("berthd has %v, want both pods as a whole", got)
	}
}

// TestSpecificationIsNamed: berthd has, with each pod, where its specification came from.
func TestSpecificationIsNamed(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "1"), "served-uid": specOf("served", "1")}}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet, Annotation: "spec",
		Manifests: manifests(t, manifestOf("web", "{limits: {cpu: 1, memory: 1Gi}}"))})
	for name, row := range map[string]struct{ key, want string }{
		"job": {"job-uid", "kubelet"}, "served": {"served-uid", "kubelet-server"}, "web": {"web-uid", "manifest"},
		"noted": {"noted-uid", "annotation"}, "other": {"other-uid.main", "container"},
	} {
		p := pod(name, "guaranteed")
		if kubelet.from = ""; name == "served" {
			kubelet.from = FromKubeletServer
		}
		if name == "noted" {
			p.Annotations = map[string]string{"spec": `{"containers":[{"name":"main","image":"x","resources":{"limits":{"cpu":"1","memory":"1Gi"}}}]}`}
		}
		if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := e.create(p, container(p, "main", name+"-1", 1000, gib)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := d.Allocation().Get(t.Context(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: row.key}})
		if err != nil {
			t.Fatal(err)
		}
		if source := got.GetSpec().GetMetadata().GetAnnotations()[specificationAnnotation]; source != row.want {
			t.Errorf("the specification of %s is from %q, want %q", name, source, row.want)
		}
	}
}

// TestApartStaysApart: a pod that was placed container by container, because nobody knew it, is not
// placed a second time when the kubelet can say what it is.
func TestApartStaysApart(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
	job := pod("job", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if _, err := e.create(job, container(job, "main", "job-1", 2000, gib)); err != nil {
		t.Fatal(err)
	}
	kubelet.pods = map[string]*typesv1.Pod{"job-uid": specOf("job", "2")}
	running := container(job, "main", "job-1", 2000, gib)
	running.Pid = 1
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{running}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.create(job, container(job, "main", "job-2", 2000, gib)); err != nil {
		t.Errorf("the container starts again: %v", err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"job-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}
}

func specsOf(names ...string) map[string]*typesv1.Pod {
	out := map[string]*typesv1.Pod{}
	for _, name := range names {
		out[name+"-uid"] = specOf(name, "1")
	}
	return out
}

// duoOf is a pod of two containers with so many CPUs, which together do not fit on a NUMA node of the
// machine.
func duoOf(name string) *typesv1.Pod {
	spec := specOf(name, "3")
	second := specOf(name, "2").Spec.Containers[0]
	second.Name = "second"
	spec.Spec.Containers = append(spec.Spec.Containers, second)
	return spec
}

// TestPodIsNotSplit: a pod that has to be on one NUMA node and does not fit there is refused as a
// whole. An error of the kubelet does not change that, and a container that is let pass gets the shared
// CPUs.
func TestPodIsNotSplit(t *testing.T) {
	t.Parallel()
	for _, pass := range []bool{false, true} {
		d := startBerthdWith(t, func(c *config.Config) { c.Topology.Policy, c.Topology.Scope = topology.SingleNUMANode, "pod" })
		kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": duoOf("job")}, err: errors.New("away")}
		e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet, Pass: pass})
		job := pod("job", "guaranteed")
		for _, row := range []struct {
			err  error
			want string
		}{{errors.New("away"), "get pod default/job from the kubelet"}, {nil, "TopologyAffinityError"}} {
			kubelet.err = row.err
			if err := e.policy.RunPodSandbox(t.Context(), job); pass != (err == nil) || err != nil &&
				!strings.Contains(err.Error(), row.want) {
				t.Errorf("pass %v: %v, want %q", pass, err, row.want)
			}
			for name, milli := range map[string]int64{"main": 3000, "second": 2000} {
				c := container(job, name, name+"-1", milli, gib)
				if !pass {
					if _, err := e.create(job, c); err == nil || !strings.Contains(err.Error(), row.want) {
						t.Errorf("container %s: %v, want %q", name, err, row.want)
					}
				} else if cpus := e.run(job, c); cpus != "0-7" {
					t.Errorf("container %s is let pass on CPUs %s", name, cpus)
				}
			}
		}
		if got := d.uids(); len(got) > 0 {
			t.Errorf("pass %v: berthd has %v", pass, got)
		}
	}
}

// TestStaticPodsStart: a kubelet that does not answer yet keeps no pod with a manifest from starting.
func TestStaticPodsStart(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, Kubelet: &knows{err: errors.New("away")},
		Manifests: manifests(t, manifestOf("web", "{limits: {cpu: 1, memory: 1Gi}}"))})
	if err := e.policy.RunPodSandbox(t.Context(), pod("web", "guaranteed")); err != nil {
		t.Error(err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"web-uid"}) {
		t.Errorf("berthd has %v", got)
	}
}

// TestSpecificationsAreFoundBesideFailures: the annotation of one pod cannot be read. The specifications of the others are found in the
// same pass, and the log has one line.
func TestSpecificationsAreFoundBesideFailures(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	var log strings.Builder
	kubelet := &knows{pods: map[string]*typesv1.Pod{}}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet, Annotation: "spec", Log: slog.New(slog.NewTextHandler(&log, nil))})
	var pods []*api.PodSandbox
	var containers []*api.Container
	for i := range 8 {
		p := pod(fmt.Sprint("p", i), "burstable")
		if i%2 == 0 {
			p.Annotations = map[string]string{"spec": "{"}
		} else {
			kubelet.pods[p.Uid] = specOf(p.Name, "100m")
		}
		c := container(p, "main", p.Name+"-1", 100, gib)
		e.runs(c)
		pods, containers = append(pods, p), append(containers, c)
	}
	if _, err := e.policy.Synchronize(t.Context(), pods, containers); err != nil {
		t.Fatal(err)
	}
	e.pushes(3)
	if got := d.uids(); !slices.Equal(got, []string{"p1-uid", "p3-uid", "p5-uid", "p7-uid"}) {
		t.Errorf("berthd has %v, want all pods with a specification", got)
	}
	if got := strings.Count(log.String(), "the specification of pods is not found"); got != 1 {
		t.Errorf("the log has %d lines:\n%s", got, log.String())
	}
}

// TestSandboxWithoutProcess: a runtime's list lacks a container that runs in a sandbox without a process of its own, as CRI-O has them.
// The pod is released when the container has ended. If the sandbox is in the list, the pod may restart the container, and is released at
// its end.
func TestSandboxWithoutProcess(t *testing.T) {
	t.Parallel()
	for _, listed := range []bool{false, true} {
		d := startBerthd(t)
		e := newEngine(t, Config{Client: d.Client})
		e.policy.runtime.Processes = false
		job := pod("job", "guaranteed")
		job.Pid = 0
		e.run(job, container(job, "main", "job-1", 2000, gib))
		var list []*api.PodSandbox
		if listed {
			list = append(list, job)
		}
		if _, err := e.policy.Synchronize(t.Context(), list, nil); err != nil {
			t.Fatal(err)
		}
		e.pushes(2)
		if got := d.uids(); !slices.Equal(got, []string{"job-uid.main"}) {
			t.Errorf("listed %v: a container runs, and berthd has %v", listed, got)
		}
		e.mu.Lock()
		delete(e.cpus, "job-1")
		e.mu.Unlock()
		e.pushes(2)
		if listed {
			if got := d.uids(); !slices.Equal(got, []string{"job-uid.main"}) {
				t.Errorf("the container may start again, and berthd has %v", got)
			}
			e.end(job)
		}
		if got := d.uids(); len(got) > 0 || len(e.policy.node.sandboxes) > 0 {
			t.Errorf("listed %v: the container has ended, and berthd has %v; known are %v", listed, got, e.policy.node.sandboxes)
		}
	}
}

// TestKubeletHasJustStarted: a kubelet that may not have all pods of the API server yet says nothing about one that it does not have. Such
// a pod is not placed container by container, neither when it starts nor while it runs. Static pods start before the API server answers.
func TestKubeletHasJustStarted(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{err: errdefs.Preconditionf("initializing")}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
	job, web, runs := pod("job", "guaranteed"), pod("web", "guaranteed"), pod("runs", "guaranteed")
	for p, source := range map[*api.PodSandbox]string{job: workload.FromAPIServer, web: "file", runs: workload.FromAPIServer} {
		p.Annotations = map[string]string{workload.SourceAnnotation: source}
	}
	if err := e.policy.RunPodSandbox(t.Context(), job); err == nil || !strings.Contains(err.Error(), "initializing") {
		t.Errorf("a pod of the API server: %v", err)
	}
	if err := e.policy.RunPodSandbox(t.Context(), web); err != nil {
		t.Fatalf("a static pod: %v", err)
	}
	e.run(web, container(web, "main", "web-1", 1000, gib))
	c := container(runs, "main", "runs-1", 1000, gib)
	e.runs(c)
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{web, runs}, []*api.Container{c}); err != nil {
		t.Fatal(err)
	}
	e.pushes(2)
	if got := d.uids(); !slices.Equal(got, []string{"web-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}
	kubelet.err, kubelet.pods = nil, map[string]*typesv1.Pod{"job-uid": specOf("job", "1"), "runs-uid": specOf("runs", "1")}
	e.policy.placer.finder.at = time.Time{}
	e.pushes(2)
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Error(err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"job-uid", "runs-uid", "web-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}
}
