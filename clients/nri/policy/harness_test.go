package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/nri/abilities"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/server/servertest"
)

// timeout bounds everything that a test waits for.
const timeout = time.Minute

// daemon is a whole berthd in this process, on a made-up machine with 8 CPUs, of
// which CPU 0 is reserved.
type daemon struct {
	*berth.Client
	t      *testing.T
	config config.Config
	stop   func()
}

func startBerthd(t *testing.T) *daemon {
	t.Helper()
	return startBerthdWith(t, func(*config.Config) {})
}

// startBerthdWith starts one with a configuration that a test changes.
func startBerthdWith(t *testing.T, change func(*config.Config)) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") // a test's own may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.RootDir, c.Listen, c.StateDir = dir, dir+"/b.sock", dir+"/state"
	c.DevicePluginDir, c.PodResourcesDir, c.PluginRegistryDir = new(dir+"/d"), new(dir+"/p"), new(dir+"/r")
	c.Machine, c.Cgroups.Tree = "1s2n4c1t", config.TreeMemory
	c.CPU.Policy, c.Topology.Policy, c.Reserved.CPUs = "static", topology.BestEffort, cpuset.Of(0)
	change(&c)
	d := &daemon{t: t, config: c}
	d.start()
	if d.Client, err = berth.Dial(t.Context(), c.Listen, berth.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		check, err := d.Inspect().Check(context.Background(), &inspectv1.CheckRequest{})
		if err != nil || len(check.GetFindings()) > 0 {
			t.Errorf("check of the ledger: %v, %v", check, err)
		}
		_ = d.Close()
		d.stop()
		_ = os.RemoveAll(dir)
	})
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	d.stop = servertest.Start(d.t, d.config)
}

// again starts berthd once more and waits until the client has noticed.
func (d *daemon) again() {
	d.t.Helper()
	d.start()
	ctx, cancel := context.WithTimeout(d.t.Context(), timeout)
	defer cancel()
	if err := d.WaitReady(ctx); err != nil {
		d.t.Fatal(err)
	}
}

// uids lists the pods that berthd has.
func (d *daemon) uids() (uids []string) {
	d.t.Helper()
	list, err := d.Allocation().List(d.t.Context(), &allocationv1.ListRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, p := range list.GetPods() {
		uids = append(uids, p.GetUid())
	}
	slices.Sort(uids)
	return uids
}

// plugin runs a device plugin with one device until the test ends.
func (d *daemon) plugin() {
	d.t.Helper()
	p := script.New(script.Config{Dir: *d.config.DevicePluginDir, Resource: "example.com/gpu", Devices: []script.Device{{ID: "gpu0"}}})
	done := make(chan error, 1)
	go func() { done <- p.Run(d.t.Context()) }()
	d.t.Cleanup(func() { <-done })
	eventually(d.t, "the device is known", func() bool {
		list, err := d.Device().ListResources(d.t.Context(), &devicev1.ListResourcesRequest{})
		return err == nil && len(list.GetResources()) == 1 && list.GetResources()[0].GetAllocatable() == 1
	})
}

// engine plays a runtime: it calls a policy as containerd does, one event at a
// time, and does what the policy says.
type engine struct {
	t      *testing.T
	policy *Policy
	// settings are the policy's, for another one in its place.
	settings Config

	calls sync.Mutex // held over every event, and over requests of the policy
	mu    sync.Mutex // guards what is below
	cpus  map[string]string
	mems  map[string]string    // memory nodes by container
	where map[string]numa.Mask // where the memory of containers is
	pins  bool                 // memory does not move
	pids  map[int]string
	pods  map[string]string // sandboxes by containers
	next  int
	stuck bool            // updates are not carried out
	fails map[string]bool // requested updates of these fail
	ended bool            // the processes of sandboxes have gone
	blind error           // CPUs of processes cannot be read
	// before is called with the updates of a request before they are carried out.
	before func([]*api.ContainerUpdate)
}

func newEngine(t *testing.T, c Config) *engine {
	t.Helper()
	e := newEngineOf(t, c)
	if _, err := e.policy.Synchronize(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	return e
}

// newEngineOf makes a runtime that the policy is not connected to yet.
func newEngineOf(t *testing.T, c Config) *engine {
	t.Helper()
	e := &engine{t: t, cpus: map[string]string{}, mems: map[string]string{}, where: map[string]numa.Mask{}, pids: map[int]string{},
		pods: map[string]string{}}
	c.CPUsOf = e.cpusOf
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Unsolicited = cmp.Or(c.Unsolicited, abilities.UnsolicitedAlways)
	e.policy, e.settings = New(c), c
	e.policy.runtime.Processes = true // as containerd does
	return e
}

// readsMemory has the policy read where memory is, and clock gives it a clock.
func (e *engine) readsMemory() { e.settings.Memory, e.policy.reporter.memory = e.memoryOf, e.memoryOf }

func (e *engine) clock(now func() time.Time) { e.settings.Now, e.policy.now = now, now }

// follow runs Follow until the test ends.
func (e *engine) follow() {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.policy.Follow(ctx, e)
	}()
	e.t.Cleanup(func() { stop(); <-done })
}

func (e *engine) cpusOf(pid int) (cpuset.Set, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	cpus, ok := e.cpus[e.pids[pid]]
	if pid == sandboxPID {
		cpus, ok = "0-7", !e.ended
	}
	switch {
	case e.blind != nil:
		return cpuset.Set{}, e.blind
	case !ok:
		return cpuset.Set{}, fs.ErrNotExist
	}
	return cpuset.Parse(cpus)
}

// UpdateContainers implements Updater.
func (e *engine) UpdateContainers(updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	e.calls.Lock()
	before := e.before
	e.calls.Unlock()
	if before != nil {
		before(updates)
	}
	e.calls.Lock()
	defer e.calls.Unlock()
	e.apply(updates)
	var failed []*api.ContainerUpdate
	for _, u := range updates {
		if e.fails[u.GetContainerId()] {
			failed = append(failed, u)
		}
	}
	if len(failed) > 0 {
		return failed, errors.New("update of some containers failed")
	}
	return nil, nil
}

func (e *engine) apply(updates []*api.ContainerUpdate) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, u := range updates {
		cpus := u.GetLinux().GetResources().GetCpu().GetCpus()
		if _, ok := e.cpus[u.GetContainerId()]; ok && !e.stuck && cpus != "" {
			e.cpus[u.GetContainerId()] = cpus
		}
		if mems := u.GetLinux().GetResources().GetCpu().GetMems(); mems != "" && !e.stuck {
			e.pin(u.GetContainerId(), mems)
		}
	}
}

// pin sets the memory nodes of a container. If they are others, its memory moves to the first one of them if it has to.
func (e *engine) pin(id, mems string) {
	if e.mems[id] != mems {
		e.mems[id] = mems
		e.migrate(id)
	}
}

func (e *engine) migrate(id string) {
	nodes, err := numa.Parse(e.mems[id])
	if err != nil {
		e.t.Error(err)
	}
	if at, some := nodes.Lowest(); some && !e.pins && !e.where[id].IsSubsetOf(nodes) || e.where[id].IsEmpty() {
		e.where[id] = numa.Of(at)
	}
}

// usedBytes is the memory of each container of memoryOf.
const usedBytes = 256 << 20

// memoryOf implements Host.Memory. The last part of a cgroup is the id of its container.
func (e *engine) memoryOf(cgroup string, _ int) (m Memory, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := path.Base(cgroup)
	nodes, ok := e.mems[id]
	if _, there := e.cpus[id]; !ok || !there {
		return m, fs.ErrNotExist
	}
	m.Bytes = map[int]uint64{}
	for node := range e.where[id].All() {
		m.Bytes[node] = usedBytes
	}
	m.Nodes, err = numa.Parse(nodes)
	return m, err
}

// sandboxPID is the process of every sandbox.
const sandboxPID = 1 << 20

// pod describes a sandbox of a kubelet.
func pod(name, qos string) *api.PodSandbox {
	parent := "/kubepods/" + qos + "/pod" + name
	if qos == "guaranteed" {
		parent = "/kubepods/pod" + name
	}
	return &api.PodSandbox{Id: name + "-sandbox", Uid: name + "-uid", Name: name, Namespace: "default",
		Linux: &api.LinuxPodSandbox{CgroupParent: parent}, Pid: sandboxPID}
}

// container describes a container as the kubelet has it made.
func container(p *api.PodSandbox, name, id string, milli, memory int64) *api.Container {
	r := &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(uint64(max(2, milli*1024/1000)))}}
	if memory > 0 {
		r.Memory = &api.LinuxMemory{Limit: api.Int64(memory)}
		r.Cpu.Quota, r.Cpu.Period = api.Int64(milli*100), api.UInt64(uint64(100_000))
	}
	return &api.Container{Id: id, Name: name, PodSandboxId: p.GetId(),
		Linux: &api.LinuxContainer{Resources: r, CgroupsPath: p.GetLinux().GetCgroupParent() + "/" + id}}
}

// create makes a container, and returns what the policy adjusts.
func (e *engine) create(p *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, error) {
	e.t.Helper()
	e.calls.Lock()
	defer e.calls.Unlock()
	adjust, updates, err := e.policy.CreateContainer(e.t.Context(), p, c)
	if err != nil {
		return nil, err
	}
	e.apply(updates)
	e.mu.Lock()
	e.cpus[c.GetId()], e.pods[c.GetId()] = adjust.GetLinux().GetResources().GetCpu().GetCpus(), p.GetId()
	if mems := adjust.GetLinux().GetResources().GetCpu().GetMems(); mems != "" {
		e.pin(c.GetId(), mems)
	}
	e.mu.Unlock()
	return adjust, e.policy.PostCreateContainer(e.t.Context(), p, c)
}

// start starts a container that was made.
func (e *engine) start(p *api.PodSandbox, c *api.Container) error {
	e.t.Helper()
	e.calls.Lock()
	defer e.calls.Unlock()
	if err := e.policy.StartContainer(e.t.Context(), p, c); err != nil {
		return err
	}
	e.mu.Lock()
	e.next++
	c.Pid, c.State = uint32(e.next), api.ContainerState_CONTAINER_RUNNING
	e.pids[e.next] = c.GetId()
	e.mu.Unlock()
	return e.policy.PostStartContainer(e.t.Context(), p, c)
}

// run makes and starts a container, and returns its CPUs.
func (e *engine) run(p *api.PodSandbox, c *api.Container) string {
	e.t.Helper()
	if _, err := e.create(p, c); err != nil {
		e.t.Fatalf("create %s: %v", c.GetId(), err)
	}
	if err := e.start(p, c); err != nil {
		e.t.Fatalf("start %s: %v", c.GetId(), err)
	}
	return e.on(c.GetId())
}

// stop ends a container.
func (e *engine) stop(p *api.PodSandbox, c *api.Container) {
	e.t.Helper()
	e.calls.Lock()
	defer e.calls.Unlock()
	e.mu.Lock()
	delete(e.cpus, c.GetId())
	e.mu.Unlock()
	c.State = api.ContainerState_CONTAINER_STOPPED
	updates, err := e.policy.StopContainer(e.t.Context(), p, c)
	if err != nil {
		e.t.Fatal(err)
	}
	e.apply(updates)
}

// end ends a pod, whose containers have ended.
func (e *engine) end(p *api.PodSandbox) {
	e.t.Helper()
	e.calls.Lock()
	defer e.calls.Unlock()
	e.mu.Lock()
	maps.DeleteFunc(e.cpus, func(id, _ string) bool { return e.pods[id] == p.GetId() })
	e.mu.Unlock()
	err := e.policy.StopPodSandbox(e.t.Context(), p)
	if err = errors.Join(err, e.policy.RemovePodSandbox(e.t.Context(), p)); err != nil {
		e.t.Fatal(err)
	}
}

// on tells the CPUs of a container.
func (e *engine) on(id string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cpus[id]
}

func (e *engine) all() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.cpus)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	nodetest.Eventually(t, timeout, what, done)
}

// manifests writes pods into a folder of their own.
func manifests(t *testing.T, texts ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)+".yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func manifestOf(name, resources string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  containers:\n  - {name: main, image: x, resources: %s}\n", name, resources)
}
