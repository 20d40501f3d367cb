package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/berthlet/agent"
	"github.com/berthd/berth/hack/overlap"
	"github.com/berthd/berth/hack/stress"
	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
)

// TestStress has pods start and end on berthlet's own runtime beside pods with CPUs of their
// own, and kills berthd and berthlet meanwhile. A container's process counts from its
// first instruction on.
func TestStress(t *testing.T) {
	o := stress.Configured(t)
	testStress(newNode(t), o, true)
}

// TestStressContainerd does so on a containerd whose runc is slow at times, and kills
// that, too.
func TestStressContainerd(t *testing.T) {
	o := stress.Configured(t)
	n := newContainerdNode(t, nil)
	if err := n.containerd.SlowDown(5, 1.5); err != nil {
		t.Fatal(err)
	}
	testStress(n, o, false)
}

func testStress(n *node, o stress.Options, fromBirth bool) {
	t := n.t
	d, err := overlap.Start(overlap.Config{Container: n.container, CPUs: cpuset.Of(o.CPU), FromBirth: fromBirth})
	if err != nil {
		t.Fatal(err)
	}
	o.Probe = filepath.Join(n.built, "root", "probe")
	stress.Run(t.Context(), t, &stressNode{n}, d, o)
	n.noPods()
}

// container names a container, and a sandbox, by its cgroup.
func (n *node) container(cgroup string) string {
	cgroup = containerd.Cgroup(cgroup)
	path, ours := strings.CutPrefix(cgroup, n.top()+"/")
	if !ours || strings.HasPrefix(filepath.Base(path), "pod") || !strings.Contains(path, "/pod") {
		return ""
	}
	return cgroup
}

// stressNode is the node of the stress test: a pod for each unit.
type stressNode struct{ *node }

const stressed = `
apiVersion: v1
kind: Pod
metadata: {name: NAME, uid: NAME-uid}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: root
    command: [/probe, pulse, 5ms]
`

// errNoPod is the error of a pod that berthlet does not have.
var errNoPod = errors.New("no such pod")

// pod reads berthlet's status of a pod. The pod may be absent.
func (c *stressNode) pod(name string) (agent.PodStatus, error) {
	text, err := os.ReadFile(c.path("state", "status.json"))
	if err != nil {
		return agent.PodStatus{}, err
	}
	var s agent.Status
	if err := json.Unmarshal(text, &s); err != nil {
		return agent.PodStatus{}, err
	}
	for _, p := range s.Pods {
		if p.Name == name {
			return p, nil
		}
	}
	return agent.PodStatus{}, errNoPod
}

// Start implements stress.Node.
func (c *stressNode) Start(ctx context.Context, u stress.Unit) error {
	text := stressed
	if u.Exclusive {
		text += "    resources: {limits: {cpu: 1, memory: 64Mi}}\n"
	}
	hidden := c.path("manifests", "."+u.Name)
	err := os.WriteFile(hidden, []byte(strings.ReplaceAll(text, "NAME", u.Name)), 0o644)
	if err == nil {
		err = os.Rename(hidden, c.path("manifests", u.Name+".yaml"))
	}
	if err != nil {
		return err
	}
	var last agent.PodStatus
	if err := nodetest.Await(ctx, func() bool {
		p, err := c.pod(u.Name)
		last = p
		if err == nil && u.Exclusive && p.Phase == "Failed" { // the one before has not gone yet
			_ = c.Stop(ctx, u)
			_ = os.WriteFile(hidden, []byte(strings.ReplaceAll(text, "NAME", u.Name)), 0o644)
			_ = os.Rename(hidden, c.path("manifests", u.Name+".yaml"))
		}
		return err == nil && allRun(p)
	}); err != nil {
		return fmt.Errorf("%w; it is %+v", err, last)
	}
	return nil
}

// Held implements stress.Node.
func (c *stressNode) Held(ctx context.Context, u stress.Unit) (container string, cpus cpuset.Set, err error) {
	waited := nodetest.Await(ctx, func() bool {
		var a *allocationv1.AllocateResponse
		a, err = c.client.Allocation().Allocate(ctx,
			&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: u.Name + "-uid"}, ContainerName: "main"})
		if err != nil {
			return false
		}
		container = a.GetCgroupPath()
		if c.containerd != nil {
			var p agent.PodStatus
			if p, err = c.pod(u.Name); err != nil || len(p.ContainerStatuses) == 0 {
				return false
			}
			id := p.ContainerStatuses[0].ContainerID
			if c.slices != nil {
				id = "cri-containerd-" + id + ".scope"
			}
			container = filepath.Join(a.GetCgroupParent(), id)
		}
		cpus, err = cpuset.Parse(a.GetResources().GetCpusetCpus().GetList())
		return err == nil
	})
	return container, cpus, errors.Join(waited, err)
}

// Resize implements stress.Node: berthlet resizes nothing in place.
func (c *stressNode) Resize(ctx context.Context, u stress.Unit, milli int64) error { return ctx.Err() }

// Stop implements stress.Node.
func (c *stressNode) Stop(ctx context.Context, u stress.Unit) error {
	if err := os.Remove(c.path("manifests", u.Name+".yaml")); err != nil {
		return err
	}
	return nodetest.Await(ctx, func() bool {
		_, err := c.pod(u.Name)
		return errors.Is(err, errNoPod)
	})
}

// Components implements stress.Node.
func (c *stressNode) Components() []string {
	if c.containerd == nil {
		return []string{"berthd", "berthlet"}
	}
	return []string{"berthd", "berthlet", "containerd"}
}

// Kill implements stress.Node.
func (c *stressNode) Kill(ctx context.Context, component string) error {
	switch component {
	case "berthd":
		_ = c.berthd.End(os.Kill)
		c.startBerthd()
	case "berthlet":
		_ = c.berthlet.End(os.Kill)
		c.startBerthlet()
	default:
		if err := c.containerd.Kill(); err != nil {
			return err
		}
		return c.containerd.Start(ctx)
	}
	return nil
}
