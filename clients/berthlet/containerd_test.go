package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/clients/berthlet/agent"
	"github.com/berthd/berth/hack/stress"
	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/server/servertest"
)

// newContainerdNode starts both programs on a real containerd, which has the root
// file system of the containers as an image. The driver of cgroups is systemd if a
// tree of its slices is given.
func newContainerdNode(t *testing.T, slices *servertest.Slices, berthdFlags ...string) *node {
	t.Helper()
	needContainers(t)
	d := containerd.Prepare(t, slices != nil)
	socket := "unix://" + d.Socket
	n := prepareNode(t, append(berthdFlags, "--runtime-endpoint", socket)...)
	n.slices = slices
	n.containerd, n.berthletFlags = d, []string{"--runtime-endpoint", socket}
	n.startContainerd()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := d.Load(ctx, filepath.Join(n.built, "root", "probe"), "docker.io/library/root:latest"); err != nil {
		t.Fatal(err)
	}
	n.startBerthd()
	n.startBerthlet()
	return n
}

func (n *node) startContainerd() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), timeout)
	defer cancel()
	if err := n.containerd.Start(ctx); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) killContainerd() {
	n.t.Helper()
	if err := n.containerd.Kill(); err != nil {
		n.t.Fatal(err)
	}
}

// status returns a container of a pod as berthlet reports it.
func (n *node) status(pod, container string) agent.ContainerStatus {
	n.t.Helper()
	p := n.pods()[pod]
	for _, c := range append(p.InitContainerStatuses, p.ContainerStatuses...) {
		if c.Name == container {
			return c
		}
	}
	n.t.Fatalf("pod %s has no container %s", pod, container)
	return agent.ContainerStatus{}
}

// cgroupOf gives the cgroup of a container: the one that berthd has named, or the
// one that a runtime made in the pod's.
func (n *node) cgroupOf(pod, container string) string {
	n.t.Helper()
	a := n.allocate(pod, container)
	if n.containerd == nil {
		return a.GetCgroupPath()
	}
	id := n.status(pod, container).ContainerID
	switch {
	case n.containerd.CRIO:
		id = "crio-" + id
	case n.slices != nil:
		id = "cri-containerd-" + id + ".scope"
	}
	return filepath.Join(a.GetCgroupParent(), id)
}

// pid finds the process of a container that runs. berthlet does not know it where a
// runtime places processes.
func (n *node) pid(pod, container string) (pid int) {
	n.t.Helper()
	if n.containerd == nil {
		return n.status(pod, container).State.Running.PID
	}
	path := n.cgroupOf(pod, container)
	n.eventually(container+" of "+pod+" has a process", func() bool {
		for _, hierarchy := range []string{"cpuset", "."} {
			procs, _ := os.ReadFile(filepath.Join("/sys/fs/cgroup", hierarchy, path, "cgroup.procs"))
			if fields := strings.Fields(string(procs)); len(fields) == 1 {
				found, err := strconv.Atoi(fields[0])
				pid = found
				return err == nil
			}
		}
		return false
	})
	return pid
}

func TestContainerdPods(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	testPods(newContainerdNode(t, nil))
}

// TestContainerdSlices has systemd as the driver of cgroups, which berthd hears from
// containerd.
func TestContainerdSlices(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	tree, err := servertest.OpenSlices()
	if err != nil {
		t.Skipf("no systemd to ask: %v", err)
	}
	n := newContainerdNode(t, tree)
	if n.containerd.Old {
		t.Skip("containerd 1 does not tell its driver")
	}
	testSandboxesShare(n)
	testPods(n) // in the end it ends berthlet
}

// TestContainerdStrictReservation: no sandbox may run on the reserved CPUs, and pods run all the same.
func TestContainerdStrictReservation(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	n := newContainerdNode(t, nil, "--cpu-manager-policy-options", "strict-cpu-reservation=true")
	n.manifest("shared", shared)
	n.running("shared")
	n.withdraw("shared")
	n.noPods()
}

func TestContainerdBusy(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	testBusy(newContainerdNode(t, nil))
}

// TestContainerdChaos kills berthd, berthlet and containerd in any order.
func TestContainerdChaos(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	testChaos(newContainerdNode(t, nil), 20)
}

// TestContainerdSandboxesShare: berthd keeps the sandboxes of a runtime off CPUs that are
// exclusive, by the cgroup, whatever affinity the agent gave their processes.
func TestContainerdSandboxesShare(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	testSandboxesShare(newContainerdNode(t, nil))
}

func testSandboxesShare(n *node) {
	t := n.t
	c := &stressNode{n}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	shares, owns := stress.Unit{Name: "shares"}, stress.Unit{Name: "owns", Exclusive: true}
	for _, u := range []stress.Unit{shares, owns} {
		if err := c.Start(ctx, u); err != nil {
			t.Fatal(err)
		}
	}
	_, own, err := c.Held(ctx, owns)
	if err != nil || own.IsEmpty() {
		t.Fatalf("it has CPUs %s, %v", own, err)
	}
	container, _, err := c.Held(ctx, shares)
	if err != nil {
		t.Fatal(err)
	}
	sandboxes := 0
	for _, dir := range nodetest.Cgroups(filepath.Dir(container)) {
		list, err := os.ReadFile(filepath.Join(dir, "cpuset.cpus"))
		if err != nil || strings.HasSuffix(dir, filepath.Dir(container)) || strings.HasSuffix(dir, container) {
			continue // another hierarchy, the pod's own, or its container
		}
		sandboxes++
		if set, err := cpuset.Parse(strings.TrimSpace(string(list))); err != nil || set.IsEmpty() || set.Overlaps(own) {
			t.Errorf("sandbox %s is on CPUs %s, %v, of which %s are another's", dir, set, err, own)
		}
	}
	if sandboxes == 0 {
		t.Error("no sandbox was found")
	}
	for _, u := range []stress.Unit{shares, owns} {
		if err := c.Stop(ctx, u); err != nil {
			t.Error(err)
		}
	}
	n.noPods()
}

// confined is a pod on a container runtime that is confined in every way, with a path
// below a volume that a container has made.
const confined = head + `
  restartPolicy: Never
  securityContext: {runAsUser: 1000, runAsNonRoot: true, supplementalGroups: [7], fsGroup: 9,
    sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: "81"}]}
  volumes: [{name: v}]
  initContainers:
  - {name: plant, image: root, command: [/probe, link, /etc, /v/link], volumeMounts: [{name: v, mountPath: /v}]}
  containers:
  - name: main
    image: root
    command: [/probe, write, /in/mine, x, ",", cat, /all/not/yet/mine, ",",
      cat, /proc/sys/net/ipv4/ip_unprivileged_port_start, ",", call, keyctl, ",", call, raw, ",", show]
    volumeMounts: [{name: v, mountPath: /all}, {name: v, mountPath: /in, subPath: not/yet}]
`

const escapes = `
  - {name: escapes, image: root, command: [/probe, show], volumeMounts: [{name: v, mountPath: /in, subPath: link}]}
`

// TestContainerdConfined has a real runtime confine containers, and mount paths below
// volumes that were opened before it looks.
func TestContainerdConfined(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	n := newContainerdNode(t, nil)
	n.manifest("confined", confined+escapes)
	n.until("confined", "has ended, and is refused a link", func(p agent.PodStatus) bool {
		ended, refused := false, false
		for _, c := range p.ContainerStatuses {
			ended = ended || c.Name == "main" && c.State.Terminated != nil
			refused = refused || c.Name == "escapes" && c.State.Waiting != nil && strings.Contains(c.State.Waiting.Message, "symbolic link")
		}
		return ended && refused
	})
	got := n.shown("confined", "main")
	refused := "operation-not-permitted"
	if n.containerd.CRIO {
		refused = "operation-not-supported" // its profile says that the kernel has no such call
	}
	for name, want := range map[string]string{
		"seccomp": "2", "uid": "1000", "groups": "0 7 9", "call.keyctl": refused, "call.raw": "operation-not-permitted",
		"x": "", "81": "",
	} {
		if have, ok := got[name]; !ok || have != want {
			t.Errorf("%s is %q, want %q", name, have, want)
		}
	}
	n.withdraw("confined")
	n.noPods()
	if entries, err := os.ReadDir(n.path("state", "pins")); err != nil || len(entries) > 0 {
		t.Errorf("pins are left: %v, %v", entries, err)
	}
}
