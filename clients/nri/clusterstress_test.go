package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/overlap"
	"github.com/berthd/berth/hack/stress"
	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
)

// TestStressCluster has pods start and end on a Kubernetes node, beside Guaranteed pods with CPUs of their own,
// and kills the kubelet, containerd, berthd, berth-nri and the API server meanwhile. A run of a given length has
// more pods, and the API server is also away for a minute. No other container may run on an exclusive CPU, every
// pod starts in the end, the ledger is sound, and the NodeResourceTopology object is right.
func TestStressCluster(t *testing.T) {
	o := stress.Configured(t)
	o.Alive = 12 // each pod of a kubelet has two processes and probes
	if o.Time > 0 {
		o.Alive = 31 // beside one with CPUs of its own
	}
	k := newKubernetes(t, nil)
	if err := k.Containerd.RecordSandboxes(); err != nil {
		t.Fatal(err)
	}
	o.Sandbox = k.Containerd.Sandbox // NRI reports a sandbox when its process runs
	k.publish()
	client, err := berth.Dial(t.Context(), k.socket, berth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	n := &stressCluster{kubernetes: k, berth: client, long: o.Time > 0, kills: map[string]int{}}
	d, err := overlap.Start(overlap.Config{Container: n.container, CPUs: cpuset.Of(o.CPU)})
	if err != nil {
		t.Fatal(err)
	}
	o.Probe = filepath.Join(k.built, "root", "probe")
	for _, found := range stress.Run(t.Context(), t, n, d, o).Overlaps {
		n.logIntruder(found.Intruder)
	}
	if slices.Sort(n.took); len(n.took) > 0 {
		t.Logf("a pod started within %v at the median and %v at most; kills: %v", n.took[len(n.took)/2], n.took[len(n.took)-1], n.kills)
	}
	k.Eventually("berthd has no pods left", func() bool {
		list, err := client.Allocation().List(t.Context(), &allocationv1.ListRequest{})
		return err == nil && len(list.GetPods()) == 0
	})
	if text, err := k.berthctl("ledger", "check"); err != nil {
		t.Errorf("check of the ledger: %v: %s", err, text)
	}
	left := runtime.NumCPU() - 1
	k.published("cpu", strconv.Itoa(left))
	k.apply("last", `{"limits": {"cpu": "1", "memory": "64Mi"}}`)
	k.published("cpu", strconv.Itoa(left-1))
}

// stressCluster is the cluster of the stress test.
type stressCluster struct {
	*kubernetes
	berth *berth.Client
	// starts is held for reading while a pod starts, and for writing while there is no berth-nri:
	// starts are not checked then.
	starts sync.RWMutex
	// long is true for a run of a given length.
	long bool

	mu    sync.Mutex      // guards what is below
	took  []time.Duration // of pods, from their creation until they run
	kills map[string]int  // by component
}

// longestBackoff is the kubelet's longest pause between two tries; no pod may take longer to start.
const longestBackoff = 5 * time.Minute

// serverAway is the component that is the API server's absence for a minute.
const serverAway = "kube-apiserver, for a minute"

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
	pod := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "containers": [
		{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "pulse", "5ms"], "resources": %s}]}}`, u.Name, containerd.ProbeImage, resources)
	ctx, cancel := context.WithTimeoutCause(ctx, longestBackoff, errors.New("it did not start within the kubelet's longest backoff"))
	defer cancel()
	started := time.Now()
	err := retry(ctx, func() error {
		err := n.Call(ctx, http.MethodPost, podsPath, pod, nil)
		if isStatus(err, http.StatusConflict) {
			return nil // the server had created it, and its answer was lost
		}
		return err
	})
	if err == nil {
		err = retry(ctx, func() error { _, err := n.pod(ctx, u.Name); return err })
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.took = append(n.took, time.Since(started).Round(time.Millisecond))
	return err
}

const podsPath = "/api/v1/namespaces/default/pods"

// isStatus reports whether an error is an answer of the API server with a code.
func isStatus(err error, code int) bool {
	var status *cluster.StatusError
	return errors.As(err, &status) && status.Code == code
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

// pod reads a pod, and reports an error if its container does not run.
func (n *stressCluster) pod(ctx context.Context, name string) (p podStatus, err error) {
	err = n.Call(ctx, http.MethodGet, podsPath+"/"+name, "", &p)
	if err == nil && (len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].State.Running == nil) {
		err = fmt.Errorf("pod %s does not run", name)
	}
	return p, err
}

// Held implements stress.Node.
func (n *stressCluster) Held(ctx context.Context, u stress.Unit) (id string, cpus cpuset.Set, err error) {
	err = retry(ctx, func() error {
		p, err := n.pod(ctx, u.Name)
		if err != nil {
			return err
		}
		_, id, _ = strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
		a, err := n.berth.Allocation().Allocate(ctx,
			&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: p.Metadata.UID}, ContainerName: "main"})
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
		err := n.Call(ctx, http.MethodDelete, podsPath+"/"+u.Name, `{"gracePeriodSeconds": 0}`, nil)
		if isStatus(err, http.StatusNotFound) {
			return nil
		}
		return errors.Join(err, errors.New("the pod is still there"))
	})
}

// Components implements stress.Node.
func (n *stressCluster) Components() []string {
	all := []string{"berthd", "berth-nri", "kubelet", "containerd", "kube-apiserver"}
	if n.long {
		all = append(all, serverAway)
	}
	return all
}

// Kill implements stress.Node.
func (n *stressCluster) Kill(ctx context.Context, component string) error {
	n.mu.Lock()
	n.kills[component]++
	n.mu.Unlock()
	switch component {
	case serverAway:
		return n.withoutServer(ctx)
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

// withoutServer ends the API server for a minute. The kubelet and berthd are killed in that time, and start without
// it.
func (n *stressCluster) withoutServer(ctx context.Context) error {
	const server = "kube-apiserver"
	_ = n.End(server, os.Kill)
	defer n.StartProgram(server)
	for _, then := range []func() error{
		func() error { return n.Kill(ctx, "berthd") },
		func() error { return n.Kill(ctx, "kubelet") },
		func() error { return nil },
	} {
		select {
		case <-time.After(20 * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := then(); err != nil {
			return err
		}
	}
	return nil
}

// logIntruder logs what is known of a container or a sandbox.
func (n *stressCluster) logIntruder(id string) {
	for _, program := range []string{"berth-nri", "kubelet"} {
		for line := range strings.Lines(n.Log(program).String()) {
			if strings.Contains(line, id) {
				n.t.Logf("%s: %s", program, strings.TrimSpace(line))
			}
		}
	}
}
