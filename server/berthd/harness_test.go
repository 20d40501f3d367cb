package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/systemd"
)

// asDaemon makes the test binary be berthd: the tests run the real program as a
// process of its own, which they can kill, without building it first. asProcess
// makes it be what runs in a container. probesOften is for daemons that a test waits for: they probe
// themselves, and try an address, all the time.
const (
	asDaemon    = "BERTHD_TEST_AS_DAEMON"
	asProcess   = "BERTHD_TEST_AS_PROCESS"
	probesOften = "BERTHD_TEST_PROBES_OFTEN"
)

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		enterCgroup(os.Getenv(inCgroup))
		doWithout(os.Getenv(without))
		become(os.Getenv(asUser))
		if os.Getenv("LISTEN_FDS") != "" { // a pid is not known before the process exists
			_ = os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
		}
		if os.Getenv(probesOften) != "" {
			probePause = 200 * time.Millisecond
		}
		main()
		return
	}
	if mib := os.Getenv(asProcess); mib != "" {
		become(os.Getenv(asUser))
		work(mib)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	if err := nodetest.Own(ctx, cgroupPrefix); err != nil {
		fmt.Fprintln(os.Stderr, "what earlier tests left:", err)
	}
	cancel()
	code := m.Run()
	programs.Remove()
	os.Exit(code)
}

// timeout bounds everything that a test waits for; no test takes that long
// unless it fails.
const timeout = 60 * time.Second

// hitsOf is how often a crash test tries each failpoint: each try starts several daemons. The long form has BERTH_LONG.
func hitsOf(short, long int) int {
	if os.Getenv("BERTH_LONG") != "" {
		return long
	}
	return short
}

// node is a place for daemons to run one after the other: a root directory and a
// cgroup of its own.
type node struct {
	t      *testing.T
	root   string
	cgroup string // below each mount
	kernel bool   // real cgroups; otherwise the tree in memory
	driver cgroup.Driver
	args   []string
	own    string   // the directory of the cgroup that berthd starts in; empty for the tests' own
	env    []string // of the daemons
	// config is a file in place of the flags of the policy; empty for none.
	config string
	// sockets are those that systemd would hold for the daemons.
	sockets []*os.File
	// unit is the systemd unit that runs the daemons; empty: the test does. Their
	// paths are then the default ones.
	unit string
}

// socket is the path of berthd's own socket.
func (n *node) socket() string {
	if n.unit != "" {
		return "/run/berth/berth.sock"
	}
	return n.root + "/berth.sock"
}

var nodes atomic.Int64

// cgroupPrefix begins the names of the nodes' cgroups.
const cgroupPrefix = "berthdtest"

// driverEnv names the cgroup driver of the tests' daemons, so that all of these tests
// can run beside systemd.
const driverEnv = "BERTH_TEST_CGROUP_DRIVER"

// newNode makes a node that leaves nothing behind.
func newNode(t *testing.T, args ...string) *node {
	t.Helper()
	// Paths of sockets are short (unix(7)), those of t.TempDir are not.
	root, err := os.MkdirTemp("", "berthd")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		t: t, root: root, args: args,
		cgroup: fmt.Sprintf("%s%d-%d", cgroupPrefix, os.Getpid(), nodes.Add(1)),
		kernel: cgroupsWritable(), driver: cgroup.Cgroupfs,
	}
	if os.Getenv(driverEnv) == string(cgroup.Systemd) {
		n.driver = cgroup.Systemd
	}
	t.Cleanup(func() {
		n.removeCgroups()
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	return n
}

const cgroupMount = "/sys/fs/cgroup"

// cgroupsWritable reports whether this process may make cgroups with the
// controllers that berth needs.
var cgroupsWritable = sync.OnceValue(func() bool {
	probe := filepath.Join(cgroupMount, "cpuset", "berthdtest-probe-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(probe, 0o755); err == nil {
		return os.Remove(probe) == nil
	}
	controllers, err := os.ReadFile(filepath.Join(cgroupMount, "cgroup.controllers"))
	if err != nil || !strings.Contains(string(controllers), "cpuset") {
		return false
	}
	probe = filepath.Join(cgroupMount, filepath.Base(probe))
	return os.Mkdir(probe, 0o755) == nil && os.Remove(probe) == nil
})

// needKernel skips tests that look at real cgroups.
func (n *node) needKernel() {
	n.t.Helper()
	if !n.kernel {
		probe := filepath.Join(cgroupMount, n.cgroup)
		err := os.Mkdir(probe, 0o755)
		_ = os.Remove(probe) // it was made where only the controllers are missing
		n.t.Skipf("needs a writable cgroup tree with the controller cpuset: %v", err)
	}
}

// path gives the path of one of the node's cgroups, or of its own, below each mount.
func (n *node) path(below string) string {
	n.t.Helper()
	literal, err := n.driver.Literal(append(cgroup.Name{n.cgroup}, cgroup.ParseCgroupfs(below)...))
	if err != nil {
		n.t.Fatal(err)
	}
	return literal
}

// cgroupDirs lists the directories of the node's cgroup in all hierarchies.
func (n *node) cgroupDirs() []string { return nodetest.Cgroups(n.path("")) }

// podCgroups lists the uids of pods that have a cgroup in any hierarchy.
func (n *node) podCgroups() map[string]bool {
	uids := map[string]bool{}
	for _, dir := range n.cgroupDirs() {
		if uid, ok := strings.CutPrefix(n.driver.Parse(filepath.Base(dir)).Base(), "pod"); ok {
			uids[uid] = true
		}
	}
	return uids
}

// removeCgroups kills what is left in the node's cgroups and removes them.
func (n *node) removeCgroups() {
	nodetest.KillIn(n.path(""))
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if n.kernel && n.driver == cgroup.Systemd {
		tree, err := systemd.Open(cgroupfs.Options{})
		if err != nil {
			n.t.Errorf("%s=%s: %v", driverEnv, n.driver, err)
			return
		}
		err = tree.Remove(ctx, cgroup.Name{n.cgroup})
		if err := errors.Join(err, tree.Close()); err != nil {
			n.t.Error(err)
		}
	}
	if err := nodetest.RemoveCgroups(ctx, n.path("")); err != nil {
		n.t.Error(err)
	}
}

// eventually waits for a condition.
func (n *node) eventually(what string, done func() bool) {
	n.t.Helper()
	nodetest.Eventually(n.t, timeout, what, done)
}

// daemon is a running berthd with clients.
type daemon struct {
	*node
	*nodetest.Process
	log  nodetest.Log
	conn *grpc.ClientConn

	admission  admissionv1.AdmissionServiceClient
	allocation allocationv1.AllocationServiceClient
	lifecycle  lifecyclev1.LifecycleServiceClient
	inspect    inspectv1.InspectServiceClient
}

// command makes the command line of a daemon on the node.
func (n *node) command(args ...string) *exec.Cmd {
	policy := []string{"--cpu-manager-policy", "static", "--reserved-cpus", "0", "--topology-manager-policy", "best-effort"}
	if n.config != "" {
		policy = []string{"--config", n.config}
	}
	all := append([]string{
		"--root-dir", n.root, "--cgroup-root", "/" + n.cgroup,
		// The machine of the tests may be small, and may swap.
		"--node-fit=false", "--fail-swap-on=false",
	}, policy...)
	if !n.kernel {
		all = append(all, "--cgroup-tree", "memory")
	}
	if n.kernel && n.driver == cgroup.Systemd {
		all = append(all, "--cgroup-driver", string(n.driver))
	}
	all = append(append(all, n.args...), args...)
	cmd := exec.Command(os.Args[0], all...)
	cmd.Env = append(append(os.Environ(), asDaemon+"=1", inCgroup+"="+n.own), n.env...)
	if len(n.sockets) > 0 {
		cmd.ExtraFiles = n.sockets
		cmd.Env = append(cmd.Env, fmt.Sprintf("LISTEN_FDS=%d", len(n.sockets)))
	}
	return cmd
}

// start runs a daemon and waits until it answers.
func (n *node) start(args ...string) *daemon {
	n.t.Helper()
	d := n.launch(args...)
	if !d.readyOrDead() {
		n.t.Fatalf("berthd ended before it was ready:\n%s", d.log)
	}
	return d
}

// readyOrDead waits until the daemon answers, or has ended.
func (d *daemon) readyOrDead() (ready bool) {
	d.t.Helper()
	d.eventually("berthd is ready", func() bool {
		select {
		case <-d.Ended:
			return true
		default:
		}
		resp, err := healthpb.NewHealthClient(d.conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
		ready = err == nil && resp.GetStatus() == healthpb.HealthCheckResponse_SERVING
		return ready
	})
	return ready
}

// launch runs a daemon and waits for nothing.
func (n *node) launch(args ...string) *daemon {
	n.t.Helper()
	d := &daemon{node: n, log: nodetest.Log(filepath.Join(n.t.TempDir(), "log"))}
	cmd := n.command(args...)
	if n.unit != "" {
		cmd = exec.Command("systemctl", "start", "--wait", n.unit) // ends when the unit does
	}
	d.Process = nodetest.Start(n.t, cmd, d.log)
	d.connect()
	return d
}

// connect makes the clients of a daemon, which is killed at the end of the test.
func (d *daemon) connect() {
	n := d.node
	n.t.Helper()
	conn, err := grpc.NewClient("unix://"+n.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The socket appears soon; gRPC's own pause between tries is a second.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond},
			MinConnectTimeout: 20 * time.Second,
		}))
	if err != nil {
		n.t.Fatal(err)
	}
	d.conn = conn
	n.t.Cleanup(func() {
		_ = conn.Close()
		if n.t.Failed() {
			d.stacks()
		}
		_ = d.End(os.Kill) // until its end it may write files and make cgroups
		if n.t.Failed() {
			n.t.Logf("log of berthd %d:\n%s", d.Cmd.Process.Pid, d.log)
		}
	})
	d.admission = admissionv1.NewAdmissionServiceClient(conn)
	d.allocation = allocationv1.NewAllocationServiceClient(conn)
	d.lifecycle = lifecyclev1.NewLifecycleServiceClient(conn)
	d.inspect = inspectv1.NewInspectServiceClient(conn)
}

// stacks logs where a daemon that runs is: its threads in the kernel, and its goroutines.
func (d *daemon) stacks() {
	select {
	case <-d.Ended:
		return
	default:
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", d.Cmd.Process.Pid))
	for _, file := range threads {
		if text, err := os.ReadFile(file); err == nil && len(text) > 0 {
			d.t.Logf("%s:\n%s", file, text)
		}
	}
	if d.Cmd.Process.Signal(syscall.SIGQUIT) != nil {
		return
	}
	select {
	case <-d.Ended:
	case <-time.After(5 * time.Second):
	}
}

// kill ends the daemon as a crash does.
func (d *daemon) kill() {
	if d.unit != "" {
		d.systemctl("kill", "--kill-who=main", "--signal=KILL", d.unit) // systemd starts it again
	}
	_ = d.End(os.Kill)
}

// stop ends the daemon in an orderly way.
func (d *daemon) stop() {
	d.t.Helper()
	if d.unit != "" {
		d.systemctl("stop", d.unit)
		_ = d.Wait()
		return
	}
	if err := d.End(syscall.SIGTERM); err != nil {
		d.t.Fatalf("berthd did not end in order: %v\n%s", err, d.log)
	}
}

// ctx has the test's deadline.
func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	n.t.Cleanup(cancel)
	return ctx
}

// admit calls AdmitPod and expects an answer.
func (d *daemon) admit(p *typesv1.Pod) *admissionv1.AdmitResponse {
	d.t.Helper()
	resp, err := d.admission.Admit(d.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: p}})
	if err != nil {
		d.t.Fatalf("admit %s: %v", p.GetMetadata().GetUid(), err)
	}
	return resp
}

// admitted calls AdmitPod and expects an admission.
func (d *daemon) admitted(p *typesv1.Pod) *admissionv1.AdmitResponse {
	d.t.Helper()
	resp := d.admit(p)
	if resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		d.t.Fatalf("pod %s: %s %s: %s", p.GetMetadata().GetUid(), resp.GetVerdict(), resp.GetReason(), resp.GetMessage())
	}
	return resp
}

func (d *daemon) remove(uid string) {
	d.t.Helper()
	if _, err := d.admission.RemovePod(d.ctx(), &admissionv1.RemovePodRequest{PodUid: uid}); err != nil {
		d.t.Fatalf("remove %s: %v", uid, err)
	}
}

// pods lists the admitted pods by uid. Containers without CPUs of their own have the shared
// ones here.
func (d *daemon) pods() map[string]*typesv1.PodAllocation {
	d.t.Helper()
	resp, err := d.allocation.List(d.ctx(), &allocationv1.ListRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	out := map[string]*typesv1.PodAllocation{}
	for _, p := range resp.GetPods() {
		out[p.GetUid()] = p
		for _, c := range p.GetContainers() {
			if c.GetCpus() == nil {
				c.Cpus = resp.GetSharedCpus()
			}
		}
	}
	return out
}

// check fails the test if the ledger or the cgroup tree is not as it must be.
func (d *daemon) check() {
	d.t.Helper()
	resp, err := d.inspect.Check(d.ctx(), &inspectv1.CheckRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range resp.GetFindings() {
		d.t.Errorf("ledger check: %s %s: %s", f.GetKind(), f.GetHolder(), f.GetText())
	}
	if !d.kernel {
		return
	}
	want, have := d.pods(), d.podCgroups()
	for uid := range want {
		if !have[uid] {
			d.t.Errorf("pod %s has no cgroup", uid)
		}
	}
	for uid := range have {
		if want[uid] == nil {
			d.t.Errorf("a cgroup of pod %s, which is not admitted", uid)
		}
	}
}

// guaranteed makes a pod with one container of whole CPUs and devices of gpu.
func guaranteed(uid string, cpus, gpus int) *typesv1.Pod {
	r := map[string]string{"cpu": strconv.Itoa(cpus), "memory": "16Mi"}
	if gpus > 0 {
		r[gpu] = strconv.Itoa(gpus)
	}
	return pod(uid, r, r)
}

// burstable makes a pod that runs on the shared CPUs.
func burstable(uid string) *typesv1.Pod {
	return pod(uid, map[string]string{"cpu": "100m", "memory": "16Mi"}, map[string]string{"memory": "32Mi"})
}

func pod(uid string, requests, limits map[string]string) *typesv1.Pod {
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: uid, Namespace: "default", Uid: uid},
		Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
			Name: "main", Resources: &typesv1.ResourceRequirements{Requests: requests, Limits: limits},
		}}},
	}
}

// gpu is the resource that the tests' plugin serves.
const gpu = "example.com/gpu"

// says waits until the daemon's log has a text: it may come after an answer of the
// daemon's that was given later.
func (d *daemon) says(text string) {
	d.t.Helper()
	d.eventually("the log says "+text, func() bool { return strings.Contains(d.log.String(), text) })
}

// plugin runs a device plugin in the test's process and waits until its devices
// are known, and not only those of one before it.
func (d *daemon) plugin(devices string) *script.Plugin {
	d.t.Helper()
	list, err := script.ParseDevices(devices)
	if err != nil {
		d.t.Fatal(err)
	}
	p := script.New(script.Config{Dir: filepath.Join(d.root, "device-plugins"), Resource: gpu, Devices: list})
	before := d.gpus().GetRegistration()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	d.t.Cleanup(func() {
		cancel()
		<-ended
	})
	d.eventually("the plugin has registered", func() bool { return d.gpus().GetRegistration() > before })
	d.expectDevices(len(list))
	return p
}

// gpus is what the daemon knows of the plugin's resource, nil for nothing.
func (d *daemon) gpus() *devicev1.Resource {
	d.t.Helper()
	resp, err := devicev1.NewDeviceServiceClient(d.conn).ListResources(d.ctx(), &devicev1.ListResourcesRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, r := range resp.GetResources() {
		if r.GetName() == gpu {
			return r
		}
	}
	return nil
}

// expectDevices waits until the daemon knows a connected plugin with n healthy
// devices.
func (d *daemon) expectDevices(n int) {
	d.t.Helper()
	d.eventually("the plugin's devices are known", func() bool {
		r := d.gpus()
		return r.GetPluginState() == typesv1.PluginState_PLUGIN_STATE_CONNECTED && !r.GetAwaited() && r.GetAllocatable() == int64(n)
	})
}

// process is a process that stopped itself before its first instruction of
// interest.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// work is the life of such a process: it stops, uses memory and prints a line once it
// continues, and ends when its input is closed.
func work(mib string) {
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		os.Exit(1)
	}
	n, err := strconv.Atoi(mib)
	if err != nil {
		os.Exit(1)
	}
	used := make([]byte, n<<20)
	for i := 0; i < len(used); i += os.Getpagesize() {
		used[i] = 1
	}
	release, err := useHugePages(os.Getenv(asHuge))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if err := useKinds(os.Getenv(asKinds)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("works")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		release()
		fmt.Println("released")
	}
	runtime.KeepAlive(used)
}

// stopped starts a process and waits until it has stopped itself.
func (n *node) stopped() *process { return n.stoppedWith(0) }

// stoppedWith starts a process that will use so much memory once it continues.
func (n *node) stoppedWith(mib int, env ...string) *process {
	n.t.Helper()
	p := &process{t: n.t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(append(os.Environ(), fmt.Sprintf("%s=%d", asProcess, mib)), env...)
	in, err := p.cmd.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(p.pid(), &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		n.t.Fatalf("the process did not stop: %v, %v", ws, err)
	}
	n.t.Cleanup(func() { _ = in.Close(); _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	return p
}

// works waits until the process has used its memory.
func (p *process) works() {
	p.t.Helper()
	if line, err := p.out.ReadString('\n'); err != nil || line != "works\n" {
		p.t.Fatalf("the process said %q, %v", line, err)
	}
}

// pages counts by node the pages that a process has and that belong to no file.
func (p *process) pages() map[int]int {
	p.t.Helper()
	return nodetest.Pages(p.t, p.pid(), nodetest.OfNoFile)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// resume lets the process continue.
func (p *process) resume() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		p.t.Fatal(err)
	}
}

// allowed reads the CPUs that the process may run on from the kernel.
func (p *process) allowed() cpuset.Set {
	p.t.Helper()
	set, err := p.mayRun()
	if err != nil {
		p.t.Fatal(err)
	}
	return set
}

// mayRun is allowed for any goroutine of a test.
func (p *process) mayRun() (cpuset.Set, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid()))
	if err != nil {
		return cpuset.Set{}, err
	}
	for line := range strings.Lines(string(text)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return cpuset.Parse(strings.TrimSpace(list))
		}
	}
	return cpuset.Set{}, errors.New("no Cpus_allowed_list")
}

// run puts the process into a container and lets it continue.
func (d *daemon) run(p *process, uid, container, id string) *lifecyclev1.PreStartContainerResponse {
	d.t.Helper()
	resp, err := d.lifecycle.PreStartContainer(d.ctx(), &lifecyclev1.PreStartContainerRequest{
		PodUid: uid, ContainerName: container, ContainerId: id, Pid: int32(p.pid()),
	})
	if err != nil {
		d.t.Fatalf("start %s/%s: %v", uid, container, err)
	}
	p.resume()
	return resp
}

// syncBuffer is a buffer for a process's output that may be read meanwhile.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
