package criclient_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/runtime"
	"github.com/berthd/berth/server/internal/runtime/criclient"
)

// timeout bounds every wait; no test takes that long unless it fails.
const timeout = time.Minute

// bench is a container runtime with an image "probe".
type bench struct {
	t      *testing.T
	socket string
	cri    criv1.RuntimeServiceClient
	client *criclient.Client
	// old runtimes do not report their cgroup driver.
	old bool
	// parent is a cgroup for pods.
	parent string
	// read returns the CPUs and the memory limit of a cgroup, as the kernel has them.
	read func(name cgroup.Name) (cpus string, memory int64)
	// restart kills the runtime and starts it again.
	restart func()
}

func newBench(t *testing.T, socket string) *bench {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	client, err := criclient.Dial("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	})
	return &bench{t: t, socket: socket, cri: criv1.NewRuntimeServiceClient(conn), client: client}
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// pod runs a sandbox and reports how to make containers in it.
func (b *bench) pod(ctx context.Context, uid string) (create func(name string, words ...string) string) {
	b.t.Helper()
	labels := func(name string) map[string]string {
		return map[string]string{types.KubernetesPodUIDLabel: uid, types.KubernetesContainerNameLabel: name}
	}
	config := &criv1.PodSandboxConfig{
		Metadata: &criv1.PodSandboxMetadata{Name: uid, Namespace: "default", Uid: uid},
		Labels:   map[string]string{types.KubernetesPodUIDLabel: uid},
		Linux:    &criv1.LinuxPodSandboxConfig{CgroupParent: b.parent + "/pod" + uid},
	}
	answer, err := b.cri.RunPodSandbox(ctx, &criv1.RunPodSandboxRequest{Config: config}, grpc.WaitForReady(true))
	b.must(err)
	return func(name string, words ...string) string {
		b.t.Helper()
		c := &criv1.ContainerConfig{
			Metadata: &criv1.ContainerMetadata{Name: name}, Image: &criv1.ImageSpec{Image: "probe", UserSpecifiedImage: "probe"},
			Command: append([]string{"/probe"}, words...), Labels: labels(name),
			Linux: &criv1.LinuxContainerConfig{Resources: &criv1.LinuxContainerResources{CpusetCpus: "0-1", MemoryLimitInBytes: 64 << 20}},
		}
		if name == "" {
			c.Metadata.Name, c.Labels = "nobody", nil
		}
		made, err := b.cri.CreateContainer(ctx, &criv1.CreateContainerRequest{PodSandboxId: answer.GetPodSandboxId(), Config: c,
			SandboxConfig: config})
		b.must(err)
		return made.GetContainerId()
	}
}

func (b *bench) start(ctx context.Context, id string) {
	b.t.Helper()
	_, err := b.cri.StartContainer(ctx, &criv1.StartContainerRequest{ContainerId: id})
	b.must(err)
}

// only expects one container with labels.
func (b *bench) only(ctx context.Context, id string, phase runtime.Phase) runtime.Container {
	b.t.Helper()
	all, err := b.client.List(ctx)
	b.must(err)
	if len(all) != 1 || all[0].ID != id || all[0].Phase != phase {
		b.t.Fatalf("containers %+v, want %s that is %s", all, id, phase)
	}
	return all[0]
}

// on expects where a container runs.
func (b *bench) on(name cgroup.Name, cpus string) {
	b.t.Helper()
	if got, memory := b.read(name); got != cpus || memory != 64<<20 {
		b.t.Errorf("cgroup %s: CPUs %s and %d bytes, want %s and what it began with", name, got, memory, cpus)
	}
}

func cpus(list string) cgroup.Values {
	set, err := cpuset.Parse(list)
	if err != nil {
		panic(err)
	}
	return cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: set}}
}

// contract holds a runtime against what berthd relies on.
func contract(b *bench) {
	ctx, cancel := context.WithTimeout(b.t.Context(), timeout)
	defer cancel()
	if about, err := b.client.About(ctx); err != nil || about == " " {
		b.t.Errorf("about %q, %v", about, err)
	}
	if driver, told, err := b.client.Driver(ctx); err != nil || told == b.old || told && driver != cgroup.Cgroupfs {
		b.t.Errorf("driver %q, %v, %v", driver, told, err)
	}
	create := b.pod(ctx, "u")
	create("", "wait") // without labels
	id := create("main", "wait")
	c := b.only(ctx, id, runtime.Created)
	if want := (ledger.Owner{Pod: "u", Container: "main"}); c.Owner != want || c.Attempt != 0 ||
		c.Cgroup.ToCgroupfs() != b.parent+"/podu/"+id && c.Cgroup.ToCgroupfs() != b.parent+"/podu/crio-"+id {
		b.t.Errorf("created: %+v", c)
	}
	for _, ids := range [][]string{{id}, {"nobody", id}} {
		if some, err := b.client.List(ctx, ids...); err != nil || len(some) != 1 || some[0].ID != id {
			b.t.Errorf("those of %v: %+v, %v", ids, some, err)
		}
	}
	if some, err := b.client.List(ctx, "nobody"); err != nil || len(some) > 0 {
		b.t.Errorf("nobody: %+v, %v", some, err)
	}
	sandboxes, err := b.client.Sandboxes(ctx)
	if err != nil || len(sandboxes) != 1 || sandboxes[0].Pod != "u" || !sandboxes[0].Ready {
		b.t.Errorf("sandboxes %+v, %v", sandboxes, err)
	}
	if some, err := b.client.Sandboxes(ctx, "other", "u"); err != nil || !slices.Equal(some, sandboxes) {
		b.t.Errorf("those of some pods: %+v, %v", some, err)
	}
	b.must(b.client.Update(ctx, id, cpus("0")))
	b.start(ctx, id)
	b.only(ctx, id, runtime.Running)
	b.on(c.Cgroup, "0")
	b.must(b.client.Update(ctx, id, cpus("1")))
	b.on(c.Cgroup, "1")
	b.restart()
	if again := b.onlyEventually(ctx, id); again.Phase != runtime.Running || !again.Cgroup.Equal(c.Cgroup) {
		b.t.Errorf("after a restart: %+v", again)
	}
	b.must(b.client.Update(ctx, id, cpus("0-1")))
	b.on(c.Cgroup, "0-1")
	_, err = b.cri.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: id}, grpc.WaitForReady(true))
	b.must(err)
	if c := b.only(ctx, id, runtime.Exited); c.Cgroup != nil {
		b.t.Errorf("exited: %+v", c)
	}
	b.must(b.client.Update(ctx, id, cpus("0")))
	b.must(b.client.Update(ctx, "nobody", cpus("0")))
	_, err = b.cri.StopPodSandbox(ctx, &criv1.StopPodSandboxRequest{PodSandboxId: sandboxes[0].ID})
	b.must(err)
	if sandboxes, err := b.client.Sandboxes(ctx); err != nil || len(sandboxes) != 1 || sandboxes[0].Ready {
		b.t.Errorf("after its stop: %+v, %v", sandboxes, err)
	}
}

// stopPod stops a sandbox and the containers in it, and removes them.
func (b *bench) stopPod(ctx context.Context, sandbox string) {
	b.t.Helper()
	_, err := b.cri.StopPodSandbox(ctx, &criv1.StopPodSandboxRequest{PodSandboxId: sandbox})
	b.must(err)
	_, err = b.cri.RemovePodSandbox(ctx, &criv1.RemovePodSandboxRequest{PodSandboxId: sandbox})
	b.must(err)
}

// onlyEventually is only for a runtime that was away: a connection notices that at
// its first call.
func (b *bench) onlyEventually(ctx context.Context, id string) runtime.Container {
	b.t.Helper()
	for {
		_, err := b.client.List(ctx)
		if err == nil {
			return b.only(ctx, id, runtime.Running)
		}
		if errdefs.ClassOf(err) != errdefs.Unavailable || ctx.Err() != nil {
			b.t.Fatal(err)
		}
		_, _ = b.client.About(ctx) // waits for the connection
	}
}
