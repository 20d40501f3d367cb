package criclient_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthd/berth/hack/testing/cri"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/runtime"
	"github.com/berthd/berth/server/internal/runtime/criclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kernel remembers what a runtime in memory has written.
type kernel struct {
	mu     sync.Mutex // guards placed
	placed map[string]*criv1.LinuxContainerResources
}

func (k *kernel) Placed(cgroup string, r *criv1.LinuxContainerResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.placed[cgroup] = r
}

func (k *kernel) Gone(cgroup string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.placed, cgroup)
}

func (k *kernel) read(name cgroup.Name) (string, int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.placed[name.ToCgroupfs()]
	return r.GetCpusetCpus(), r.GetMemoryLimitInBytes()
}

// serve runs a runtime in memory until the test ends, and returns its socket and how
// to restart it.
func serve(t *testing.T, s *cri.Server) (socket string, restart func()) {
	t.Helper()
	// Paths of sockets are short (unix(7)), those of t.TempDir are not.
	dir, err := os.MkdirTemp("", "cri")
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	var stop func()
	start := func() {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx, l) }()
		stop = func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	start()
	t.Cleanup(func() {
		stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return socket, func() { stop(); start() }
}

func TestInMemory(t *testing.T) {
	t.Parallel()
	driver := criv1.CgroupDriver_CGROUPFS
	k := &kernel{placed: map[string]*criv1.LinuxContainerResources{}}
	socket, restart := serve(t, cri.New(cri.Config{Driver: &driver, Images: []string{"probe"}, Kernel: k}))
	b := newBench(t, socket)
	b.parent, b.read, b.restart = "/kubepods", k.read, restart
	contract(b)
}

func TestDriver(t *testing.T) {
	t.Parallel()
	systemd, cgroupfs, odd := criv1.CgroupDriver_SYSTEMD, criv1.CgroupDriver_CGROUPFS, criv1.CgroupDriver(7)
	for name, row := range map[string]struct {
		driver *criv1.CgroupDriver
		want   cgroup.Driver
		told   bool
		class  errdefs.Class
	}{
		"cgroupfs":               {&cgroupfs, cgroup.Cgroupfs, true, 0},
		"systemd":                {&systemd, cgroup.Systemd, true, 0},
		"older than the call":    {nil, "", false, 0},
		"a driver of the future": {&odd, "", false, errdefs.Unsupported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket, _ := serve(t, cri.New(cri.Config{Driver: row.driver}))
			got, told, err := newBench(t, socket).client.Driver(t.Context())
			if got != row.want || told != row.told || (err != nil) != (row.class != 0) || err != nil && errdefs.ClassOf(err) != row.class {
				t.Errorf("%q, %v, %v", got, told, err)
			}
		})
	}
}

func TestErrorsHaveClasses(t *testing.T) {
	t.Parallel()
	s := cri.New(cri.Config{Images: []string{"probe"}})
	socket, _ := serve(t, s)
	b := newBench(t, socket)
	b.parent = "/kubepods"
	id := b.pod(t.Context(), "u")("main", "wait")
	for code, want := range map[codes.Code]errdefs.Class{
		codes.Unavailable: errdefs.Unavailable, codes.Unknown: errdefs.Unavailable, codes.Unimplemented: errdefs.Unsupported,
		codes.DeadlineExceeded: errdefs.Deadline,
	} {
		refusal := status.Error(code, "not now")
		s.Fail("ListContainers", refusal)
		s.Fail("UpdateContainerResources", refusal)
		s.Fail("RuntimeConfig", refusal)
		_, list := b.client.List(t.Context())
		update := b.client.Update(t.Context(), id, cpus("0"))
		_, told, driver := b.client.Driver(t.Context())
		for what, err := range map[string]error{"list": list, "update": update, "driver": driver} {
			if what == "driver" && code == codes.Unimplemented {
				if told || err != nil {
					t.Errorf("driver of an old runtime: %v, %v", told, err)
				}
				continue
			}
			if errdefs.ClassOf(err) != want || !strings.Contains(fmt.Sprint(err), "not now") || !strings.Contains(fmt.Sprint(err), socket) {
				t.Errorf("%s answered with %s: %v", what, code, err)
			}
		}
	}
	// A container that has ended meanwhile is no error, for any error of the runtime.
	s.Fail("ListContainers", nil)
	b.start(t.Context(), id)
	s.End(id, 0)
	if err := b.client.Update(t.Context(), id, cpus("0")); err != nil {
		t.Errorf("one that has ended: %v", err)
	}
}

// A runtime that does not report where cgroups are is no reason to fail.
func TestMute(t *testing.T) {
	t.Parallel()
	socket, _ := serve(t, cri.New(cri.Config{Images: []string{"probe"}, Mute: true}))
	b := newBench(t, socket)
	b.parent = "/kubepods"
	id := b.pod(t.Context(), "u")("main", "wait")
	if c := b.only(t.Context(), id, runtime.Created); c.Cgroup != nil {
		t.Errorf("%+v", c)
	}
}

func TestPlacesAreAskedOnce(t *testing.T) {
	t.Parallel()
	s := cri.New(cri.Config{Images: []string{"probe"}})
	socket, _ := serve(t, s)
	b := newBench(t, socket)
	b.parent = "/kubepods"
	id := b.pod(t.Context(), "u")("main", "wait")
	for range 3 {
		b.only(t.Context(), id, runtime.Created)
	}
	if n := s.Calls("ContainerStatus"); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestDialRefuses(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"", "containerd.sock", "tcp://127.0.0.1:1", "unix://x"} {
		if _, err := criclient.Dial(endpoint); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
	b := newBench(t, filepath.Join(t.TempDir(), "none"))
	if _, err := b.client.List(t.Context()); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("nobody there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.client.About(ctx); err == nil || errors.Is(err, context.Canceled) && errdefs.ClassOf(err) != errdefs.Deadline {
		t.Errorf("nobody there, and no time to wait: %v", err)
	}
}

func TestCgroupsPath(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"/kubepods/burstable/podu/id":                       "/kubepods/burstable/podu/id",
		"kubepods-burstable-podu_1.slice:cri-containerd:id": "/kubepods/burstable/podu-1/cri-containerd-id.scope",
		"kubepods-podu.slice:crio:id":                       "/kubepods/podu/crio-id.scope",
		"system.slice::id":                                  "/system/id.scope",
		"":                                                  "",
		"/":                                                 "",
		"relative/path":                                     "",
		"a:b":                                               "",
		"a:b:c":                                             "",
		"/a//b":                                             "",
	} {
		got := criclient.ParseCgroupsPath(text)
		if got == nil && want == "" {
			continue
		}
		if got.ToCgroupfs() != want {
			t.Errorf("%q: %v, want %s", text, got, want)
		}
	}
}
