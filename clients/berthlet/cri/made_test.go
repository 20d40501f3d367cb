package cri_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/cri"
	fake "github.com/berthd/berth/hack/testing/cri"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/errdefs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// only gives the one container of a pod.
func only(t *testing.T, r *cri.Runtime, uid string) container.Status {
	t.Helper()
	all, err := r.List(t.Context(), uid)
	if err != nil || len(all) != 1 {
		t.Fatalf("containers %+v, %v", all, err)
	}
	return all[0]
}

// ends waits until the one container of pod u has ended, and looks whenever something has
// changed.
func ends(t *testing.T, r *cri.Runtime, changed <-chan string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for only(t, r, "u").Phase != container.Exited {
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the container is %+v", only(t, r, "u"))
		}
	}
}

func thePod(dir string) container.Pod {
	return container.Pod{UID: "u", Namespace: "ns", Name: "web", Hostname: "host", CgroupParent: "/kubepods/podu", LogDir: dir}
}

func theSpec(dir string) container.Spec {
	return container.Spec{
		ID: "c-0", PodUID: "u", Name: "c", Image: "probe", Command: []string{"/probe", "wait"}, LogPath: dir + "/c/0.log",
	}
}

// text compares a message with a text.
func text(t *testing.T, what string, got proto.Message, want string) {
	t.Helper()
	wanted := got.ProtoReflect().New().Interface()
	if err := prototext.Unmarshal([]byte(want), wanted); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if !proto.Equal(got, wanted) {
		t.Errorf("%s is\n%s\nwant\n%s", what, prototext.Format(got), prototext.Format(wanted))
	}
}

func TestWhatIsMade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := fake.New(fake.Config{Images: []string{"probe"}})
	r, _ := open(t, serve(t, s), "us")
	p := thePod(dir)
	p.HostIPC = true
	must(t, r.Open(t.Context(), p))
	user, group := int64(5), int64(6)
	c := theSpec(dir)
	c.Attempt, c.Pause, c.Args, c.Dir = 2, 3*time.Second, []string{",", "x"}, "/w"
	c.User, c.Group, c.ReadOnlyRoot, c.NoNewPrivileges, c.HostIPC = &user, &group, true, true, true
	c.Add, c.Drop = []string{"NET_ADMIN"}, []string{"ALL"}
	c.Env = []container.Variable{{Name: "A", Value: "b"}}
	c.Mounts = []container.Mount{{Path: "/m", HostPath: "/h", ReadOnly: true}}
	c.Devices = []container.Device{{Path: "/dev/d", HostPath: "/dev/null", Permissions: "rw"}}
	c.CDIDevices, c.Annotations = []string{"example.com/gpu=0"}, map[string]string{"note": "x"}
	c.OOMScoreAdj = -997
	c.Resources = container.Resources{
		CPUs: "2-3", Mems: "1", CPUShares: 1024, CPUQuotaUS: -1, CPUPeriodUS: 100000, MemoryBytes: 64, MemorySwapBytes: 65,
		HugePages: []container.HugePages{{Size: "2MB", Bytes: 7}}, Unified: map[string]string{"memory.min": "1"},
	}
	must(t, r.Create(t.Context(), c))
	made, pod := s.Configs(only(t, r, "u").ID)
	text(t, "the container", made, `
		metadata {name: "c" attempt: 2} image {image: "sha256:probe" user_specified_image: "probe"}
		command: "/probe" command: "wait" args: "," args: "x" working_dir: "/w" log_path: "c/0.log"
		envs {key: "A" value: "b"}
		mounts {container_path: "/m" host_path: "/h" readonly: true}
		devices {container_path: "/dev/d" host_path: "/dev/null" permissions: "rw"}
		CDI_devices {name: "example.com/gpu=0"}
		labels {key: "berthlet.berthd.github.io/owner" value: "us"} labels {key: "io.kubernetes.container.name" value: "c"}
		labels {key: "io.kubernetes.pod.name" value: "web"} labels {key: "io.kubernetes.pod.namespace" value: "ns"}
		labels {key: "io.kubernetes.pod.uid" value: "u"}
		annotations {key: "note" value: "x"} annotations {key: "berthlet.berthd.github.io/pause" value: "3s"}
		annotations {key: "io.kubernetes.container.restartCount" value: "2"}
		linux {
			resources {
				cpuset_cpus: "2-3" cpuset_mems: "1" cpu_shares: 1024 cpu_quota: -1 cpu_period: 100000
				memory_limit_in_bytes: 64 memory_swap_limit_in_bytes: 65 oom_score_adj: -997
				hugepage_limits {page_size: "2MB" limit: 7} unified {key: "memory.min" value: "1"}
			}
			security_context {
				capabilities {add_capabilities: "NET_ADMIN" drop_capabilities: "ALL"}
				namespace_options {pid: CONTAINER ipc: NODE} run_as_user {value: 5} run_as_group {value: 6}
				readonly_rootfs: true no_new_privs: true
				masked_paths: "/proc/acpi" masked_paths: "/proc/asound" masked_paths: "/proc/interrupts" masked_paths: "/proc/kcore"
				masked_paths: "/proc/keys" masked_paths: "/proc/latency_stats" masked_paths: "/proc/sched_debug" masked_paths: "/proc/scsi"
				masked_paths: "/proc/timer_list" masked_paths: "/proc/timer_stats" masked_paths: "/sys/devices/virtual/powercap"
				masked_paths: "/sys/firmware"
				readonly_paths: "/proc/bus" readonly_paths: "/proc/fs" readonly_paths: "/proc/irq" readonly_paths: "/proc/sys"
				readonly_paths: "/proc/sysrq-trigger"
				seccomp {profile_type: RuntimeDefault}
			}
		}`)
	pod = proto.Clone(pod).(*criv1.PodSandboxConfig)
	pod.Annotations = nil // for berthlet's own eyes
	text(t, "the pod", pod, `
		metadata {name: "web" uid: "u" namespace: "ns"} hostname: "host" log_directory: "`+dir+`"
		labels {key: "berthlet.berthd.github.io/owner" value: "us"} labels {key: "io.kubernetes.pod.name" value: "web"}
		labels {key: "io.kubernetes.pod.namespace" value: "ns"} labels {key: "io.kubernetes.pod.uid" value: "u"}
		linux {cgroup_parent: "/kubepods/podu" security_context {namespace_options {pid: CONTAINER ipc: NODE} seccomp {profile_type: RuntimeDefault}}}`)

	c.Name, c.Privileged, c.User, c.HostNetwork, c.HostPID = "d", true, nil, true, true
	must(t, r.Create(t.Context(), c))
	all, err := r.List(t.Context(), "u")
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	made, _ = s.Configs(all[1].ID)
	text(t, "a privileged one", made.GetLinux().GetSecurityContext(), `
		capabilities {add_capabilities: "NET_ADMIN" drop_capabilities: "ALL"} privileged: true
		namespace_options {network: NODE pid: NODE ipc: NODE}
		run_as_user {} run_as_group {value: 6} readonly_rootfs: true no_new_privs: true
		seccomp {profile_type: Unconfined}`)
}

// A berthlet that comes back finds what it has made, and nothing of others.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := serve(t, fake.New(fake.Config{Images: []string{"probe"}}))
	first, _ := open(t, socket, "us")
	must(t, first.Open(t.Context(), thePod(dir)))
	c := theSpec(dir)
	c.Attempt, c.Pause = 4, 5*time.Second
	must(t, first.Create(t.Context(), c))
	must(t, first.Start(t.Context(), only(t, first, "").ID))
	before := only(t, first, "")
	first.Stop()

	second, changed := open(t, socket, "us")
	if got := only(t, second, "u"); got != before || got.Attempt != 4 || got.Pause != c.Pause || got.Phase != container.Running {
		t.Errorf("taken over %+v, was %+v", got, before)
	}
	must(t, second.Open(t.Context(), thePod(dir)))
	must(t, second.Create(t.Context(), c))
	must(t, second.Signal(t.Context(), before.ID, syscall.SIGTERM))
	ends(t, second, changed)
	other, _ := open(t, socket, "them")
	if all, err := other.List(t.Context(), ""); err != nil || len(all) > 0 {
		t.Errorf("another berthlet sees %+v, %v", all, err)
	}
	must(t, other.Close(t.Context(), "u"))
	only(t, second, "u")
}

// A pod whose sandbox broke gets another one with its next container.
func TestBrokenSandbox(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := fake.New(fake.Config{Images: []string{"probe"}})
	r, _ := open(t, serve(t, s), "us")
	must(t, r.Open(t.Context(), thePod(dir)))
	must(t, r.Create(t.Context(), theSpec(dir)))
	must(t, r.Start(t.Context(), only(t, r, "u").ID))
	s.Break("u")
	next := theSpec(dir)
	next.Attempt = 1
	if err := r.Create(t.Context(), next); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("a container in a broken sandbox: %v", err)
	}
	must(t, r.Open(t.Context(), thePod(dir)))
	if got := only(t, r, "u"); got.Phase != container.Exited {
		t.Errorf("it outlives its sandbox: %+v", got)
	}
	must(t, r.Create(t.Context(), next))
	all, err := r.List(t.Context(), "u")
	must(t, err)
	if _, pod := s.Configs(all[1].ID); pod.GetMetadata().GetAttempt() != 1 {
		t.Errorf("sandbox %v", pod.GetMetadata())
	}
	must(t, r.Close(t.Context(), "u"))
	if all, err := r.List(t.Context(), ""); err != nil || len(all) > 0 {
		t.Errorf("closed: %+v, %v", all, err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := fake.New(fake.Config{Images: []string{"probe"}})
	r, _ := open(t, serve(t, s), "us")
	if err := r.Create(t.Context(), theSpec(dir)); errdefs.ClassOf(err) != errdefs.Precondition ||
		!strings.Contains(err.Error(), "not open") {
		t.Errorf("without a pod: %v", err)
	}
	must(t, r.Open(t.Context(), thePod(dir)))
	for name, row := range map[string]struct {
		change func(*container.Spec)
		class  errdefs.Class
		text   string
	}{
		"berthd makes cgroups": {func(c *container.Spec) { c.CgroupPath = "/x" }, errdefs.Precondition, "--runtime-endpoint"},
		"no image, never pull": {func(c *container.Spec) { c.Image, c.Pull = "none", container.PullNever }, errdefs.Precondition,
			"policy is Never"},
		"no image, no registry": {func(c *container.Spec) { c.Image = "none" }, errdefs.Unavailable, "no registry"},
		"always pull":           {func(c *container.Spec) { c.Pull = container.PullAlways }, errdefs.Unavailable, "no registry"},
		"log elsewhere":         {func(c *container.Spec) { c.LogPath = "/elsewhere" }, errdefs.Invalid, dir},
	} {
		c := theSpec(dir)
		row.change(&c)
		if err := r.Create(t.Context(), c); errdefs.ClassOf(err) != row.class || !strings.Contains(err.Error(), row.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, r.Create(t.Context(), theSpec(dir)))
	if err := r.Signal(t.Context(), only(t, r, "u").ID, syscall.SIGHUP); errdefs.ClassOf(err) != errdefs.Unsupported {
		t.Errorf("another signal: %v", err)
	}
	for code, want := range map[codes.Code]errdefs.Class{
		codes.Unavailable: errdefs.Unavailable, codes.Unknown: errdefs.Unavailable, codes.InvalidArgument: errdefs.Invalid,
		codes.DeadlineExceeded: errdefs.Deadline, codes.Unimplemented: errdefs.Unsupported,
	} {
		s.Fail("StartContainer", status.Error(code, "not now"))
		if err := r.Start(t.Context(), only(t, r, "u").ID); errdefs.ClassOf(err) != want || !strings.Contains(err.Error(), "not now") {
			t.Errorf("%s: %v", code, err)
		}
	}
	for _, endpoint := range []string{"", "x.sock", "tcp://[::1]:1"} {
		if _, err := cri.New(cri.Options{Endpoint: endpoint}); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("endpoint %q: %v", endpoint, err)
		}
	}
}

// TestLogsStartAnew has a log that grows beyond its limit.
func TestLogsStartAnew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := fake.New(fake.Config{Images: []string{"probe"}})
	r, _ := open(t, serve(t, s), "us")
	must(t, r.Open(t.Context(), thePod(dir)))
	c := theSpec(dir)
	must(t, r.Create(t.Context(), c))
	must(t, r.Start(t.Context(), only(t, r, "u").ID))
	must(t, os.WriteFile(c.LogPath, make([]byte, logBytes+1), 0o644))
	nodetest.Eventually(t, timeout, "the log starts anew", func() bool { return s.Calls("ReopenContainerLog") > 0 })
	if info, err := os.Stat(filepath.Join(dir, "c", "0.log.1")); err != nil || info.Size() != logBytes+1 {
		t.Errorf("the old log: %v, %v", info, err)
	}
}

// TestUnknownContainers has a runtime that does not know any more how far containers
// are: they end, or their pod would wait for them forever.
func TestUnknownContainers(t *testing.T) {
	t.Parallel()
	for name, started := range map[string]bool{"made": false, "started": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := fake.New(fake.Config{Images: []string{"probe"}})
			r, changed := open(t, serve(t, s), "us")
			must(t, r.Open(t.Context(), thePod(dir)))
			must(t, r.Create(t.Context(), theSpec(dir)))
			id := only(t, r, "u").ID
			if started {
				must(t, r.Start(t.Context(), id))
			}
			s.Lose(id)
			ends(t, r, changed)
		})
	}
}

// TestTerminationIsRepeated: a container whose termination the runtime has not carried out gets it later.
func TestTerminationIsRepeated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := fake.New(fake.Config{Images: []string{"probe"}})
	r, changed := open(t, serve(t, s), "us")
	must(t, r.Open(t.Context(), thePod(dir)))
	must(t, r.Create(t.Context(), theSpec(dir)))
	id := only(t, r, "u").ID
	must(t, r.Start(t.Context(), id))
	s.Fail("StopContainer", status.Error(codes.Unavailable, "no connection"))
	must(t, r.Signal(t.Context(), id, syscall.SIGTERM))
	nodetest.Eventually(t, timeout, "the runtime is called", func() bool { return s.Calls("StopContainer") > 0 })
	s.Fail("StopContainer", nil)
	ends(t, r, changed)
	if got := only(t, r, "u"); got.ExitCode != 0 {
		t.Errorf("it was not terminated: %+v", got)
	}
}
