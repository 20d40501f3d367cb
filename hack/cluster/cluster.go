package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/hack/testing/containerd"
)

// Variable is the environment variable that names the directory of the programs.
const Variable = "BERTH_CLUSTER"

const (
	// defaultTimeout bounds each wait; only failures take that long.
	defaultTimeout = 5 * time.Minute
	// look is the interval of checks of a condition, slowLook on a slow machine. A call of the API server takes a part of it.
	look, slowLook = 50 * time.Millisecond, 2 * time.Second
)

// Options are the settings of a test.
type Options struct {
	// Systemd is the cgroup driver, in place of cgroupfs. The kubelet's slices are then below the root, so the
	// machine must not have another kubelet.
	Systemd bool
	// Dir is kept, with all processes, for a machine that is turned off after the test and booted again:
	// the cluster in it continues. The default is a temporary directory, and the end removes all.
	Dir string
	// Kubelet overrides fields of the kubelet's configuration.
	Kubelet map[string]any
	// FeatureGates are switched on in all programs of Kubernetes.
	FeatureGates []string
	// Timeout bounds each wait, for slow machines; the default is 5 minutes.
	Timeout time.Duration
	// Slow is for an emulated machine. The programs, but not the pods, run on the CPUs 0 and 1 only, because emulated CPUs slow each other
	// down; kube-apiserver has no caches, which do a third of the work of an idle cluster; containerd's plugins have more
	// time; and conditions are checked less often.
	Slow bool
	// Controllers are those of kube-controller-manager that run; nil for the usual ones.
	Controllers []string
	// Machine are files below /sys/devices/system/cpu and node, by their paths: the kubelet sees a machine that is made up. A target of a
	// symbolic link begins with "-> ". They are below the cluster's directory, too.
	Machine map[string]string
	// Runtime is the socket of a runtime that serves already, in place of containerd. It can be used on one node.
	Runtime string
	// Image is a static binary that the pods run; containerd.ProbeImage is its name.
	Image string
	// Nodes is their number, at most MaxNodes; the default is one.
	Nodes int
	// KubeletVersion is the minor version of the kubelets, such as v1.34, if it is not that of the control plane.
	KubeletVersion string
}

// Cluster is a control plane and its nodes. The first node is Node; the programs of the control plane run beside its kubelet.
type Cluster struct {
	Options
	*Host
	// Others are the further nodes.
	Others []*Host

	programs string
	tokens   map[string]string // of the API server's users
	client   *http.Client
	closed   sync.Once
}

// Need skips a test where the programs or the rights are missing. It names the directory of the programs.
func Need(t testing.TB) (programs string) {
	t.Helper()
	programs = os.Getenv(Variable)
	if programs == "" {
		t.Skipf("needs the programs of Kubernetes: %s names a directory with them; make test-cluster builds it", Variable)
	}
	if os.Geteuid() != 0 {
		t.Skipf("a kubelet needs root: the effective user is %d", os.Geteuid())
	}
	return programs
}

// NeedKubelet skips a test where there is no kubelet of an older minor version.
func NeedKubelet(t testing.TB, version string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(Need(t), olderKubelet(version))); err != nil {
		t.Skipf("needs a kubelet %s: %v; hack/cluster/build.sh builds it", version, err)
	}
}

// olderKubelet is the name of a kubelet's program.
func olderKubelet(version string) string { return "kubelet-" + version }

// Run starts a cluster and waits until its node is ready.
func Run(t testing.TB, o Options) *Cluster {
	t.Helper()
	programs := Need(t)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	dir := o.Dir
	var err error
	if dir == "" {
		// The paths of sockets are short (unix(7)), those of t.TempDir are not.
		if dir, err = os.MkdirTemp("", "cl"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) }) // also if containerd cannot be prepared
	}
	if o.Nodes > MaxNodes {
		t.Fatalf("a cluster of %d nodes: expected at most %d", o.Nodes, MaxNodes)
	}
	c := &Cluster{Options: o, Host: newHost(t, dir, 1), programs: programs}
	switch {
	case o.Runtime != "":
	case o.Dir != "":
		c.Containerd = containerd.PrepareIn(t, filepath.Join(dir, "cd"), o.Systemd)
	default:
		c.Containerd = containerd.Prepare(t, o.Systemd)
	}
	if c.Containerd != nil {
		c.Containerd.Spawn = c.Spawn
	}
	c.onInterrupt()    // until everything is removed
	t.Cleanup(c.close) // before the end of containerd: the kubelet would start its pods again
	if err := makeCgroup(c.Cgroup); err != nil {
		t.Fatal(err)
	}
	if c.Slow {
		if err := errors.Join(restrict(c.Cgroup, "0-1"), c.Containerd.Slow()); err != nil {
			t.Fatal(err)
		}
	}
	over, err := o.writeMachine(dir)
	if err != nil {
		t.Fatal(err)
	}
	if c.space, err = newSpace(dir, Address, over...); err != nil {
		t.Fatal(err)
	}
	for number := 2; number <= o.Nodes; number++ {
		c.addHost(number)
	}
	c.client = newClient(c.space)
	if err := c.configure(); err != nil {
		t.Fatal(err)
	}
	c.startAll()
	return c
}

// writeMachine writes the files of a made-up machine below a directory, and returns the directories that they replace.
func (o Options) writeMachine(dir string) ([]string, error) {
	if o.Machine == nil {
		return nil, nil
	}
	for name, text := range o.Machine {
		file := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if target, link := strings.CutPrefix(text, "-> "); err == nil && link {
			err = os.Symlink(target, file)
		} else if err == nil {
			err = os.WriteFile(file, []byte(text), 0o644)
		}
		if err != nil {
			return nil, err
		}
	}
	return []string{"/sys/devices/system/cpu", "/sys/devices/system/node"}, nil
}

// startAll starts the programs in the order of their dependencies.
func (c *Cluster) startAll() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), c.Timeout)
	defer cancel()
	c.StartProgram("etcd")
	c.StartProgram("kube-apiserver")
	if c.Runtime == "" {
		err := c.Containerd.Start(ctx)
		if err == nil {
			err = c.Containerd.Load(ctx, c.Image, containerd.ProbeImage)
		}
		if err != nil {
			c.t.Fatal(err)
		}
	}
	c.Eventually("the API server is ready", func() bool { return c.Call(ctx, http.MethodGet, "/readyz", "", nil) == nil })
	c.StartProgram("kube-controller-manager")
	c.StartProgram("kube-scheduler")
	c.StartProgram("kubelet")
	for _, h := range c.Others {
		c.startHost(ctx, h)
	}
	for _, h := range c.Hosts() {
		c.awaitReady(ctx, h.Name)
	}
	// A pod cannot be created before its service account exists.
	c.Eventually("the default service account is there", func() bool {
		return c.Call(ctx, http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", "", nil) == nil
	})
}

// awaitReady waits until pods can be scheduled to a node.
func (c *Cluster) awaitReady(ctx context.Context, name string) {
	c.t.Helper()
	c.Eventually("node "+name+" is ready", func() bool {
		type condition struct{ Type, Status string }
		var node struct {
			Spec   struct{ Taints []struct{ Key string } }
			Status struct{ Conditions []condition }
		}
		err := c.Call(ctx, http.MethodGet, "/api/v1/nodes/"+name, "", &node)
		return err == nil && len(node.Spec.Taints) == 0 && slices.Contains(node.Status.Conditions, condition{"Ready", "True"})
	})
}

// StartProgram starts one of the cluster's programs.
func (c *Cluster) StartProgram(name string) {
	c.t.Helper()
	if name == "kubelet" {
		c.StartKubelet(c.Host)
		return
	}
	args, ok := c.flags()[name]
	if !ok {
		c.t.Fatalf("the cluster has no program %q", name)
	}
	c.Start(name, exec.Command(filepath.Join(c.programs, name), args...))
}

// StartKubelet starts the kubelet of a node.
func (c *Cluster) StartKubelet(h *Host) {
	c.t.Helper()
	program := "kubelet"
	if c.KubeletVersion != "" {
		program = olderKubelet(c.KubeletVersion)
	}
	h.Start("kubelet", exec.Command(filepath.Join(c.programs, program), h.kubeletFlags()...))
}

// Kubectl calls the API server as an administrator.
func (c *Cluster) Kubectl(args ...string) (string, error) { return c.kubectl("", args...) }

// Apply creates or changes objects: YAML or JSON.
func (c *Cluster) Apply(objects string) {
	c.t.Helper()
	if text, err := c.kubectl(objects, "apply", "-f", "-"); err != nil {
		c.t.Fatalf("apply: %v: %s", err, text)
	}
}

func (c *Cluster) kubectl(input string, args ...string) (string, error) {
	return c.runKubectl(os.Environ(), input, append([]string{"--kubeconfig", c.Path(admin + ".kubeconfig")}, args...)...)
}

// Plugin runs a plugin of kubectl that is in a directory, as an administrator: the first argument is its name.
func (c *Cluster) Plugin(dir string, args ...string) (string, error) {
	env := append(os.Environ(), "PATH="+dir+":"+c.programs+":"+os.Getenv("PATH"), "KUBECONFIG="+c.Path(admin+".kubeconfig"))
	return c.runKubectl(env, "", args...)
}

func (c *Cluster) runKubectl(env []string, input string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.programs, "kubectl"), args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	cmd.Env = append(env, "HOME="+c.dir)
	if err := c.space.start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// Get reads an object.
func (c *Cluster) Get(into any, args ...string) error {
	text, err := c.Kubectl(append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), into)
}

// Eventually waits for a condition.
func (c *Cluster) Eventually(what string, done func() bool) {
	c.t.Helper()
	// In the clean-up of a test, the test's context has ended already.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), c.Timeout)
	defer cancel()
	interval := look
	if c.Slow {
		interval = slowLook
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("waited in vain: %s", what)
		}
	}
}

// onInterrupt removes everything when the test is interrupted.
func (c *Cluster) onInterrupt() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	c.t.Cleanup(func() { signal.Stop(signals); close(signals) })
	go func() {
		if _, interrupted := <-signals; interrupted {
			c.close()
			os.Exit(1)
		}
	}()
}

// close ends everything. Processes, cgroups or files that remain are errors of the test.
func (c *Cluster) close() { c.closed.Do(c.remove) }

func (c *Cluster) remove() {
	if c.t.Failed() {
		for _, name := range []string{"kube-apiserver", "kubelet", "kube-scheduler"} {
			text := c.Log(name).String()
			c.t.Logf("%s:\n%s", name, text[max(0, len(text)-8000):])
		}
	}
	var errs []error
	for _, h := range c.Others {
		errs = append(errs, h.close(c.Timeout))
	}
	errs = append(errs, c.stop("kubelet", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"))
	if c.client != nil {
		c.client.CloseIdleConnections()
	}
	if c.Dir != "" { // the pods run until the machine is turned off
		if err := errors.Join(errs...); err != nil {
			c.t.Error(err)
		}
		return
	}
	errs = append(errs, c.removeCgroup(c.Timeout), os.RemoveAll(c.dir))
	if err := errors.Join(errs...); err != nil {
		c.t.Error(err)
	}
}
