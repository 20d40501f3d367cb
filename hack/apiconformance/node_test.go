package apiconformance

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/hack/testing/script"
)

var programs = nodetest.NewPrograms(map[string]string{"berthd": "server/berthd"})

func TestMain(m *testing.M) {
	code := m.Run()
	programs.Remove()
	os.Exit(code)
}

// timeout bounds everything that a test waits for.
const timeout = 60 * time.Second

// gpu is the resource of the device plugin.
const gpu = "example.com/gpu"

// node is a running berthd with clients.
type node struct {
	t      *testing.T
	root   string
	conn   *grpc.ClientConn
	losing *losing
	berthd *nodetest.Process
	start  func() // starts berthd, and waits until it serves

	admission  admissionv1.AdmissionServiceClient
	allocation allocationv1.AllocationServiceClient
	inspect    inspectv1.InspectServiceClient
}

// newNode starts a berthd with a configuration, which is YAML without its header, and with
// more flags.
func newNode(t *testing.T, config string, flags ...string) *node {
	t.Helper()
	built, err := programs.Dir()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skipf("berthd is built for the test: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.MkdirTemp("", "api") // a socket's path is short (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(root, 0o711); err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, root: root, losing: new(losing)}
	n.configure(config)
	n.start = func() {
		t.Helper()
		log := nodetest.Log(filepath.Join(t.TempDir(), "log"))
		n.berthd = nodetest.Start(t, exec.Command(filepath.Join(built, "berthd"), append([]string{
			"--config", filepath.Join(root, "config.yaml"), "--root-dir", root, "--cgroup-root", "/node", "--cgroup-tree", "memory",
			"--machine", "2s1n4c2t,mem=64Gi,huge=2Mi:1", "--cpu-manager-policy", "static", "--reserved-cpus", "0",
			"--topology-manager-policy", "best-effort", "--node-fit=false", "--fail-swap-on=false",
		}, flags...)...), log)
		p := n.berthd
		t.Cleanup(func() {
			_ = p.End(os.Kill)
			if t.Failed() {
				t.Logf("log of berthd:\n%s", log)
			}
		})
		n.eventually("berthd serves", func() bool {
			select {
			case <-p.Ended:
				t.Fatalf("berthd has ended:\n%s", log)
			default:
			}
			r, err := healthpb.NewHealthClient(n.conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
			return err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING
		})
	}
	n.conn = n.dial(0, grpc.WithUnaryInterceptor(n.losing.intercept))
	n.admission, n.allocation = admissionv1.NewAdmissionServiceClient(n.conn), allocationv1.NewAllocationServiceClient(n.conn)
	n.inspect = inspectv1.NewInspectServiceClient(n.conn)
	n.start()
	return n
}

// configure writes the file of the configuration, YAML without its header.
func (n *node) configure(config string) {
	n.t.Helper()
	text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\n" + config
	if err := os.WriteFile(filepath.Join(n.root, "config.yaml"), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// dial connects as the user with a uid; 0 is this process's own.
func (n *node) dial(uid int, options ...grpc.DialOption) *grpc.ClientConn {
	n.t.Helper()
	options = append(options, grpc.WithChainUnaryInterceptor(n.declared), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond},
			// Without it a connection must stand within the backoff, which a busy machine does not manage.
			MinConnectTimeout: 20 * time.Second,
		}),
		grpc.WithContextDialer(func(_ context.Context, path string) (net.Conn, error) {
			if uid == 0 {
				return net.Dial("unix", path)
			}
			return dialAs(uid, path)
		}))
	conn, err := grpc.NewClient("passthrough:///"+filepath.Join(n.root, "berth.sock"), options...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// unprivileged is a user without rights beyond those of the configuration.
const unprivileged = 64001

// dialAs connects to a socket as another user. The kernel keeps the credentials of the
// connecting thread (unix(7)), so one thread changes its own for that time.
func dialAs(uid int, path string) (net.Conn, error) {
	runtime.LockOSThread()
	setuid := func(uid int) error {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			return errno
		}
		return nil
	}
	if err := setuid(uid); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	c, err := net.Dial("unix", path)
	if back := setuid(0); back != nil {
		return nil, back // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return c, err
}

func (n *node) eventually(what string, done func() bool) {
	n.t.Helper()
	nodetest.Eventually(n.t, timeout, what, done)
}

// ctx has the test's deadline.
func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	n.t.Cleanup(cancel)
	return ctx
}

// plugin runs the device plugin of gpu.
func (n *node) plugin() { n.t.Helper(); n.pluginOf(gpu) }

// pluginOf runs a device plugin with four devices, and waits until they are known. It returns
// what ends the plugin.
func (n *node) pluginOf(resource string) (end func()) {
	n.t.Helper()
	_, end = n.pluginWith(script.Config{Resource: resource})
	return end
}

// pluginWith runs a device plugin as pluginOf does.
func (n *node) pluginWith(c script.Config) (p *script.Plugin, end func()) {
	n.t.Helper()
	var err error
	if c.Devices, err = script.ParseDevices("g0@0 g1@0 g2@1 g3@1"); err != nil {
		n.t.Fatal(err)
	}
	c.Dir = filepath.Join(n.root, "device-plugins")
	p = script.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	end = sync.OnceFunc(func() { cancel(); <-ended })
	n.t.Cleanup(end)
	n.eventually("the devices are known", func() bool { return n.resource(c.Resource).GetAllocatable() == 4 })
	return p, end
}

// resource returns what berthd knows of a plugin's resource; nil for nothing.
func (n *node) resource(name string) *devicev1.Resource {
	n.t.Helper()
	r, err := devicev1.NewDeviceServiceClient(n.conn).ListResources(n.ctx(), &devicev1.ListResourcesRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, r := range r.GetResources() {
		if r.GetName() == name {
			return r
		}
	}
	return nil
}

// state is everything that a call may change, as text: the ledger without traces, the cgroups
// and the providers.
func (n *node) state() string {
	n.t.Helper()
	var out strings.Builder
	add := func(m proto.Message, err error) {
		n.t.Helper()
		if err != nil {
			n.t.Fatal(err)
		}
		out.WriteString(prototext.MarshalOptions{Multiline: true}.Format(m))
	}
	dump, err := n.inspect.Dump(n.ctx(), &inspectv1.DumpRequest{})
	add(dump, err)
	cgroups, err := cgroupv1.NewCgroupServiceClient(n.conn).List(n.ctx(), &cgroupv1.ListRequest{})
	add(cgroups, err)
	providers, err := hintv1.NewHintBusServiceClient(n.conn).ListProviders(n.ctx(), &hintv1.ListProvidersRequest{})
	add(providers, err)
	return strings.ReplaceAll(out.String(), "  ", " ") // prototext puts in one or two spaces at random
}

// revision is the ledger's current revision.
func (n *node) revision() uint64 {
	n.t.Helper()
	r, err := n.allocation.GetRevision(n.ctx(), &allocationv1.GetRevisionRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	return r.GetRevision()
}

// guaranteed makes a pod with one container of whole CPUs and devices.
func guaranteed(uid, cpus, gpus string) *typesv1.Pod {
	r := map[string]string{"cpu": cpus, "memory": "16Mi"}
	if gpus != "" {
		r[gpu] = gpus
	}
	return pod(uid, r, r)
}

// burstable makes a pod that shares CPUs.
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

func admit(id string, p *typesv1.Pod) *admissionv1.AdmitRequest {
	return &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: p}, AdmissionId: id}
}

// admitted admits a pod, which has to succeed.
func (n *node) admitted(p *typesv1.Pod) *admissionv1.AdmitResponse {
	n.t.Helper()
	r, err := n.admission.Admit(n.ctx(), admit("of-"+p.GetMetadata().GetUid(), p))
	if err != nil || r.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		n.t.Fatalf("admit %s: %v, %v", p.GetMetadata().GetUid(), r, err)
	}
	return r
}

// uids lists the admitted pods.
func (n *node) uids() (uids []string) {
	n.t.Helper()
	r, err := n.allocation.List(n.ctx(), &allocationv1.ListRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range r.GetPods() {
		uids = append(uids, p.GetUid())
	}
	return uids
}
