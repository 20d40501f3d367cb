package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/containerd"
	"github.com/berthd/berth/hack/nodetest"
	"github.com/berthd/berth/hack/overlap"
	"github.com/berthd/berth/hack/stress"
	"github.com/berthd/berth/managers/cpuset"
)

// TestStressCluster has pods come and go on a Kubernetes node, beside Guaranteed pods with CPUs of their own,
// and kills the kubelet, containerd, berthd, berth-nri and the API server meanwhile. No other container may run
// on an exclusive CPU, every pod starts in the end, and the ledger is sound.
func TestStressCluster(t *testing.T) {
	o := stress.Configured(t)
	o.SandboxesRoam = true // NRI tells of a sandbox when its process runs
	o.Alive = 12           // each pod of a kubelet has two processes and probes
	k := newKubernetes(t, nil)
	client, err := berth.Dial(t.Context(), k.socket, berth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	n := &stressCluster{kubernetes: k, berth: client}
	d, err := overlap.Start(overlap.Config{Container: n.container, CPUs: cpuset.Of(o.CPU)})
	if err != nil {
		t.Fatal(err)
	}
	o.Probe = filepath.Join(k.built, "root", "probe")
	stress.Run(t.Context(), t, n, d, o)
	k.Eventually("berthd has no pods left", func() bool {
		list, err := client.Allocation().List(t.Context(), &allocationv1.ListRequest{})
		return err == nil && len(list.GetPods()) == 0
	})
	if text, err := k.berthctl("ledger", "check"); err != nil {
		t.Errorf("check of the ledger: %v: %s", err, text)
	}
}

// stressCluster is a cluster as the stress test sees it.
type stressCluster struct {
	*kubernetes
	berth *berth.Client
	// starts is held for reading while a pod starts, and for writing while there is no berth-nri:
	// nobody checks a start then.
	starts sync.RWMutex
}

// container names a container, and a sandbox, by its id, which is its cgroup's name.
func (n *stressCluster) container(cgroup string) string {
	if !strings.HasPrefix(cgroup, n.Cgroup+"/kubepods/") {
		return ""
	}
	if id := filepath.Base(cgroup); !strings.HasPrefix(id, "pod") && id != "besteffort" && id != "burstable" {
		return id
	}
	return ""
}

// Start implements stress.Node. A pod is a Guaranteed one with a CPU, or requests nothing.
func (n *stressCluster) Start(ctx context.Context, u stress.Unit) error {
	n.starts.RLock()
	defer n.starts.RUnlock()
	resources := `{}`
	if u.Exclusive {
		resources = `{"limits": {"cpu": "1", "memory": "64Mi"}}`
	}
	manifest := n.Path(u.Name + ".json")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "containers": [
		{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "pulse", "5ms"], "resources": %s}]}}`, u.Name, containerd.ProbeImage, resources)
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		return err
	}
	err := retry(ctx, func() error { _, err := n.Kubectl("apply", "-f", manifest); return err })
	if err != nil {
		return err
	}
	return nodetest.Await(ctx, func() bool { _, running := n.pod(u.Name); return running })
}

// podStatus is what the test needs of a pod.
type podStatus struct {
	Metadata struct{ UID string }
	Status   struct {
		ContainerStatuses []struct {
			ContainerID string
			State       struct{ Running *struct{} }
		}
	}
}

func (n *stressCluster) pod(name string) (p podStatus, running bool) {
	err := n.Get(&p, "pod", name)
	return p, err == nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Running != nil
}

// Held implements stress.Node.
func (n *stressCluster) Held(ctx context.Context, u stress.Unit) (id string, cpus cpuset.Set, err error) {
	err = retry(ctx, func() error {
		p, running := n.pod(u.Name)
		if !running {
			return fmt.Errorf("pod %s does not run", u.Name)
		}
		_, id, _ = strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
		a, err := n.berth.Allocation().Allocate(ctx, &allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: p.Metadata.UID}, ContainerName: "main"})
		if err == nil {
			cpus, err = cpuset.Parse(a.GetResources().GetCpusetCpus().GetList())
		}
		return err
	})
	return id, cpus, err
}

// Resize implements stress.Node: a pod that requests nothing cannot be resized.
func (n *stressCluster) Resize(context.Context, stress.Unit, int64) error { return nil }

// Stop implements stress.Node.
func (n *stressCluster) Stop(ctx context.Context, u stress.Unit) error {
	return retry(ctx, func() error {
		_, err := n.Kubectl("delete", "pod", u.Name, "--ignore-not-found", "--wait=true", "--timeout=60s")
		return err
	})
}

// Components implements stress.Node.
func (n *stressCluster) Components() []string {
	return []string{"berthd", "berth-nri", "kubelet", "containerd", "kube-apiserver"}
}

// Kill implements stress.Node.
func (n *stressCluster) Kill(ctx context.Context, component string) error {
	switch component {
	case "berthd":
		_ = n.End(component, os.Kill)
		n.startBerthd()
		return nil
	case "berth-nri":
		n.starts.Lock()
		defer n.starts.Unlock()
		_ = n.End(component, os.Kill)
		n.startPlugin()
		return nil
	case "containerd":
		const synchronized = "synchronized with the runtime"
		n.starts.Lock() // until the plugin is connected, too
		defer n.starts.Unlock()
		before := strings.Count(n.Log("berth-nri").String(), synchronized)
		if err := n.Containerd.Kill(); err != nil {
			return err
		}
		if err := n.Containerd.Start(ctx); err != nil {
			return err
		}
		return nodetest.Await(ctx, func() bool { return strings.Count(n.Log("berth-nri").String(), synchronized) > before })
	}
	_ = n.End(component, os.Kill)
	n.StartProgram(component)
	return nil
}
