package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/servertest"
)

// TestMain lets the test binary be berth-nri: the tests run the real program as a
// process of its own, which they can kill.
func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) != "" {
		main()
		return
	}
	code := m.Run()
	programs.Remove()
	daemon.Remove()
	os.Exit(code)
}

const asPlugin = "NRI_TEST_AS_PLUGIN"

// timeout bounds everything that a test waits for; no test takes that long unless
// it fails.
const timeout = 5 * time.Minute

// programs are berthd, and what runs in the containers.
var programs = nodetest.NewPrograms(map[string]string{"berthd": "server/berthd", "berthctl": "clients/berthctl",
	"kubectl-berth": "clients/kubectl-berth", "root/probe": "hack/probe", "berth-nri": "clients/nri",
	"berth-dra": "clients/dra", "plugin": "hack/plugin", "gpudriver": "hack/gpudriver"})

// node is a machine: a directory and a cgroup, with containerd, berthd and
// berth-nri, each of which can be killed.
type node struct {
	t           *testing.T
	dir, cgroup string

	containerd     *containerd.Daemon
	berthd, plugin *nodetest.Process
	berth          *berth.Client
	runtime        criv1.RuntimeServiceClient
	slices         *servertest.Slices // nil where cgroupfs is the driver
	built          string             // where the programs are
	topology       string             // the topology policy; empty for best-effort
	nudges         int                // containers that were made for their events
}

func (n *node) path(elements ...string) string {
	return filepath.Join(append([]string{n.dir}, elements...)...)
}

// newNode starts all programs, and in the end removes everything. The driver of
// cgroups is systemd if a tree of its slices is given.
func newNode(t *testing.T, slices *servertest.Slices) *node {
	t.Helper()
	// Paths of sockets are short (unix(7)), those of t.TempDir are not.
	dir, err := os.MkdirTemp("", "nri")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, cgroup: filepath.Base(dir), slices: slices}
	t.Cleanup(n.clean)
	// It goes first, with all pods: berthd and berth-nri have to see that.
	n.containerd = containerd.Prepare(t, slices != nil)
	if n.containerd.NoNRI {
		t.Skip("needs containerd 1.7 or later: older ones have no plugins of NRI")
	}
	if n.built, err = programs.Dir(); err != nil {
		t.Fatal(err)
	}
	n.startContainerd()
	if err := n.containerd.Load(n.ctx(), filepath.Join(n.built, "root", "probe"), containerd.ProbeImage); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+n.containerd.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	n.runtime = criv1.NewRuntimeServiceClient(conn)
	if n.berth, err = berth.Dial(t.Context(), n.path("berthd-root", "berth.sock"), berth.Options{}); err != nil {
		t.Fatal(err)
	}
	n.startBerthd()
	n.startPlugin()
	return n
}

func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(n.t.Context(), timeout)
	n.t.Cleanup(cancel)
	return ctx
}

// log is what a program of the node has written, in all its lives.
func (n *node) log(name string) nodetest.Log { return nodetest.Log(n.path(name + ".log")) }

func (n *node) startContainerd() {
	n.t.Helper()
	if err := n.containerd.Start(n.ctx()); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) startBerthd() {
	n.t.Helper()
	n.berthd = nodetest.Start(n.t, exec.Command(filepath.Join(n.built, "berthd"),
		"--root-dir", n.path("berthd-root"), "--beside", "kubelet",
		"--cpu-manager-policy", "static", "--reserved-cpus", "0", "--topology-manager-policy", cmp.Or(n.topology, "best-effort"),
		"--memory-manager-policy", "Static", "--system-reserved", "memory=128Mi", "--eviction-hard", "", "--reserved-memory",
		"0:memory=128Mi"), n.log("berthd"))
	if err := n.berth.WaitReady(n.ctx()); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) startPlugin(more ...string) {
	n.t.Helper()
	before := n.connections()
	cmd := exec.Command(os.Args[0], append([]string{"--endpoint", n.path("berthd-root", "berth.sock"), "--nri-socket", n.containerd.NRI,
		"--pod-resources", "", "--log-level", "debug"}, more...)...)
	cmd.Env = append(os.Environ(), asPlugin+"=1")
	n.plugin = nodetest.Start(n.t, cmd, n.log("berth-nri"))
	n.connected(before)
}

// connections counts how often plugins have taken over what runs.
func (n *node) connections() int {
	return strings.Count(n.log("berth-nri").String(), "synchronized with the runtime")
}

// connected waits until there is a connection more than before.
func (n *node) connected(before int) {
	n.t.Helper()
	n.eventually("berth-nri is connected", func() bool { return n.connections() > before })
}

// clean ends everything.
func (n *node) clean() {
	if n.t.Failed() {
		for _, name := range []string{"berthd", "berth-nri"} {
			text := n.log(name).String()
			n.t.Logf("%s:\n%s", name, text[max(0, len(text)-12000):])
		}
	}
	for _, p := range []*nodetest.Process{n.plugin, n.berthd} {
		if p != nil {
			_ = p.End(os.Kill)
		}
	}
	if n.berth != nil {
		_ = n.berth.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if n.slices != nil { // systemd has to forget them
		if err := errors.Join(n.slices.Remove(ctx, cgroup.Name{n.cgroup}), n.slices.Close()); err != nil {
			n.t.Error(err)
		}
	}
	if n.containerd != nil && n.containerd.CRIO { // killed while it removes a pod, it may leave the sandbox's process
		if left := nodetest.KillIn(n.cgroupOf()); len(left) > 0 {
			n.t.Logf("CRI-O has left %v", left)
		}
	}
	// The parents that runc has made for its containers.
	if err := errors.Join(nodetest.RemoveCgroups(ctx, n.cgroupOf()), os.RemoveAll(n.dir)); err != nil {
		n.t.Error(err)
	}
}

// eventually waits for a condition.
func (n *node) eventually(what string, done func() bool) {
	n.t.Helper()
	nodetest.Eventually(n.t, timeout, what, done)
}

// pod is a pod of a kubelet.
type pod struct {
	*node
	name, sandbox, container string
	config                   *criv1.PodSandboxConfig
}

// cgroupOf names a cgroup of the node's as a kubelet does: a folder in others, or a
// slice, whose name repeats those of the slices that it is in. Empty steps are none.
func (n *node) cgroupOf(steps ...string) (path string) {
	for _, step := range append([]string{n.cgroup}, steps...) {
		switch {
		case step == "":
		case n.slices == nil:
			path += "/" + step
		case path == "":
			path = "/" + step + ".slice"
		default:
			path += "/" + strings.TrimSuffix(filepath.Base(path), ".slice") + "-" + step + ".slice"
		}
	}
	return path
}

// pod starts a sandbox, in a cgroup as the kubelet names it; the tier is empty for
// a guaranteed one. It may have annotations.
func (n *node) pod(name, tier string, annotations ...map[string]string) *pod {
	n.t.Helper()
	p := &pod{node: n, name: name, config: &criv1.PodSandboxConfig{
		Metadata:     &criv1.PodSandboxMetadata{Name: name, Uid: name + "-uid", Namespace: "default"},
		LogDirectory: n.path("logs", name),
		Linux:        &criv1.LinuxPodSandboxConfig{CgroupParent: n.cgroupOf("kubepods", tier, "pod"+name)},
	}}
	for _, a := range annotations {
		p.config.Annotations = a
	}
	p.config.Labels = kubeletLabels(p.config.Metadata, "")
	if err := os.MkdirAll(p.config.LogDirectory, 0o755); err != nil {
		n.t.Fatal(err)
	}
	answer, err := n.runtime.RunPodSandbox(n.ctx(), &criv1.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		n.t.Fatal(err)
	}
	p.sandbox = answer.GetPodSandboxId()
	return p
}

// kubeletLabels are those that the kubelet gives to a sandbox, or to a container in it. CRI-O takes the names from them.
func kubeletLabels(sandbox *criv1.PodSandboxMetadata, container string) map[string]string {
	labels := map[string]string{
		"io.kubernetes.pod.name": sandbox.GetName(), "io.kubernetes.pod.namespace": sandbox.GetNamespace(),
		"io.kubernetes.pod.uid": sandbox.GetUid(),
	}
	if container != "" {
		labels["io.kubernetes.container.name"] = container
	}
	return labels
}

// sized is the kubelet's request for a container with so much CPU and memory as
// request and limit; without memory it has only the request.
func sized(milli, memory int64) *criv1.LinuxContainerResources {
	r := &criv1.LinuxContainerResources{CpuShares: max(2, milli*1024/1000), OomScoreAdj: 500}
	if memory > 0 {
		r.CpuQuota, r.CpuPeriod, r.MemoryLimitInBytes = milli*100, 100_000, memory
	}
	return r
}

// resize changes what the pod's container has.
func (p *pod) resize(milli, memory int64) error {
	_, err := p.runtime.UpdateContainerResources(p.ctx(), &criv1.UpdateContainerResourcesRequest{ContainerId: p.container,
		Linux: sized(milli, memory)})
	return err
}

// create makes a container as the kubelet does, with changes of a test.
func (p *pod) create(milli, memory int64, changes ...func(*criv1.ContainerConfig)) (id string, err error) {
	config := &criv1.ContainerConfig{
		Metadata: &criv1.ContainerMetadata{Name: "main"},
		Image:    &criv1.ImageSpec{Image: containerd.ProbeImage, UserSpecifiedImage: containerd.ProbeImage},
		Command:  []string{"/probe", "show", ",", "wait"}, LogPath: "main.log", Labels: kubeletLabels(p.config.GetMetadata(), "main"),
		Linux: &criv1.LinuxContainerConfig{Resources: sized(milli, memory)},
	}
	for _, change := range changes {
		change(config)
	}
	answer, err := p.runtime.CreateContainer(p.ctx(), &criv1.CreateContainerRequest{PodSandboxId: p.sandbox, SandboxConfig: p.config,
		Config: config})
	return answer.GetContainerId(), err
}

// run makes and starts a container, and gives its process.
func (p *pod) run(milli, memory int64, changes ...func(*criv1.ContainerConfig)) (pid int) {
	p.t.Helper()
	id, err := p.create(milli, memory, changes...)
	if err == nil {
		_, err = p.runtime.StartContainer(p.ctx(), &criv1.StartContainerRequest{ContainerId: id})
	}
	if err != nil {
		p.t.Fatalf("run a container of %s: %v", p.name, err)
	}
	p.container = id
	pid, err = p.containerd.Process(p.ctx(), id)
	if err != nil {
		p.t.Fatal(err)
	}
	return pid
}

// said waits until the container has printed its values, and returns one of them.
func (p *pod) said(name string) (value string) {
	p.t.Helper()
	p.eventually("the container of "+p.name+" tells about itself", func() bool {
		for line := range strings.Lines(p.text()) {
			if _, fact, ok := strings.Cut(line, " F "+name+"="); ok {
				value = strings.TrimSpace(fact)
				return true
			}
		}
		return false
	})
	return value
}

// text is what the container has written.
func (p *pod) text() string {
	text, _ := os.ReadFile(p.path("logs", p.name, "main.log"))
	return string(text)
}

// remove ends a pod.
func (p *pod) remove() {
	p.t.Helper()
	_, err := p.runtime.StopPodSandbox(p.ctx(), &criv1.StopPodSandboxRequest{PodSandboxId: p.sandbox})
	if err == nil {
		_, err = p.runtime.RemovePodSandbox(p.ctx(), &criv1.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// allowed reads the CPUs of a process from the kernel.
func allowed(pid int) string {
	cpus, err := cpusOf(pid)
	if err != nil {
		return err.Error()
	}
	return cpus.String()
}

// file finds a file of a process's cgroup, whose name depends on the version of
// cgroups: cgroups(7), "/proc files".
func (n *node) file(pid int, controller, file1, file2 string) string {
	n.t.Helper()
	return cgroupFile(n.t, pid, controller, file1, file2)
}

func cgroupFile(t testing.TB, pid int, controller, file1, file2 string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		path := filepath.Join("/sys/fs/cgroup", controller, fields[2], file1)
		if fields[1] == "" {
			path = filepath.Join("/sys/fs/cgroup", fields[2], file2)
		} else if !slices.Contains(strings.Split(fields[1], ","), controller) {
			continue
		}
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatalf("process %d is in no cgroup with %s or %s: %s", pid, file1, file2, text)
	return ""
}

// value reads such a file.
func (n *node) value(pid int, controller, file1, file2 string) string {
	n.t.Helper()
	text, err := os.ReadFile(n.file(pid, controller, file1, file2))
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// runsOn waits until a process may run on some CPUs.
func (n *node) runsOn(what string, pid int, cpus string) {
	n.t.Helper()
	now := ""
	defer func() {
		if now != cpus {
			n.t.Logf("%s runs on CPUs %s", what, now)
		}
	}()
	n.eventually(fmt.Sprintf("%s runs on CPUs %s", what, cpus), func() bool {
		if now = allowed(pid); now != cpus {
			n.nudge()
		}
		return now == cpus
	})
}

// nudge makes a container and removes it, if berth-nri needs events to update others.
func (n *node) nudge() {
	n.t.Helper()
	if !strings.Contains(n.log("berth-nri").String(), "updates at any time: ") {
		return
	}
	n.nudges++
	p := n.pod(fmt.Sprintf("nudge%d", n.nudges), "besteffort")
	if _, err := p.create(2, 0); err != nil {
		n.t.Logf("an event for the others: %v", err)
	}
	p.remove()
}

// range1 is the list of CPUs from 1 to the last one.
func range1(last int) string {
	if last == 1 {
		return "1"
	}
	return "1-" + strconv.Itoa(last)
}

// quotaOf reads the CPU quota of a process's cgroup, podQuotaOf that of the cgroup above: -1 is none. cgroup v1
// has it in a file of its own, v2 with the period.
func quotaOf(t testing.TB, pid int) string {
	t.Helper()
	return quotaIn(t, cgroupFile(t, pid, "cpu", "cpu.cfs_quota_us", "cpu.max"))
}

func podQuotaOf(t testing.TB, pid int) string {
	t.Helper()
	path := cgroupFile(t, pid, "cpu", "cpu.cfs_quota_us", "cpu.max")
	return quotaIn(t, filepath.Join(filepath.Dir(filepath.Dir(path)), filepath.Base(path)))
}

func quotaIn(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	quota, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if quota == "max" {
		return "-1"
	}
	return quota
}
