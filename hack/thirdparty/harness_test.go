package thirdparty

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
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
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
)

// inside tells the test binary that it runs in its own mount namespace.
const inside = "BERTH_THIRDPARTY_INSIDE"

// kubelet is the directory that the programs have hard-coded.
const kubelet = "/var/lib/kubelet"

// testTime bounds everything that a test waits for. The slowest plugin polls every
// ten seconds.
const testTime = 90 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" {
		if err := hide(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	if os.Getuid() != 0 {
		fmt.Fprintf(os.Stderr, "SKIP: a mount namespace needs root, and this is uid %d\n", os.Getuid())
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		os.Exit(ended.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "run in a mount namespace:", err)
		os.Exit(1)
	}
}

// hide puts an empty directory in the place of /var/lib, for this process and its
// children.
func hide() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to ourselves: %w", err)
	}
	if err := syscall.Mount("tmpfs", "/var/lib", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("hide /var/lib: %w", err)
	}
	return nil
}

// build makes a program out of a package and returns its path.
func build(t *testing.T, dir, pkg string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, text)
	}
	return out
}

// process is a program that runs until the test ends.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  *syncBuffer
	done chan struct{}
}

func run(t *testing.T, env []string, path string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(path, args...), log: &syncBuffer{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", filepath.Base(path), p.log)
		}
	})
	return p
}

func (p *process) kill() { _ = p.cmd.Process.Kill(); <-p.done }

// node is a machine with berthd's program and a fresh directory of the kubelet.
type node struct {
	t      *testing.T
	berthd string
	*process
	conn *grpc.ClientConn
}

// newNode starts berthd on a fresh directory.
func newNode(t *testing.T) *node {
	t.Helper()
	if err := os.RemoveAll(kubelet); err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, berthd: build(t, "../..", "./server/berthd")}
	conn, err := grpc.NewClient("unix://"+kubelet+"/berth.sock", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond},
			MinConnectTimeout: 20 * time.Second,
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	n.conn = conn
	n.start()
	return n
}

// start runs berthd until the test ends or it is killed, and waits until it
// answers.
func (n *node) start() {
	n.t.Helper()
	n.process = run(n.t, nil, n.berthd, "--root-dir", kubelet, "--cgroup-tree", "memory", "--machine", "1s2n4c2t,mem=4Gi")
	n.eventually("berthd is ready", func() bool {
		resp, err := healthpb.NewHealthClient(n.conn).Check(n.ctx(), &healthpb.HealthCheckRequest{})
		return err == nil && resp.GetStatus() == healthpb.HealthCheckResponse_SERVING
	})
}

// restart ends berthd as a crash does, and starts it again.
func (n *node) restart() {
	n.t.Helper()
	n.kill()
	n.start()
}

func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	n.t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition.
func (n *node) eventually(what string, done func() bool) {
	n.t.Helper()
	ctx := n.ctx()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			n.t.Fatalf("waited in vain: %s\nberthd wrote:\n%s", what, n.log)
		}
	}
}

// expect waits until a resource's plugin is in a state, with a capacity and a
// number of healthy devices.
func (n *node) expect(resource, plugin string, capacity, allocatable int64) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("%s is %s, %d/%d", resource, plugin, allocatable, capacity), func() bool {
		resp, err := devicev1.NewDeviceServiceClient(n.conn).ListResources(n.ctx(), &devicev1.ListResourcesRequest{})
		if err != nil {
			return false
		}
		for _, r := range resp.GetResources() {
			if r.GetName() == resource {
				return convert.Word(r.GetPluginState()) == plugin && r.GetCapacity() == capacity && r.GetAllocatable() == allocatable
			}
		}
		return false
	})
}

// admit admits a pod with one container and devices of a resource.
func (n *node) admit(uid, resource, count string) {
	n.t.Helper()
	limits := map[string]string{resource: count}
	resp, err := admissionv1.NewAdmissionServiceClient(n.conn).Admit(n.ctx(),
		&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: &typesv1.Pod{
			Metadata: &typesv1.PodMetadata{Name: uid, Namespace: "default", Uid: uid},
			Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
				Name: "main", Resources: &typesv1.ResourceRequirements{Limits: limits, Requests: limits},
			}}},
		}}})
	if err != nil || resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		n.t.Fatalf("pod %s: %s %s, %v", uid, resp.GetReason(), resp.GetMessage(), err)
	}
}

// allocate returns what a runtime needs to start a pod's container.
func (n *node) allocate(uid string) *allocationv1.AllocateResponse {
	n.t.Helper()
	resp, err := allocationv1.NewAllocationServiceClient(n.conn).Allocate(n.ctx(),
		&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: uid}, ContainerName: "main"})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp
}

// devices lists the ids that a pod holds.
func (n *node) devices(uid string) string {
	n.t.Helper()
	var ids []string
	for _, c := range n.allocate(uid).GetAllocation().GetClaims() {
		for _, d := range c.GetDevice().GetDevices() {
			ids = append(ids, d.GetId())
		}
	}
	return strings.Join(ids, " ")
}

// syncBuffer is a buffer that may be read while it is written.
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
