package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/nri/amounts"
	"github.com/berthd/berth/managers/cpuset"
)

// size is what a kubelet tells of a container on a resize; 0 milli is what an
// update looks like that is about something else.
func size(milli, limit, memory int64) *api.LinuxResources {
	r := &api.LinuxResources{
		Cpu:    &api.LinuxCPU{Shares: api.UInt64(uint64(0)), Quota: api.Int64(int64(0)), Period: api.UInt64(uint64(0))},
		Memory: &api.LinuxMemory{Limit: api.Int64(memory)},
	}
	if milli > 0 {
		r.Cpu.Shares = api.UInt64(uint64(max(2, milli*1024/1000)))
	}
	if limit > 0 {
		r.Cpu.Quota, r.Cpu.Period = api.Int64(limit*100), api.UInt64(uint64(100_000))
	}
	return r
}

// resize updates a container, and if the policy agrees the runtime has its values.
func (e *engine) resize(p *api.PodSandbox, c *api.Container, r *api.LinuxResources) (*api.ContainerUpdate, error) {
	e.t.Helper()
	e.calls.Lock()
	defer e.calls.Unlock()
	updates, err := e.policy.UpdateContainer(e.t.Context(), p, c, r)
	if err != nil {
		return nil, err
	}
	e.apply(updates)
	c.Linux.Resources = changed(c.Linux.Resources, r)
	// The CPUs of containers that share them are left to what the runtime was given last.
	if len(updates) == 0 {
		return nil, nil
	}
	if !e.policy.runtime.Requests { // others are in the answer, too
		updates = slices.DeleteFunc(updates, func(u *api.ContainerUpdate) bool { return u.GetContainerId() != c.GetId() })
		return append(updates, nil)[0], nil
	}
	if len(updates) != 1 || updates[0].GetContainerId() != c.GetId() {
		e.t.Fatalf("updates %v", updates)
	}
	return updates[0], nil
}

// counts gives what berthd counts a container with, as it appears in its cgroup.
func (d *daemon) counts(key, name string) (shares, memory int64) {
	d.t.Helper()
	a, err := d.Allocation().Allocate(d.t.Context(),
		&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: key}, ContainerName: name})
	if err != nil {
		d.t.Fatal(err)
	}
	return int64(a.GetResources().GetCpuShares()), a.GetResources().GetMemoryLimitBytes()
}

func (d *daemon) expect(when, key, name string, milli, memory int64) {
	d.t.Helper()
	if shares, limit := d.counts(key, name); shares != milli*1024/1000 || limit != memory {
		d.t.Errorf("%s: berthd counts %s of %s with %d shares and %d bytes, want %dm and %d bytes", when, name, key, shares, limit, milli,
			memory)
	}
}

func (d *daemon) revision() uint64 {
	d.t.Helper()
	answer, err := d.Allocation().GetRevision(d.t.Context(), &allocationv1.GetRevisionRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	return answer.GetRevision()
}

// TestResizeApart resizes containers of which nobody knows more than the runtime.
func TestResizeApart(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	w, tr := container(web, "main", "web-1", 500, 0), container(trainer, "main", "trainer-1", 2000, gib)
	e.run(web, w)
	own := e.run(trainer, tr)
	tr.Linux.Resources.Cpu.Quota = api.Int64(-1) // as the runtime has it after the adjustment

	// A kubelet sends cpu and memory one after the other, each with the other's old values.
	if _, err := e.resize(web, w, size(500, 0, 2*gib)); err != nil {
		t.Fatal(err)
	}
	d.expect("memory was limited", "web-uid.main", "main", 500, 2*gib)
	if _, err := e.resize(web, w, size(1500, 3000, 2*gib)); err != nil {
		t.Fatal(err)
	}
	d.expect("cpu was raised", "web-uid.main", "main", 1500, 2*gib)
	if _, err := e.resize(web, w, size(2, 3000, gib)); err != nil {
		t.Fatal(err)
	}
	if got := amounts.Of(e.policy.node.members["web-1"].resources, false); got.CPURequest != 0 || got.MemoryLimit != gib {
		t.Errorf("the least request: %+v", got)
	}
	if _, err := e.resize(web, w, size(300, 3000, gib)); err != nil {
		t.Fatal(err)
	}
	d.expect("cpu was raised from the least request", "web-uid.main", "main", 300, gib)

	// The runtime fails to do what was agreed, and the kubelet takes it back.
	if _, err := e.policy.UpdateContainer(t.Context(), web, w, size(300, 3000, 2*gib)); err != nil {
		t.Fatal(err)
	}
	d.expect("memory was not raised", "web-uid.main", "main", 300, 2*gib)
	if _, err := e.resize(web, w, size(300, 3000, gib)); err != nil {
		t.Fatal(err)
	}
	d.expect("memory was not raised and is not any more", "web-uid.main", "main", 300, gib)

	// Nothing is added to the kubelet's values for a container that shares CPUs: those could
	// be old by the time of the update.
	if updates, err := e.policy.UpdateContainer(t.Context(), web, w, size(300, 3000, gib)); err != nil || len(updates) > 0 {
		t.Errorf("updates %v, %v", updates, err)
	}

	const infeasible = `berth: resize container main: Infeasible: `
	if _, err := e.resize(trainer, tr, size(99000, 99000, gib)); err == nil || !strings.Contains(err.Error(), infeasible) {
		t.Errorf("more CPUs than there are: %v", err)
	}
	d.expect("the resize was refused", "trainer-uid.main", "main", 2000, gib)
	// The container gets more exclusive CPUs when the others have left them, and gives back just these.
	before := e.on("trainer-1")
	e.follow()
	if u, err := e.resize(trainer, tr, size(3000, 3000, gib)); err != nil || u.GetLinux().GetResources().GetCpu().GetCpus() != own {
		t.Errorf("more CPUs: %v, %v", u, err)
	}
	d.expect("cpus were added", "trainer-uid.main", "main", 3000, gib)
	eventually(t, "it runs on 3 CPUs, and no other container does", func() bool {
		has, err := cpuset.Parse(e.on("trainer-1"))
		shared, otherErr := cpuset.Parse(e.on("web-1"))
		return err == nil && otherErr == nil && has.Len() == 3 && !has.Overlaps(shared)
	})
	if u, err := e.resize(trainer, tr, size(2000, 2000, gib)); err != nil || u.GetLinux().GetResources().GetCpu().GetCpus() != own {
		t.Errorf("fewer CPUs: %v, %v", u, err)
	}
	eventually(t, "it runs on its first CPUs", func() bool { return e.on("trainer-1") == before })
	// Its memory does, and the quota that a kubelet sends beside it has no effect.
	u, err := e.resize(trainer, tr, size(2000, 2000, 2*gib))
	if err != nil {
		t.Fatal(err)
	}
	if cpu := u.GetLinux().GetResources().GetCpu(); cpu.GetCpus() != own || cpu.GetQuota().GetValue() != -1 {
		t.Errorf("update of the container of its own: %v", u)
	}
	d.expect("memory was raised", "trainer-uid.main", "main", 2000, 2*gib)

	// One that is made again has the size that it was given last, and so its place.
	e.stop(trainer, tr)
	if again := e.run(trainer, container(trainer, "main", "trainer-2", 2000, 2*gib)); again != own {
		t.Errorf("the container is on %s after its restart, was on %s", again, own)
	}
	for _, p := range []*api.PodSandbox{web, trainer} {
		e.end(p)
	}
}

const duo = `{"containers": [
  {"name": "a", "image": "x", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}},
  {"name": "b", "image": "x", "resources": {"requests": {"cpu": "100m"}}}],
"initContainers": [
  {"name": "first", "image": "x", "resources": {"requests": {"cpu": "50m"}}},
  {"name": "side", "image": "x", "restartPolicy": "Always", "resources": {"requests": {"cpu": "200m"}, "limits": {"cpu": "5m"}}}]}`

// TestResizeWhole resizes containers of a pod whose specification is known.
func TestResizeWhole(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	c := Config{Client: d.Client, Annotation: "example.com/spec"}
	e := newEngine(t, c)
	p := pod("duo", "burstable")
	p.Annotations = map[string]string{"example.com/spec": strings.Replace(duo, `"5m"`, `"300m"`, 1)}
	if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	first, side := container(p, "first", "first-1", 50, 0), container(p, "side", "side-1", 200, 0)
	a, b := container(p, "a", "a-1", 500, 0), container(p, "b", "b-1", 100, 0)
	side.Linux.Resources.Cpu.Quota, side.Linux.Resources.Cpu.Period = api.Int64(int64(30_000)), api.UInt64(uint64(100_000))
	a.Linux.Resources.Memory = &api.LinuxMemory{Limit: api.Int64(int64(2 * gib))}
	for _, c := range []*api.Container{first, side, a, b} {
		e.run(p, c)
	}
	e.stop(p, first)

	for _, row := range []struct {
		of   *api.Container
		size *api.LinuxResources
	}{{a, size(700, 0, 2*gib)}, {a, size(700, 0, gib/2)}, {side, size(250, 300, 0)}, {side, size(250, 400, 0)}} {
		if _, err := e.resize(p, row.of, row.size); err != nil {
			t.Fatal(err)
		}
	}
	want := func(e *engine, when string) {
		t.Helper()
		d.expect(when, "duo-uid", "a", 700, gib/2)
		d.expect(when, "duo-uid", "b", 100, 0)
		d.expect(when, "duo-uid", "side", 250, 0)
		spec := e.policy.node.sandboxes["duo-sandbox"].spec.GetSpec()
		if r := spec.GetContainers()[0].GetResources(); !maps.Equal(r.GetRequests(),
			map[string]string{"cpu": "700m", "memory": "536870912"}) {
			t.Errorf("%s: a requests %v", when, r)
		}
		if r := spec.GetContainers()[1].GetResources(); !maps.Equal(r.GetRequests(), map[string]string{"cpu": "100m"}) ||
			len(r.GetLimits()) > 0 {
			t.Errorf("%s: b requests %v", when, r)
		}
		if r := spec.GetInitContainers()[1].GetResources(); r.GetLimits()["cpu"] != "400m" {
			t.Errorf("%s: side requests %v", when, r)
		}
	}
	want(e, "after resizes")

	// A plugin that comes later has the annotation, which tells of the first sizes.
	later := e
	later.policy = New(e.settings)
	for _, c := range []*api.Container{side, a, b} {
		c.State = api.ContainerState_CONTAINER_RUNNING
	}
	before := d.revision()
	if _, err := later.policy.Synchronize(t.Context(), []*api.PodSandbox{p}, []*api.Container{side, a, b}); err != nil {
		t.Fatal(err)
	}
	want(later, "after a restart of the plugin")
	if now := d.revision(); now != before {
		t.Errorf("the restart of the plugin changed the ledger: revision %d, was %d", now, before)
	}

	// A resize may restart a container, which is then made with another size at once.
	later.stop(p, b)
	if _, err := later.create(p, container(p, "b", "b-2", 300, 0)); err != nil {
		t.Error(err)
	}
	d.expect("b was made again", "duo-uid", "b", 300, 0)
	if _, err := later.create(p, container(p, "first", "first-2", 300, 0)); err == nil ||
		!strings.Contains(err.Error(), "requests 50m of cpu") {
		t.Errorf("an init container of another size: %v", err)
	}
	later.end(p)
	if got := d.uids(); len(got) != 0 {
		t.Errorf("berthd still has %v", got)
	}
}

// TestResizeUnheard resizes containers while berthd is away.
func TestResizeUnheard(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, PassNamespaces: []string{"kube-system"}})
	web, system := pod("web", "burstable"), pod("system", "burstable")
	system.Namespace = "kube-system"
	w, s := container(web, "main", "web-1", 500, 0), container(system, "main", "s-1", 500, 0)
	e.run(web, w)
	e.run(system, s)
	d.stop()
	if _, err := e.resize(web, w, size(700, 0, 0)); err == nil || !strings.Contains(err.Error(), "berth: resize container main") {
		t.Errorf("resized without berthd: %v", err)
	}
	if _, err := e.resize(web, w, size(0, 0, 0)); err != nil {
		t.Errorf("what is no resize: %v", err)
	}
	if _, err := e.resize(system, s, size(700, 0, 0)); err != nil {
		t.Errorf("what is let pass: %v", err)
	}
	if err := os.RemoveAll(d.config.StateDir); err != nil {
		t.Fatal(err)
	}
	d.again()
	// It has lost the pods, and hears of them once it is asked for.
	if _, err := e.resize(web, w, size(900, 0, 0)); err == nil {
		t.Error("a pod was resized that berthd does not have")
	}
	e.follow()
	eventually(t, "the pods are back", func() bool {
		return slices.Equal(d.uids(), []string{"system-uid.main", "web-uid.main"})
	})
	d.expect("after the ledger was lost", "web-uid.main", "main", 500, 0)
	d.expect("after the ledger was lost", "system-uid.main", "main", 700, 0)
}

// TestReconcileBindings finds containers that were resized while there was no plugin.
func TestReconcileBindings(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	w, tr := container(web, "main", "web-1", 500, 0), container(trainer, "main", "trainer-1", 2000, gib)
	e.run(web, w)
	own := e.run(trainer, tr)
	w.Linux.Resources, tr.Linux.Resources = size(900, 0, gib), size(30000, 0, gib)
	tr.Linux.Resources.Cpu.Cpus = own
	for _, c := range []*api.Container{w, tr} {
		c.State = api.ContainerState_CONTAINER_RUNNING
	}
	next := New(e.settings)
	if _, err := next.Synchronize(t.Context(), []*api.PodSandbox{web, trainer}, []*api.Container{w, tr}); err != nil {
		t.Fatal(err)
	}
	d.expect("a shared container", "web-uid.main", "main", 900, gib)
	d.expect("one of its own", "trainer-uid.main", "main", 2000, gib)
	if m := next.node.members["trainer-1"]; m.key == "" || m.own.String() != own {
		t.Errorf("the container that berthd counts otherwise lost its place: %+v", m)
	}
}

// onWarning is a log that does something at the first warning with a text.
type onWarning struct {
	slog.Handler
	text string
	do   func()
}

func (h *onWarning) Handle(_ context.Context, r slog.Record) error {
	if do := h.do; do != nil && strings.Contains(r.Message, h.text) {
		h.do = nil
		do()
	}
	return nil
}

func (h *onWarning) Enabled(context.Context, slog.Level) bool { return true }

// TestLostMeanwhile has a berthd that loses a pod just after it was taken over: its
// container is not moved off its CPUs for that, and gets its place again.
func TestLostMeanwhile(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	greedy, trainer := pod("greedy", "guaranteed"), pod("trainer", "guaranteed")
	g, tr := container(greedy, "main", "greedy-1", 1000, gib), container(trainer, "main", "trainer-1", 2000, gib)
	e.run(greedy, g)
	own := e.run(trainer, tr)
	for c, p := range map[*api.Container]string{g: "greedy-1", tr: "trainer-1"} {
		c.State, c.Linux.Resources.Cpu.Cpus = api.ContainerState_CONTAINER_RUNNING, e.on(p)
		c.Linux.Resources.Cpu.Quota = api.Int64(-1) // as the runtime has it after the adjustment
	}
	// berthd refuses this size after it has allocated both containers, before the next
	// request.
	g.Linux.Resources = size(3000, 0, gib)
	g.Linux.Resources.Cpu.Cpus = e.on("greedy-1")
	config := e.settings
	config.Log = slog.New(&onWarning{Handler: slog.DiscardHandler, text: "other resources for a container", do: func() {
		if _, err := d.Admission().RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "trainer-uid.main"}); err != nil {
			t.Error(err)
		}
	}})
	next := New(config)
	updates, err := next.Synchronize(t.Context(), []*api.PodSandbox{greedy, trainer}, []*api.Container{g, tr})
	if err != nil || len(updates) > 0 {
		t.Errorf("updates %v, %v", updates, err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"greedy-uid.main"}) {
		t.Fatalf("berthd has %v", got)
	}
	if updates, _, err = next.look(t.Context()); err != nil || len(updates) > 0 {
		t.Errorf("updates %v, %v", updates, err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"greedy-uid.main", "trainer-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}
	if m := next.node.members["trainer-1"]; m.own.String() != own {
		t.Errorf("the container has %s for itself, had %s", m.own, own)
	}
}

// TestResizedBeforeItsFirstStart: a pod is resized after its sandbox has started, while an image is
// pulled. The kubelet's specification counts then, and no other source's.
func TestResizedBeforeItsFirstStart(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{pods: specsOf("job", "other")}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
	job, other := pod("job", "guaranteed"), pod("other", "guaranteed")
	for _, p := range []*api.PodSandbox{job, other} {
		if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	c := container(job, "main", "job-1", 2000, gib)
	if _, err := e.create(job, c); err == nil || !strings.Contains(err.Error(), "requests 1000m of cpu") {
		t.Errorf("another size than the kubelet's: %v", err)
	}
	kubelet.err = errors.New("away")
	if _, err := e.create(job, c); err == nil || !strings.Contains(err.Error(), "from the kubelet") {
		t.Errorf("another size, and the kubelet does not answer: %v", err)
	}
	kubelet.err = nil
	kubelet.pods["job-uid"], kubelet.pods["other-uid"] = specOf("job", "2"), specOf("other", "64")
	if cpus := set(t, e.run(job, c)); cpus.Len() != 2 {
		t.Errorf("the container of 2 CPUs is on %s", cpus)
	}
	d.expect("the pod was resized", "job-uid", "main", 2000, gib)
	if _, err := e.create(other, container(other, "main", "other-1", 64000, gib)); err == nil ||
		!strings.Contains(err.Error(), "Infeasible") {
		t.Errorf("more CPUs than there are: %v", err)
	}
}

// TestRestartWithAnotherCPULimit: a resize of the CPU limit alone has restarted the container. No update has the new limit.
func TestRestartWithAnotherCPULimit(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	spec := specOf("job", "1")
	spec.Spec.Containers[0].Resources.Requests = map[string]string{"cpu": "500m"}
	e := newEngine(t, Config{Client: d.Client, Kubelet: &knows{pods: map[string]*typesv1.Pod{"job-uid": spec}}})
	job := pod("job", "burstable")
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	for i, limit := range []int64{1000, 1000, 2000, 1500} {
		before := d.revision()
		c := container(job, "main", fmt.Sprintf("job-%d", i), 500, gib)
		c.Linux.Resources = size(500, limit, gib)
		if _, err := e.create(job, c); err != nil {
			t.Fatal(err)
		}
		if now := d.revision(); i == 0 && now != before {
			t.Error("a container with the limit of its specification changes the ledger")
		}
		if err := e.start(job, c); err != nil {
			t.Fatal(err)
		}
		if got := d.cpuLimit("job-uid", "main"); got != limit {
			t.Errorf("berthd has the CPU limit %dm, want %dm", got, limit)
		}
		e.stop(job, c)
	}
}

func TestWriteTo(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name             string
		requests, limits map[string]string
		told             *api.LinuxResources
		want, wantLimits map[string]string
	}{
		{"agrees", map[string]string{"cpu": "0.5"}, map[string]string{"memory": "1Gi"}, size(500, 0, gib),
			map[string]string{"cpu": "0.5"}, map[string]string{"memory": "1Gi"}},
		{"least request", map[string]string{"cpu": "1m"}, nil, size(1, 0, 0), map[string]string{"cpu": "1m"}, nil},
		{"to the least request", map[string]string{"cpu": "1"}, nil, size(1, 0, 0), map[string]string{"cpu": "2m"}, nil},
		{"least limit", map[string]string{"cpu": "5m"}, map[string]string{"cpu": "5m"}, size(5, 10, 0), map[string]string{"cpu": "5m"},
			map[string]string{"cpu": "5m"}},
		{"request from the limit", nil, map[string]string{"cpu": "1"}, size(1000, 2000, 0), map[string]string{"cpu": "1000m"},
			map[string]string{"cpu": "2000m"}},
		{"limit of the pod", map[string]string{"cpu": "1"}, nil, size(1000, 4000, gib), map[string]string{"cpu": "1"}, nil},
		{"memory grows", map[string]string{"memory": "1Gi"}, map[string]string{"memory": "2Gi"}, size(0, 0, 4*gib),
			map[string]string{"memory": "1073741824"}, map[string]string{"memory": "4294967296"}},
		{"memory shrinks", map[string]string{"memory": "1Gi"}, map[string]string{"memory": "2Gi"}, size(0, 0, gib/2),
			map[string]string{"memory": "536870912"}, map[string]string{"memory": "536870912"}},
		{"memory that is its limit", map[string]string{"memory": "1Gi"}, map[string]string{"memory": "1Gi"}, size(0, 0, 2*gib),
			map[string]string{"memory": "2147483648"}, map[string]string{"memory": "2147483648"}},
	} {
		c := &typesv1.Container{Name: "main", Resources: &typesv1.ResourceRequirements{Requests: row.requests, Limits: row.limits}}
		m := &member{name: "main", pod: &sandbox{qos: "Burstable"}, resources: row.told}
		if err := m.writeTo(c); err != nil || !maps.Equal(c.GetResources().GetRequests(), row.want) ||
			!maps.Equal(c.GetResources().GetLimits(), row.wantLimits) {
			t.Errorf("%s: %v, %v", row.name, c.GetResources(), err)
		}
	}
	bad := &typesv1.Container{Name: "main", Resources: &typesv1.ResourceRequirements{Limits: map[string]string{"memory": "much"}}}
	if err := (&member{name: "main", pod: &sandbox{}}).writeTo(bad); err == nil || !strings.Contains(err.Error(), `memory "much"`) {
		t.Errorf("no quantity: %v", err)
	}
}

// TestRefusedResizeIsLoggedOnce: a kubelet repeats a refused resize every second; the log has it
// once, and again when the size or the reason changes.
func TestRefusedResizeIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, Log: slog.New(slog.NewTextHandler(&log, nil))})
	trainer := pod("trainer", "guaranteed")
	c := container(trainer, "main", "trainer-1", 2000, gib)
	e.run(trainer, c)
	for _, step := range []struct{ milli, logged int64 }{{30000, 1}, {30000, 1}, {20000, 2}, {20000, 2}, {30000, 3}} {
		if _, err := e.resize(trainer, c, size(step.milli, step.milli, gib)); err == nil {
			t.Errorf("a resize to %dm is not refused", step.milli)
		}
		if got := strings.Count(log.String(), "a container's resize is refused"); got != int(step.logged) {
			t.Errorf("after %dm the log has %d lines, want %d:\n%s", step.milli, got, step.logged, log.String())
		}
	}
}
