package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/hack/overlap"
	"github.com/berthd/berth/hack/stress"
	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
)

// TestStressContainerd has containers come, go and be resized beside pods with CPUs of
// their own, on a containerd whose runc is slow at times, and kills its programs meanwhile.
func TestStressContainerd(t *testing.T) {
	o := stress.Configured(t)
	n := &stressNode{node: newNode(t, nil), units: map[string]*unit{}}
	if err := n.containerd.SlowDown(5, 1.5); err != nil {
		t.Fatal(err)
	}
	d, err := overlap.Start(overlap.Config{Container: n.container, CPUs: cpuset.Of(o.CPU)})
	if err != nil {
		t.Fatal(err)
	}
	o.Probe = filepath.Join(n.built, "root", "probe")
	for i := range sharedPods {
		n.shared = append(n.shared, n.pod("web"+strconv.Itoa(i), "burstable"))
	}
	o.Sandbox = n.containerd.Sandbox // NRI reports a sandbox when its process runs
	stress.Run(t.Context(), t, n, d, o)
	for _, p := range n.shared {
		p.remove()
	}
}

// sharedPods is how many pods the units that share CPUs are spread over.
const sharedPods = 5

// stressNode is the node of the stress test.
type stressNode struct {
	*node
	shared []*pod
	// starts is held for reading by who starts a container, and for writing while there is
	// no berth-nri: starts are not checked then.
	starts sync.RWMutex

	mu      sync.Mutex // guards what is below
	units   map[string]*unit
	attempt uint32
}

// unit is a container that runs.
type unit struct {
	pod *pod
	id  string
}

// container names a container, and a sandbox, by its id, which is its cgroup's name.
func (n *stressNode) container(cgroup string) string {
	cgroup = containerd.Cgroup(cgroup)
	if !strings.HasPrefix(cgroup, n.cgroupOf("kubepods")+"/") {
		return ""
	}
	if id := filepath.Base(cgroup); !strings.HasPrefix(id, "pod") {
		return id
	}
	return ""
}

// retry repeats a call until it succeeds: programs are killed meanwhile.
func retry(ctx context.Context, call func() error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := call()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// again numbers an attempt: what is left of one that was cut off keeps its name.
func (n *stressNode) again() uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attempt++
	return n.attempt
}

// Start implements stress.Node.
func (n *stressNode) Start(ctx context.Context, u stress.Unit) error {
	p, milli, memory := n.shared[int(n.again())%len(n.shared)], int64(10), int64(0)
	if u.Exclusive {
		milli, memory = 1000, 64*mib
		p = &pod{node: n.node, name: u.Name}
		if err := retry(ctx, func() error { return n.sandbox(ctx, p) }); err != nil {
			return err
		}
	}
	return retry(ctx, func() error { return n.launch(ctx, u, p, milli, memory) })
}

// sandbox starts a pod of its own.
func (n *stressNode) sandbox(ctx context.Context, p *pod) error {
	p.config = &criv1.PodSandboxConfig{
		Metadata:     &criv1.PodSandboxMetadata{Name: p.name, Uid: p.name + "-uid", Namespace: "default", Attempt: n.again()},
		LogDirectory: n.path("logs", p.name),
		Linux:        &criv1.LinuxPodSandboxConfig{CgroupParent: n.cgroupOf("kubepods", "", "pod"+p.name)},
	}
	p.config.Labels = kubeletLabels(p.config.Metadata, "")
	if err := os.MkdirAll(p.config.LogDirectory, 0o755); err != nil {
		return err
	}
	answer, err := n.runtime.RunPodSandbox(ctx, &criv1.RunPodSandboxRequest{Config: p.config})
	p.sandbox = answer.GetPodSandboxId()
	return err
}

// launch tries once, as a kubelet does: what does not start is removed.
func (n *stressNode) launch(ctx context.Context, u stress.Unit, p *pod, milli, memory int64) error {
	id, err := n.create(ctx, u, p, milli, memory)
	if err != nil && id != "" {
		_ = retry(ctx, func() error {
			_, err := n.runtime.RemoveContainer(ctx, &criv1.RemoveContainerRequest{ContainerId: id})
			return err
		})
	}
	return err
}

func (n *stressNode) create(ctx context.Context, u stress.Unit, p *pod, milli, memory int64) (id string, err error) {
	n.starts.RLock()
	defer n.starts.RUnlock()
	made, err := n.runtime.CreateContainer(ctx, &criv1.CreateContainerRequest{
		PodSandboxId: p.sandbox, SandboxConfig: p.config,
		Config: &criv1.ContainerConfig{
			Metadata: &criv1.ContainerMetadata{Name: u.Name, Attempt: n.again()},
			Image:    &criv1.ImageSpec{Image: containerd.ProbeImage, UserSpecifiedImage: containerd.ProbeImage},
			Command:  []string{"/probe", "pulse", "5ms"}, LogPath: u.Name + ".log", Labels: kubeletLabels(p.config.GetMetadata(), u.Name),
			Linux: &criv1.LinuxContainerConfig{Resources: sized(milli, memory)},
		},
	})
	if err != nil {
		return "", err
	}
	id = made.GetContainerId()
	if _, err := n.runtime.StartContainer(ctx, &criv1.StartContainerRequest{ContainerId: id}); err != nil {
		return id, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.units[u.Name] = &unit{p, id}
	return id, nil
}

func (n *stressNode) unit(u stress.Unit) *unit {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.units[u.Name]
}

// Held implements stress.Node.
func (n *stressNode) Held(ctx context.Context, u stress.Unit) (string, cpuset.Set, error) {
	var cpus cpuset.Set
	m := n.unit(u)
	err := retry(ctx, func() error {
		a, err := n.berth.Allocation().Allocate(ctx,
			&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: m.pod.name + "-uid." + u.Name},
				ContainerName: u.Name})
		if err == nil {
			cpus, err = cpuset.Parse(a.GetResources().GetCpusetCpus().GetList())
		}
		return err
	})
	return m.id, cpus, err
}

// Resize implements stress.Node.
func (n *stressNode) Resize(ctx context.Context, u stress.Unit, milli int64) error {
	// It may be refused, and the runtime may be away.
	_, _ = n.runtime.UpdateContainerResources(ctx, &criv1.UpdateContainerResourcesRequest{ContainerId: n.unit(u).id,
		Linux: sized(milli, 0)})
	return ctx.Err()
}

// Stop implements stress.Node.
func (n *stressNode) Stop(ctx context.Context, u stress.Unit) error {
	m := n.unit(u)
	return retry(ctx, func() error {
		_, err := n.runtime.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: m.id})
		if err == nil && u.Exclusive {
			return n.end(ctx, m.pod.name+"-uid")
		}
		if err == nil {
			_, err = n.runtime.RemoveContainer(ctx, &criv1.RemoveContainerRequest{ContainerId: m.id})
		}
		return err
	})
}

// end ends all sandboxes of a pod: there may be one whose making was cut off.
func (n *stressNode) end(ctx context.Context, uid string) error {
	all, err := n.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{})
	for _, s := range all.GetItems() {
		if err != nil || s.GetMetadata().GetUid() != uid {
			continue
		}
		if _, err = n.runtime.StopPodSandbox(ctx, &criv1.StopPodSandboxRequest{PodSandboxId: s.GetId()}); err == nil {
			_, err = n.runtime.RemovePodSandbox(ctx, &criv1.RemovePodSandboxRequest{PodSandboxId: s.GetId()})
		}
	}
	return err
}

// Components implements stress.Node.
func (n *stressNode) Components() []string { return []string{"berthd", "berth-nri", "containerd"} }

// Kill implements stress.Node.
func (n *stressNode) Kill(ctx context.Context, component string) error {
	switch component {
	case "berthd":
		_ = n.berthd.End(os.Kill)
		n.startBerthd()
		return nil
	case "berth-nri":
		n.starts.Lock()
		defer n.starts.Unlock()
		_ = n.plugin.End(os.Kill)
		n.startPlugin()
		return nil
	}
	before := n.connections()
	if err := n.containerd.Kill(); err != nil {
		return err
	}
	n.starts.Lock() // until the plugin is connected, too
	defer n.starts.Unlock()
	if err := n.containerd.Start(ctx); err != nil {
		return err
	}
	if err := nodetest.Await(ctx, func() bool { return n.connections() > before }); err != nil {
		return fmt.Errorf("berth-nri is not connected again: %w", err)
	}
	return nil
}
