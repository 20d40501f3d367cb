package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthlet/agent"
	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/servertest"
)

// TestMain lets the test binary be berthlet, with its keepers and containers: the
// tests run the real program as a process of its own, which they can kill.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "init" || os.Args[1] == "keep") || os.Getenv(asBerthlet) != "" {
		main()
		return
	}
	code := m.Run()
	programs.Remove()
	os.Exit(code)
}

const asBerthlet = "BERTHLET_TEST_AS_BERTHLET"

// timeout bounds everything that a test waits for; no test takes that long unless
// it fails.
const timeout = 5 * time.Minute

// programs are berthd, and the root file system of the containers.
var programs = nodetest.NewPrograms(map[string]string{"berthd": "server/berthd", "root/probe": "hack/probe"})

// needContainers skips what takes root, a cgroup tree to write to and the right to
// make namespaces, with the kernel's error.
func needContainers(t *testing.T) {
	t.Helper()
	top := "/sys/fs/cgroup/cpuset"
	if _, err := os.Stat(top); errors.Is(err, fs.ErrNotExist) {
		top = "/sys/fs/cgroup"
	}
	probe, err := os.MkdirTemp(top, "berthlettest-probe")
	if err == nil {
		err = os.Remove(probe)
	}
	if err == nil {
		apart := exec.Command(os.Args[0], "-test.run=^$") // this program: there may be no other
		apart.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
		err = apart.Run()
	}
	if err != nil || os.Geteuid() != 0 {
		t.Skipf("needs a root that may make cgroups and namespaces: effective user %d, %v", os.Geteuid(), err)
	}
}

// node is a machine to run pods on: a directory and a cgroup, with a berthd and a
// berthlet that can be killed.
type node struct {
	t                          *testing.T
	dir, cgroup, built         string
	berthd, berthlet           *nodetest.Process
	client                     *berth.Client
	containerd                 *containerd.Daemon // nil without one
	slices                     *servertest.Slices // nil where cgroupfs is the driver
	berthdFlags, berthletFlags []string
}

func (n *node) path(elements ...string) string {
	return filepath.Join(append([]string{n.dir}, elements...)...)
}

// newNode starts both programs, and in the end checks that nothing is left.
func newNode(t *testing.T, berthdFlags ...string) *node {
	t.Helper()
	n := prepareNode(t, berthdFlags...)
	n.startBerthd()
	n.startBerthlet()
	return n
}

// prepareNode makes everything of a node but its programs.
func prepareNode(t *testing.T, berthdFlags ...string) *node {
	t.Helper()
	needContainers(t)
	// Paths of sockets are short (unix(7)), those of t.TempDir are not.
	dir, err := os.MkdirTemp("", "berthlet")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, cgroup: filepath.Base(dir), berthdFlags: berthdFlags}
	t.Cleanup(n.clean)
	if n.built, err = programs.Dir(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.path("manifests"), 0o755); err != nil {
		t.Fatal(err)
	}
	if n.client, err = berth.Dial(t.Context(), n.path("berthd", "berth.sock"), berth.Options{}); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) startBerthd() {
	n.t.Helper()
	n.berthd = nodetest.Start(n.t, exec.Command(filepath.Join(n.built, "berthd"), append([]string{
		"--root-dir", n.path("berthd"), "--cgroup-root", "/" + n.cgroup,
		"--cpu-manager-policy", "static", "--reserved-cpus", "0", "--topology-manager-policy", "best-effort",
		// The machine of the tests may be small, and may swap.
		"--node-fit=false", "--fail-swap-on=false",
	}, n.berthdFlags...)...), n.log("berthd"))
	ctx, cancel := context.WithTimeout(n.t.Context(), timeout)
	defer cancel()
	if err := n.client.WaitReady(ctx); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) startBerthlet() {
	n.t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{
		"--endpoint", n.path("berthd", "berth.sock"), "--manifests", n.path("manifests"),
		"--state-dir", n.path("state"), "--pod-logs-dir", n.path("logs"), "--images", n.built,
		"--restart-pause", "100ms", "--log-level", "debug",
	}, n.berthletFlags...)...)
	cmd.Env = append(os.Environ(), asBerthlet+"=1")
	n.berthlet = nodetest.Start(n.t, cmd, n.log("berthlet"))
}

// log is what a program of the node has written, in all its lives.
func (n *node) log(name string) nodetest.Log { return nodetest.Log(n.path(name + ".log")) }

// clean ends everything. A test that has passed has removed its pods before.
func (n *node) clean() {
	for _, p := range []*nodetest.Process{n.berthlet, n.berthd} {
		if p != nil {
			_ = p.End(os.Kill)
		}
	}
	if n.client != nil {
		_ = n.client.Close()
	}
	if n.t.Failed() {
		for _, name := range []string{"berthd.log", "berthlet.log", "state/status.json"} {
			text, _ := os.ReadFile(n.path(name))
			n.t.Logf("%s:\n%s", name, text[max(0, len(text)-20000):])
		}
	}
	n.removeCgroups()
	n.unmountAll()
	if err := os.RemoveAll(n.dir); err != nil {
		n.t.Error(err)
	}
}

// top names the node's cgroup.
func (n *node) top() string {
	if n.slices != nil {
		return "/" + n.cgroup + ".slice"
	}
	return "/" + n.cgroup
}

// removeCgroups ends what is left in the node's cgroups, and removes them.
func (n *node) removeCgroups() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if n.slices != nil { // systemd has to forget them
		if err := errors.Join(n.slices.Remove(ctx, cgroup.Name{n.cgroup}), n.slices.Close()); err != nil {
			n.t.Error(err)
		}
	}
	for _, what := range nodetest.KillIn(n.top()) {
		n.t.Errorf("%s is left", what)
	}
	if err := nodetest.RemoveCgroups(ctx, n.top()); err != nil {
		n.t.Error(err)
	}
}

// mounts lists the mounts below the node's directory.
func (n *node) mounts() (paths []string) {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], n.dir) {
			paths = append(paths, fields[4])
		}
	}
	return paths
}

func (n *node) unmountAll() {
	for _, path := range n.mounts() {
		n.t.Errorf("a mount is left: %s", path)
		_ = syscall.Unmount(path, syscall.MNT_DETACH)
	}
}

// eventually waits for a condition.
func (n *node) eventually(what string, done func() bool) {
	n.t.Helper()
	nodetest.Eventually(n.t, timeout, what, done)
}

// manifest puts a pod into the folder, as one step.
func (n *node) manifest(name, text string) {
	n.t.Helper()
	text = strings.ReplaceAll(text, "NAME", name)
	hidden := n.path("manifests", "."+name)
	if err := os.WriteFile(hidden, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(hidden, n.path("manifests", name+".yaml")); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) withdraw(name string) {
	n.t.Helper()
	if err := os.Remove(n.path("manifests", name+".yaml")); err != nil {
		n.t.Fatal(err)
	}
}

// pods reads berthlet's status of its pods, by name.
func (n *node) pods() map[string]agent.PodStatus {
	n.t.Helper()
	out := map[string]agent.PodStatus{}
	text, err := os.ReadFile(n.path("state", "status.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return out
	}
	var s agent.Status
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range s.Pods {
		out[p.Name] = p
	}
	return out
}

// until waits for a pod to be as it should.
func (n *node) until(name, what string, as func(agent.PodStatus) bool) agent.PodStatus {
	n.t.Helper()
	var p agent.PodStatus
	n.eventually("pod "+name+" "+what, func() bool {
		found, ok := n.pods()[name]
		p = found
		return ok && as(p)
	})
	return p
}

func allRun(p agent.PodStatus) bool {
	ready, all := p.Ready()
	return p.Phase == "Running" && ready == all
}

// running waits until all containers of a pod run.
func (n *node) running(name string) agent.PodStatus {
	n.t.Helper()
	return n.until(name, "runs", allRun)
}

// noPods waits until there is none, and checks that nothing is left of them.
func (n *node) noPods() {
	n.t.Helper()
	n.eventually("all pods are gone", func() bool { return len(n.pods()) == 0 })
	n.eventually("their cgroups are gone", func() bool {
		return !slices.ContainsFunc(nodetest.Cgroups(n.top()), func(dir string) bool {
			return strings.Contains(dir, "/pod") || strings.Contains(dir, "-pod")
		})
	})
	for _, dir := range []string{"state/pods", "state/runtime/containers", "state/runtime/run", "state/runtime/sandboxes", "logs"} {
		if entries, err := os.ReadDir(n.path(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) || len(entries) > 0 {
			n.t.Errorf("left in %s: %v, %v", dir, entries, err)
		}
	}
	for _, path := range n.mounts() {
		n.t.Errorf("mount %s is left", path)
	}
}
