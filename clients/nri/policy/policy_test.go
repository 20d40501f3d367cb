package policy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/cri"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

const gib = 1 << 30

func set(t *testing.T, list string) cpuset.Set {
	t.Helper()
	s, err := cpuset.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestApart has pods of which nobody knows more than the runtime does.
func TestApart(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web := pod("web", "burstable")
	if err := e.policy.RunPodSandbox(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	if cpus := e.run(web, container(web, "main", "web-1", 500, 0)); cpus != "0-7" {
		t.Errorf("the shared container has CPUs %s", cpus)
	}

	trainer := pod("trainer", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), trainer); err != nil {
		t.Fatal(err)
	}
	main := container(trainer, "main", "trainer-1", 2000, gib)
	own := set(t, e.run(trainer, main))
	if own.Len() != 2 || own.Contains(0) {
		t.Errorf("the container of its own has CPUs %s", own)
	}
	if left := set(t, e.on("web-1")); left.Overlaps(own) || left.Union(own) != set(t, "0-7") {
		t.Errorf("the shared container is on %s now", left)
	}
	if got := d.uids(); !slices.Equal(got, []string{"trainer-uid.main", "web-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}

	// A container that crashes comes back to where it was, though others came.
	e.stop(trainer, main)
	other := pod("other", "guaranteed")
	if cpus := set(t, e.run(other, container(other, "main", "other-1", 1000, gib))); cpus.Overlaps(own) {
		t.Errorf("another container got %s of %s", cpus, own)
	}
	if again := set(t, e.run(trainer, container(trainer, "main", "trainer-2", 2000, gib))); again != own {
		t.Errorf("the container is on %s after its restart, was on %s", again, own)
	}

	// A change of its resources by the kubelet leaves it where it is.
	updates, err := e.policy.UpdateContainer(t.Context(), trainer, &api.Container{Id: "trainer-2"}, &api.LinuxResources{})
	if err != nil || len(updates) != 1 || updates[0].GetLinux().GetResources().GetCpu().GetCpus() != own.String() {
		t.Errorf("update: %v, %v", updates, err)
	}
	for _, p := range []*api.PodSandbox{web, trainer, other} {
		e.end(p)
	}
	if got := d.uids(); len(got) != 0 {
		t.Errorf("berthd still has %v", got)
	}
}

// TestInitContainer hands what an init container had on to the next ones.
func TestInitContainer(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	p := pod("p", "guaranteed")
	first := container(p, "first", "first-1", 6000, gib)
	if cpus := set(t, e.run(p, first)); cpus.Len() != 6 {
		t.Errorf("the init container has %s", cpus)
	}
	if _, err := e.create(p, container(p, "main", "main-0", 6000, gib)); err == nil {
		t.Error("6 CPUs were given twice, of 7")
	}
	e.stop(p, first)
	if cpus := set(t, e.run(p, container(p, "main", "main-1", 6000, gib))); cpus.Len() != 6 {
		t.Errorf("the container after it has %s", cpus)
	}
	// One that asks for something else under the same name is somebody else.
	e.stop(p, &api.Container{Id: "main-1"})
	if cpus := set(t, e.run(p, container(p, "main", "main-2", 7000, gib))); cpus.Len() != 7 {
		t.Errorf("the container that has grown has %s", cpus)
	}
	e.end(p)
	if got := d.uids(); len(got) != 0 {
		t.Errorf("berthd still has %v", got)
	}
}

// TestDevicesOfTheKubelet has a pod that asks for a device of the kubelet's: where berthd
// leaves it to the kubelet the pod gets its place, and where not it gets none, and the
// log says why.
func TestDevicesOfTheKubelet(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(*config.Config)
		whole  bool
		placed bool
		warns  bool
	}{
		"left to the kubelet": {change: func(c *config.Config) { c.Devices.Elsewhere = []string{"*"} }, whole: true, placed: true},
		"ignored": {change: func(c *config.Config) { c.Devices.Unknown = config.UnknownIgnore }, whole: true,
			placed: true},
		"unknown":                {change: func(*config.Config) {}, whole: true, warns: true},
		"container by container": {change: func(*config.Config) {}, placed: true},
		"only some are left to him": {change: func(c *config.Config) { c.Devices.Elsewhere = []string{"example.org"} }, whole: true,
			warns: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			c := Config{Client: startBerthdWith(t, row.change).Client, Log: slog.New(slog.NewTextHandler(&log, nil))}
			if row.whole {
				c.Manifests, c.NodeName = manifests(t, manifestOf("job", "{limits: {cpu: 2, memory: 1Gi, example.com/gpu: 1}}")), "node7"
			}
			e := newEngine(t, c)
			job := pod("job-node7", "guaranteed")
			job.Annotations = map[string]string{workload.SourceAnnotation: "file"}
			err := e.policy.RunPodSandbox(t.Context(), job)
			if err == nil {
				_, err = e.create(job, container(job, "main", "job-1", 2000, gib))
			}
			if (err == nil) != row.placed {
				t.Errorf("placed: %v", err)
			}
			if warned := strings.Contains(log.String(), "--devices-elsewhere '*'"); warned != row.warns {
				t.Errorf("the log: %s", log.String())
			}
		})
	}
}

// TestWhole has pods whose specification is known: static ones of a kubelet.
func TestWhole(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	d.plugin()
	e := newEngine(t, Config{Client: d.Client, NodeName: "node7", Manifests: manifests(t,
		manifestOf("job", "{limits: {cpu: 2, memory: 1Gi, example.com/gpu: 1}}"),
		manifestOf("greedy", "{limits: {cpu: 64, memory: 1Gi}}"),
		"no manifest at all",
	)})
	job := pod("job-node7", "guaranteed")
	job.Annotations = map[string]string{workload.SourceAnnotation: "file"}
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"job-node7-uid"}) {
		t.Fatalf("berthd has %v", got)
	}
	c := container(job, "main", "job-1", 2000, gib)
	adjust, err := e.create(job, c)
	if err != nil {
		t.Fatal(err)
	}
	if cpus := set(t, adjust.GetLinux().GetResources().GetCpu().GetCpus()); cpus.Len() != 2 {
		t.Errorf("CPUs %s", cpus)
	}
	devices, mounts, env := adjust.GetLinux().GetDevices(), adjust.GetMounts(), adjust.GetEnv()
	if len(devices) != 1 || devices[0].GetPath() != "/dev/gpu-gpu0" || devices[0].GetType() != "c" || devices[0].GetMajor() != 1 ||
		devices[0].GetMinor() != 3 {
		t.Errorf("devices %v", devices)
	}
	if len(mounts) != 1 || mounts[0].GetDestination() != "/run/devices/gpu" || !slices.Contains(mounts[0].GetOptions(), "ro") {
		t.Errorf("mounts %v", mounts)
	}
	if len(env) != 1 || env[0].GetKey() != "EXAMPLE_COM_GPU" || env[0].GetValue() != "gpu0" {
		t.Errorf("environment %v", env)
	}
	if !maps.Equal(adjust.GetAnnotations(), map[string]string{"example.com/gpu": "gpu0"}) {
		t.Errorf("annotations %v", adjust.GetAnnotations())
	}
	if err := e.start(job, c); err != nil {
		t.Error(err)
	}

	// A container that the specification does not have: one for debugging.
	if cpus := set(t, e.run(job, container(job, "debug", "debug-1", 0, 0))); cpus.Overlaps(set(t, e.on("job-1"))) {
		t.Errorf("the container for debugging is on %s", cpus)
	}
	// A specification that is not that of the container.
	if _, err := e.create(job, container(job, "main", "job-2", 30000, gib)); err == nil || !strings.Contains(err.Error(), "Infeasible") {
		t.Errorf("another size: %v", err)
	}
	greedy := pod("greedy", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), greedy); err == nil || !strings.Contains(err.Error(), "berth: admit the pod: ") {
		t.Errorf("a pod that does not fit: %v", err)
	}
	e.end(job)
	if got := d.uids(); len(got) != 0 {
		t.Errorf("berthd still has %v", got)
	}
}

// TestAnnotation believes an annotation only as far as the runtime says the same.
func TestAnnotation(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	const key = "example.com/spec"
	e := newEngine(t, Config{Client: d.Client, Annotation: key})
	p := pod("p", "guaranteed")
	p.Annotations = map[string]string{key: `{"containers": [
		{"name": "a", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}},
		{"name": "b", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]}`}
	if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"p-uid"}) {
		t.Errorf("berthd has %v", got)
	}
	a := set(t, e.run(p, container(p, "a", "a-1", 2000, gib)))
	if b := set(t, e.run(p, container(p, "b", "b-1", 1000, gib))); a.Len() != 2 || b.Len() != 1 || a.Overlaps(b) {
		t.Errorf("CPUs %s and %s", a, b)
	}
	forged := pod("forged", "besteffort")
	forged.Annotations = map[string]string{key: `{"containers": [{"name": "main", "resources": {"limits": {"cpu": "4", "memory": "1Gi"}}}]}`}
	if err := e.policy.RunPodSandbox(t.Context(), forged); err == nil {
		if _, err = e.create(forged, container(forged, "main", "f-1", 0, 0)); err == nil {
			t.Error("a specification that somebody made up was believed")
		}
	}
	broken := pod("broken", "guaranteed")
	broken.Annotations = map[string]string{key: `{"containers": `}
	if err := e.policy.RunPodSandbox(t.Context(), broken); err == nil || !strings.Contains(err.Error(), key) {
		t.Errorf("an annotation that cannot be read: %v", err)
	}
	for _, p := range []*api.PodSandbox{p, forged} {
		e.end(p)
	}
}

// TestDynamicResourcesAreTheKubelets: a pod with resourceClaims runs, because the kubelet
// serves these. berthd alone refuses it.
func TestDynamicResourcesAreTheKubelets(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	const key = "example.com/spec"
	e := newEngine(t, Config{Client: d.Client, Annotation: key})
	p := pod("p", "guaranteed")
	p.Annotations = map[string]string{key: `{"resourceClaims": [{"name": "card", "resourceClaimName": "c"}], "containers": [
		{"name": "a", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "claims": [{"name": "card"}]}}]}`}
	if a := set(t, e.run(p, container(p, "a", "a-1", 2000, gib))); a.Len() != 2 {
		t.Errorf("CPUs %s", a)
	}
	e.end(p)
}

// TestNotLeft has a runtime that does not carry updates out.
func TestNotLeft(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	e.run(web, container(web, "main", "web-1", 500, 0))
	e.stuck = true
	c := container(trainer, "main", "trainer-1", 2000, gib)
	if _, err := e.create(trainer, c); err != nil {
		t.Fatal(err)
	}
	if err := e.start(trainer, c); err == nil || !strings.Contains(err.Error(), "container main of default/web") {
		t.Errorf("a container started while another one was on its CPUs: %v", err)
	}
	// It is tried again, and then carried out.
	e.stuck = false
	e.follow()
	eventually(t, "the container starts", func() bool { return e.start(trainer, c) == nil })
	if set(t, e.on("web-1")).Overlaps(set(t, e.on("trainer-1"))) {
		t.Errorf("CPUs %v", e.all())
	}
}

// TestFollow gives CPUs that become free to those that share.
func TestFollow(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	e.follow()
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	e.run(web, container(web, "main", "web-1", 500, 0))
	c := container(trainer, "main", "trainer-1", 3000, gib)
	e.run(trainer, c)
	if cpus := set(t, e.on("web-1")); cpus.Len() != 5 {
		t.Errorf("the shared container is on %s", cpus)
	}
	e.stop(trainer, c)
	e.end(trainer)
	eventually(t, "the shared container has all CPUs", func() bool { return e.on("web-1") == "0-7" })
}

// TestSilentEnd has a runtime that does not tell of the end of a sandbox.
func TestSilentEnd(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	e.follow()
	trainer := pod("trainer", "guaranteed")
	c := container(trainer, "main", "trainer-1", 3000, gib)
	e.run(trainer, c)
	e.stop(trainer, c)
	if got := d.uids(); !slices.Equal(got, []string{"trainer-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	if err := e.policy.RemoveContainer(t.Context(), trainer, c); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the place is given back", func() bool { return len(d.uids()) == 0 })
}

// TestBlind has a machine on which nobody can read where processes run, for the moment:
// that is no sign that they have ended.
func TestBlind(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	see := func(err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.blind = err
	}
	look := func() {
		t.Helper()
		if _, _, err := e.policy.look(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	web, idle, trainer := pod("web", "burstable"), pod("idle", "guaranteed"), pod("trainer", "guaranteed")
	e.run(web, container(web, "main", "web-1", 500, 0))
	i := container(idle, "main", "idle-1", 1000, gib)
	e.run(idle, i)
	e.stop(idle, i) // its pod lives on
	c := container(trainer, "main", "trainer-1", 2000, gib)
	if _, err := e.create(trainer, c); err != nil {
		t.Fatal(err)
	}

	see(syscall.EMFILE)
	if err := e.start(trainer, c); err == nil || !strings.Contains(err.Error(), "container main of default/web") {
		t.Errorf("a container started, though another one may be on its CPUs: %v", err)
	}
	look()
	if got := d.uids(); !slices.Contains(got, "idle-uid.main") {
		t.Errorf("the place of a pod that lives was given back; berthd has %v", got)
	}
	see(syscall.ESRCH) // every process ends while it is looked at
	if err := e.start(trainer, c); err != nil {
		t.Error(err)
	}
	look()
	if got := d.uids(); slices.Contains(got, "idle-uid.main") {
		t.Errorf("the place of a pod that has ended is still there: %v", got)
	}
}

// TestOvertaken has an update that is on its way while a container is made that
// wants what it gives.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, first, second := pod("web", "burstable"), pod("first", "guaranteed"), pod("second", "guaranteed")
	e.run(web, container(web, "main", "web-1", 500, 0))
	c := container(first, "main", "first-1", 3000, gib)
	e.run(first, c)
	var once sync.Once
	made := make(chan struct{})
	e.before = func([]*api.ContainerUpdate) {
		once.Do(func() {
			// The shared CPUs have just become more, and the runtime does not know yet.
			defer close(made)
			c := container(second, "main", "second-1", 3000, gib)
			if _, err := e.create(second, c); err != nil {
				t.Error(err)
			}
			if err := e.start(second, c); err == nil || !strings.Contains(err.Error(), "may be moving to") {
				t.Errorf("a container started while an update was under way: %v", err)
			}
		})
	}
	e.follow()
	e.stop(first, c)
	e.end(first)
	<-made
	eventually(t, "the shared container has left", func() bool {
		return !set(t, e.on("web-1")).Overlaps(set(t, e.on("second-1"))) &&
			e.start(second, container(second, "main", "second-1", 3000, gib)) == nil
	})
}

// TestWithoutBerthd asks for containers while there is no berthd.
func TestWithoutBerthd(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	strict := newEngine(t, Config{Client: d.Client, PassNamespaces: []string{"kube-system"}})
	p := pod("p", "burstable")
	strict.run(p, container(p, "main", "p-1", 500, 0)) // the shared CPUs are known from here on
	d.stop()
	if _, err := strict.create(p, container(p, "main", "p-2", 500, 0)); err == nil ||
		!strings.HasPrefix(err.Error(), "berth: place container main: ") {
		t.Errorf("without berthd: %v", err)
	}
	system := pod("system", "burstable")
	system.Namespace = "kube-system"
	if cpus := strict.run(system, container(system, "main", "s-1", 500, 0)); cpus != "0-7" {
		t.Errorf("a container that is let pass is on %s", cpus)
	}
	d.again()
	strict.follow()
	// What was let pass gets its place as soon as there is one.
	eventually(t, "the container has a place", func() bool { return slices.Contains(d.uids(), "system-uid.main") })
	for _, p := range []*api.PodSandbox{p, system} {
		strict.end(p)
	}
}

// TestPass lets what does not fit start on the shared CPUs, and keeps it there.
func TestPass(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, Pass: true, Manifests: manifests(t, manifestOf("big", "{limits: {cpu: 64, memory: 1Gi}}"))})
	trainer, greedy, big := pod("trainer", "guaranteed"), pod("greedy", "guaranteed"), pod("big", "guaranteed")
	own := set(t, e.run(trainer, container(trainer, "main", "trainer-1", 4000, gib)))
	if cpus := set(t, e.run(greedy, container(greedy, "main", "greedy-1", 4000, gib))); cpus.Overlaps(own) || cpus.IsEmpty() {
		t.Errorf("the container that does not fit is on %s, another one owns %s", cpus, own)
	}
	if err := e.policy.RunPodSandbox(t.Context(), big); err != nil {
		t.Errorf("a pod that does not fit: %v", err)
	}
	next := pod("next", "guaranteed")
	more := set(t, e.run(next, container(next, "main", "next-1", 1000, gib)))
	if cpus := set(t, e.on("greedy-1")); cpus.Overlaps(own) || cpus.Overlaps(more) || cpus.IsEmpty() {
		t.Errorf("it is on %s, others own %s and %s", cpus, own, more)
	}
}

// TestSynchronize takes over what runs.
func TestSynchronize(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	before := newEngine(t, Config{Client: d.Client})
	web, trainer, gone := pod("web", "burstable"), pod("trainer", "guaranteed"), pod("gone", "guaranteed")
	w, tr := container(web, "main", "web-1", 500, 0), container(trainer, "main", "trainer-1", 2000, gib)
	before.run(web, w)
	own := before.run(trainer, tr)
	before.run(gone, container(gone, "main", "gone-1", 1000, gib))

	// Meanwhile one pod has gone, one has come, and somebody has moved a container.
	late := pod("late", "burstable")
	l := container(late, "main", "late-1", 500, 0)
	ended := pod("ended", "guaranteed")
	ended.Pid = 0
	w.Linux.Resources.Cpu.Cpus, tr.Linux.Resources.Cpu.Cpus = "0-7", own
	for _, c := range []*api.Container{w, tr, l} {
		c.State = api.ContainerState_CONTAINER_RUNNING
	}
	// The adjusted container has no quota, so its resources look like another's.
	tr.Linux.Resources.Cpu.Quota = api.Int64(-1)
	p := New(before.settings)
	updates, err := p.Synchronize(t.Context(), []*api.PodSandbox{web, trainer, late, ended}, []*api.Container{w, tr, l})
	if err != nil {
		t.Fatal(err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"late-uid.main", "trainer-uid.main", "web-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}
	shared := set(t, "0-7").Minus(set(t, own)).String()
	got := map[string]string{}
	for _, u := range updates {
		got[u.GetContainerId()] = u.GetLinux().GetResources().GetCpu().GetCpus()
	}
	if !maps.Equal(got, map[string]string{"web-1": shared, "late-1": shared}) {
		t.Errorf("updates %v, want %s for web-1 and late-1", got, shared)
	}
}

// TestLedgerLost has a berthd that knows nothing any more.
func TestLedgerLost(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	e.follow()
	web, trainer := pod("web", "burstable"), pod("trainer", "guaranteed")
	e.run(web, container(web, "main", "web-1", 500, 0))
	e.run(trainer, container(trainer, "main", "trainer-1", 2000, gib))
	d.stop()
	if err := os.RemoveAll(d.config.StateDir); err != nil {
		t.Fatal(err)
	}
	d.again()
	eventually(t, "all have their places again", func() bool {
		return slices.Equal(d.uids(), []string{"trainer-uid.main", "web-uid.main"}) &&
			!set(t, e.on("web-1")).Overlaps(set(t, e.on("trainer-1")))
	})
	next := pod("next", "guaranteed")
	eventually(t, "another one gets a place", func() bool {
		_, err := e.create(next, container(next, "main", "next-1", 1000, gib))
		return err == nil
	})
	if cpus := set(t, e.on("next-1")); cpus.Overlaps(set(t, e.on("trainer-1"))) || cpus.Len() != 1 {
		t.Errorf("CPUs %v", e.all())
	}
}

// TestBarred has a berthd that is started beside a runtime of its own, by mistake,
// and then without.
func TestBarred(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	if err := Alone(t.Context(), d.Client); err != nil {
		t.Errorf("a berthd without a runtime: %v", err)
	}
	e := newEngine(t, Config{Client: d.Client})
	e.follow()
	web := pod("web", "burstable")
	w := container(web, "main", "web-1", 500, 0)
	e.run(web, w)

	socket := d.config.RootDir + "/cri.sock"
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	serving := make(chan error, 1)
	go func() { serving <- cri.New(cri.Config{}).Serve(t.Context(), l) }()
	t.Cleanup(func() { <-serving })
	d.stop()
	d.config.RuntimeEndpoint = "unix://" + socket
	d.again()
	barred := func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "or do not use berth-nri")
	}
	if err := Alone(t.Context(), d.Client); !barred(err) {
		t.Errorf("a berthd with a runtime: %v", err)
	}
	next := pod("next", "burstable")
	eventually(t, "no container is made", func() bool {
		_, err := e.create(next, container(next, "main", "next-1", 500, 0))
		return barred(err)
	})
	if err := e.policy.RunPodSandbox(t.Context(), next); !barred(err) {
		t.Errorf("a pod: %v", err)
	}
	if err := e.policy.StartContainer(t.Context(), web, w); !barred(err) {
		t.Errorf("a start: %v", err)
	}
	if _, err := e.resize(web, w, size(700, 0, 0)); !barred(err) {
		t.Errorf("a resize: %v", err)
	}

	d.stop()
	d.config.RuntimeEndpoint = ""
	d.again()
	eventually(t, "a container is made", func() bool {
		_, err := e.create(next, container(next, "main", "next-2", 500, 0))
		return err == nil
	})
}

// TestBarredUntilReleased: that berthd does not answer in time does not let the plugin
// move containers beside a berthd that moves them itself.
func TestBarredUntilReleased(t *testing.T) {
	t.Parallel()
	client, err := berth.Dial(t.Context(), t.TempDir()+"/nobody.sock", berth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	p := New(Config{Client: client, Log: slog.New(slog.DiscardHandler)})
	barred := errdefs.Preconditionf("both would move them")
	p.node.synchronized, p.gate.barred = true, barred
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.placer.reconcile(ctx); err == nil || errdefs.ClassOf(err) == errdefs.Precondition {
		t.Errorf("nobody answers: %v", err)
	}
	if !errors.Is(p.gate.barred, barred) {
		t.Errorf("barred is %v", p.gate.barred)
	}
}

// TestNothingLivesBeforeTheRuntimeHasSaidSo: before the runtime has said what runs, the policy tells berthd of no empty
// list.
func TestNothingLivesBeforeTheRuntimeHasSaidSo(t *testing.T) {
	t.Parallel()
	p := New(Config{Log: slog.New(slog.DiscardHandler)})
	if uids, _, err := p.view.living(nil); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("living are %v, %v", uids, err)
	}
	p.node.synchronized = true
	if uids, _, err := p.view.living(nil); err != nil || len(uids) > 0 {
		t.Errorf("living on an empty node are %v, %v", uids, err)
	}
}

// TestQuotaOfEarlierContainers: a container with CPUs of its own that has started before berth-nri
// gets them, and loses its quota, whether or not it is on them already.
func TestQuotaOfEarlierContainers(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	before := newEngine(t, Config{Client: d.Client})
	known, early := pod("known", "guaranteed"), pod("early", "guaranteed")
	k, e := container(known, "main", "known-1", 2000, gib), container(early, "main", "early-1", 2000, gib)
	own := before.run(known, k)
	k.Linux.Resources.Cpu.Cpus = own
	k.State, e.State = api.ContainerState_CONTAINER_RUNNING, api.ContainerState_CONTAINER_RUNNING
	updates, err := New(before.settings).Synchronize(t.Context(), []*api.PodSandbox{known, early}, []*api.Container{k, e})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, u := range updates {
		cpu := u.GetLinux().GetResources().GetCpu()
		if got[u.GetContainerId()] = cpu.GetQuota().GetValue(); set(t, cpu.GetCpus()).Len() != 2 {
			t.Errorf("%s gets CPUs %q, want two", u.GetContainerId(), cpu.GetCpus())
		}
	}
	if !maps.Equal(got, map[string]int64{"known-1": -1, "early-1": -1}) {
		t.Errorf("quotas %v, want -1 for both", got)
	}
}

// TestPodLevelResources: the kubelet writes the amounts of a pod with pod-level resources on each of
// its containers. Without the specification, the first gets them and the others share CPUs; a
// container after an init container of the same size is not mistaken for one.
func TestPodLevelResources(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	whole := pod("whole", "guaranteed")
	whole.Linux.PodResources = container(whole, "", "", 3000, gib).Linux.Resources
	own := set(t, e.run(whole, container(whole, "a", "whole-a", 3000, gib)))
	if own.Len() != 3 {
		t.Errorf("the first container has CPUs %s, want three", own)
	}
	for _, name := range []string{"b", "c"} {
		if cpus := set(t, e.run(whole, container(whole, name, "whole-"+name, 3000, gib))); cpus.Overlaps(own) || cpus.Len() != 5 {
			t.Errorf("container %s has CPUs %s, want the shared ones", name, cpus)
		}
	}
	staged := pod("staged", "guaranteed")
	staged.Linux.PodResources = container(staged, "", "", 2000, gib).Linux.Resources
	first := container(staged, "first", "staged-first", 2000, gib)
	e.run(staged, first)
	e.stop(staged, first)
	if cpus := set(t, e.run(staged, container(staged, "main", "staged-main", 2000, gib))); cpus.Len() != 2 || cpus.Overlaps(own) {
		t.Errorf("the container after the init container has CPUs %s, want two of its own", cpus)
	}
}
