package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// MaxNodes limits the nodes of a cluster: their addresses differ in the last byte.
const MaxNodes = 64

// Host is one node: its namespaces, its container runtime and its kubelet.
type Host struct {
	// Name is that of the Node object, and Address the node's in the cluster's network.
	Name, Address string
	// Cgroup is the parent of all cgroups of the node.
	Cgroup     string
	Containerd *containerd.Daemon

	t       testing.TB
	dir     string
	space   *space
	running map[string]*nodetest.Process
}

// newHost returns node number n, counted from 1, which lies in a directory. Nothing is made yet.
func newHost(t testing.TB, dir string, n int) *Host {
	h := &Host{Name: fmt.Sprintf("n%d", n), Address: fmt.Sprintf("10.99.0.%d", n), t: t, dir: dir, running: map[string]*nodetest.Process{}}
	h.Cgroup = "/berth-" + filepath.Base(dir)
	if n > 1 {
		h.Cgroup = "/berth-" + filepath.Base(filepath.Dir(dir)) + "-" + h.Name
	}
	return h
}

// addHost makes a further node, and connects it with the first.
func (c *Cluster) addHost(number int) {
	c.t.Helper()
	h := newHost(c.t, c.Path(fmt.Sprintf("n%d", number)), number)
	h.Containerd = containerd.Prepare(c.t, c.Systemd)
	h.Containerd.Spawn = h.Spawn
	c.Others = append(c.Others, h)
	err := os.Mkdir(h.dir, 0o755)
	if err == nil {
		err = makeCgroup(h.Cgroup)
	}
	if err == nil {
		h.space, err = newSpace(h.dir, h.Address, "/run")
	}
	if err == nil {
		err = c.space.connect(h.space, h.Name, h.Address)
	}
	if err != nil {
		c.t.Fatalf("make node %s: %v", h.Name, err)
	}
}

// startHost starts the programs of a further node.
func (c *Cluster) startHost(ctx context.Context, h *Host) {
	c.t.Helper()
	err := h.Containerd.Start(ctx)
	if err == nil {
		err = h.Containerd.Load(ctx, c.Image, containerd.ProbeImage)
	}
	if err != nil {
		c.t.Fatalf("start node %s: %v", h.Name, err)
	}
	c.StartKubelet(h)
}

// Hosts are all nodes, the first one first.
func (c *Cluster) Hosts() []*Host { return append([]*Host{c.Host}, c.Others...) }

// Spawn starts a program in the node's namespaces and in its cgroup.
func (h *Host) Spawn(cmd *exec.Cmd) error {
	var script strings.Builder
	for _, dir := range nodetest.Cgroups(h.Cgroup + "/programs") {
		fmt.Fprintf(&script, "echo 0 > %s/cgroup.procs && ", dir)
	}
	script.WriteString(`exec "$0" "$@"`)
	cmd.Args = append([]string{"sh", "-c", script.String(), cmd.Path}, cmd.Args[1:]...)
	path, err := exec.LookPath("sh")
	if err != nil {
		return err
	}
	cmd.Path = path
	return h.space.start(cmd)
}

// Start starts a program of the test's own beside the others, under a name.
func (h *Host) Start(name string, cmd *exec.Cmd) {
	h.t.Helper()
	p, err := nodetest.StartWith(h.Spawn, cmd, h.Log(name))
	if err != nil {
		h.t.Fatalf("start %s: %v", name, err)
	}
	h.running[name] = p
}

// End sends a signal to a program and waits until it has ended.
func (h *Host) End(name string, s os.Signal) error {
	p := h.running[name]
	delete(h.running, name)
	return p.End(s)
}

// Log is the output of a program, over all its starts.
func (h *Host) Log(name string) nodetest.Log { return nodetest.Log(h.Path(name + ".log")) }

// Path is a path below the node's directory.
func (h *Host) Path(elements ...string) string {
	return filepath.Join(append([]string{h.dir}, elements...)...)
}

// stop ends the node's programs, some of them before the others, with its pods and its namespaces.
func (h *Host) stop(first ...string) error {
	for _, name := range first {
		if h.running[name] != nil {
			_ = h.End(name, os.Kill)
		}
	}
	for name := range h.running {
		_ = h.End(name, os.Kill)
	}
	var err error
	if h.Containerd != nil {
		err = h.Containerd.Close()
	}
	if h.space != nil {
		h.space.close()
	}
	return err
}

// removeCgroup removes the node's cgroups, and all processes in them.
func (h *Host) removeCgroup(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	nodetest.KillIn(h.Cgroup)
	return nodetest.RemoveCgroups(ctx, h.Cgroup)
}

// close removes a further node.
func (h *Host) close(timeout time.Duration) error {
	if err := cmp.Or(h.stop("kubelet"), h.removeCgroup(timeout)); err != nil {
		return fmt.Errorf("remove node %s: %w", h.Name, errors.Join(err, h.removeCgroup(timeout)))
	}
	return nil
}
