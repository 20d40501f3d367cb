package main

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	"github.com/berthd/berth/hack/testing/cri"
)

// pluginHost is a container runtime in memory beside a node, with a client of the agent's.
type pluginHost struct {
	*cri.Server
	t        *testing.T
	endpoint string
	stop     func()
}

func newPluginHost(n *node, driver criv1.CgroupDriver) *pluginHost {
	n.t.Helper()
	d := &pluginHost{Server: cri.New(cri.Config{Driver: &driver, Images: []string{"probe"}}), t: n.t,
		endpoint: "unix://" + n.root + "/cri.sock"}
	d.serve()
	n.t.Cleanup(func() { d.stop() })
	return d
}

func (d *pluginHost) serve() {
	d.t.Helper()
	l, err := net.Listen("unix", strings.TrimPrefix(d.endpoint, "unix://"))
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Serve(ctx, l) }()
	d.stop = func() {
		cancel()
		if err := <-done; err != nil {
			d.t.Error(err)
		}
		d.stop = func() {}
	}
}

// create makes a container of a pod as an agent does, with what Allocate answered.
func (d *pluginHost) create(uid string, attempt uint32, a *allocationv1.AllocateResponse) string {
	d.t.Helper()
	labels := map[string]string{types.KubernetesPodUIDLabel: uid, types.KubernetesContainerNameLabel: "main"}
	config := &criv1.PodSandboxConfig{
		Metadata: &criv1.PodSandboxMetadata{Name: uid, Namespace: "default", Uid: uid, Attempt: attempt},
		Linux:    &criv1.LinuxPodSandboxConfig{CgroupParent: a.GetCgroupParent()},
	}
	pod, err := d.RunPodSandbox(d.t.Context(), &criv1.RunPodSandboxRequest{Config: config})
	if err != nil {
		d.t.Fatal(err)
	}
	made, err := d.CreateContainer(d.t.Context(), &criv1.CreateContainerRequest{
		PodSandboxId: pod.GetPodSandboxId(), SandboxConfig: config,
		Config: &criv1.ContainerConfig{
			Metadata: &criv1.ContainerMetadata{Name: "main", Attempt: attempt}, Image: &criv1.ImageSpec{Image: "probe"},
			Command: []string{"/probe", "wait"}, Labels: labels,
			Linux: &criv1.LinuxContainerConfig{Resources: &criv1.LinuxContainerResources{
				CpusetCpus: a.GetResources().GetCpusetCpus().GetList(),
			}},
		},
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return made.GetContainerId()
}

func (d *pluginHost) start(id string) {
	d.t.Helper()
	if _, err := d.StartContainer(d.t.Context(), &criv1.StartContainerRequest{ContainerId: id}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) allocate(uid string) *allocationv1.AllocateResponse {
	d.t.Helper()
	a, err := d.allocation.Allocate(d.ctx(), &allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: uid},
		ContainerName: "main"})
	if err != nil {
		d.t.Fatal(err)
	}
	return a
}

func (d *daemon) preStart(uid, id string) error {
	_, err := d.lifecycle.PreStartContainer(d.ctx(), &lifecyclev1.PreStartContainerRequest{PodUid: uid, ContainerName: "main",
		ContainerId: id})
	return err
}

func (d *daemon) bound(uid string, want ...string) {
	d.t.Helper()
	if got := d.pods()[uid].GetContainers()[0].GetContainerIds(); !slices.Equal(got, want) {
		d.t.Errorf("containers of %s are %v, want %v", uid, got, want)
	}
}

// TestRuntime has a container runtime make the containers. The tree is in memory, so
// nothing there has their CPUs: berthd updates the runtime each time.
func TestRuntime(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--cgroup-tree", "memory", "--machine", "1s1n4c1t")
	n.kernel = false
	c := newPluginHost(n, criv1.CgroupDriver_CGROUPFS)
	n.args = append(n.args, "--runtime-endpoint", c.endpoint)
	d := n.start()
	d.admitted(burstable("shared"))
	a := d.allocate("shared")
	if a.GetCgroupPath() != "" || a.GetResources().GetCpusetCpus().GetList() != "0-3" {
		t.Errorf("beside a runtime Allocate answers with cgroup %q, CPUs %s", a.GetCgroupPath(), a.GetResources().GetCpusetCpus())
	}
	first := c.create("shared", 0, a)
	d.admitted(guaranteed("own", 2, 0))
	// The answer is old by now; the container starts with the new one.
	if err := d.preStart("shared", first); err != nil {
		t.Fatal(err)
	}
	own := d.allocate("own").GetResources().GetCpusetCpus().GetList()
	rest := d.allocate("shared").GetResources().GetCpusetCpus().GetList()
	if got := c.Resources(first).GetCpusetCpus(); got != rest || rest == "0-3" || own == "" {
		t.Errorf("it would start on CPUs %s, want %s beside %s", got, rest, own)
	}
	c.start(first)
	d.bound("shared", first)

	// While berthd is away the container ends, and another one is started.
	d.kill()
	c.End(first, 1)
	second := c.create("shared", 1, a)
	c.start(second)
	d = n.start()
	d.bound("shared", second)
	d.eventually("it is where it belongs", func() bool { return c.Resources(second).GetCpusetCpus() == rest })

	// No container starts on CPUs that others cannot be made to leave.
	ownID := c.create("own", 0, d.allocate("own"))
	if err := d.preStart("own", ownID); err != nil {
		t.Fatal(err)
	}
	d.remove("own")
	d.eventually("the shared container gets the CPUs back", func() bool { return c.Resources(second).GetCpusetCpus() == "0-3" })
	c.Fail("UpdateContainerResources", status.Error(codes.Unknown, "no"))
	d.admitted(guaranteed("next", 2, 0))
	if err := d.preStart("next", "not-made-yet"); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "clear the CPUs") {
		t.Errorf("exclusive CPUs that are not clear: %v", err)
	}
	c.Fail("UpdateContainerResources", nil)
	if err := d.preStart("next", "not-made-yet"); err != nil {
		t.Error(err)
	}
	// A runtime that restarts is no reason to end.
	c.stop()
	c.serve()
	d.eventually("berthd finds it again", func() bool { return d.preStart("next", "not-made-yet") == nil })
	d.check()
	d.stop()
}

// TestRuntimeDriver takes the cgroup driver from the runtime.
func TestRuntimeDriver(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--cgroup-tree", "memory")
	c := newPluginHost(n, criv1.CgroupDriver_SYSTEMD)
	d := n.start("--runtime-endpoint", c.endpoint)
	d.says("driver=systemd configured=cgroupfs")
	d.stop()
}
