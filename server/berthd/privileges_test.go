package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginv1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	"github.com/berthd/berth/managers/cgroup"
)

const (
	// without has numbers of capabilities that a daemon does not get.
	without = "BERTHD_TEST_WITHOUT"
	// inCgroup is the directory of the cgroup that a daemon starts in; empty for the test's own.
	inCgroup = "BERTHD_TEST_IN_CGROUP"
	// asUser is the user that a process in a container is.
	asUser = "BERTHD_TEST_AS_USER"
)

// enterCgroup moves this process into a cgroup. Virtual machines have no shell that could.
func enterCgroup(dir string) {
	_ = os.Unsetenv(inCgroup)
	if dir == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
		fmt.Fprintln(os.Stderr, "enter a cgroup:", err)
		os.Exit(1)
	}
}

// doWithout takes capabilities out of the bounding set and executes the program again: what
// root has then is what is left there.
func doWithout(numbers string) {
	if numbers == "" {
		return
	}
	runtime.LockOSThread()
	for text := range strings.FieldsSeq(numbers) {
		n, err := strconv.Atoi(text)
		if err == nil {
			err = unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "do without capability", text, err)
			os.Exit(1)
		}
	}
	_ = os.Unsetenv(without)
	again()
}

// become makes this process another user's, as a program that the user has executed.
func become(user string) {
	uid, err := strconv.Atoi(user)
	if user == "" {
		return
	}
	for _, step := range []func(int) error{func(int) error { return syscall.Setgroups(nil) }, syscall.Setgid, syscall.Setuid} {
		if err == nil {
			err = step(uid)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "become user", user, err)
		os.Exit(1)
	}
	_ = os.Unsetenv(asUser)
	again()
}

func again() {
	err := syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	fmt.Fprintln(os.Stderr, "execute again:", err)
	os.Exit(1)
}

// threads reads the status of all threads of a process (proc_pid_status(5)).
func threads(t *testing.T, pid int) (all []map[string]string) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("no threads of %d, %v", pid, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		lines := map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			lines[name] = strings.TrimSpace(value)
		}
		all = append(all, lines)
	}
	return all
}

// mask is a set of capabilities as the kernel prints it, of those that the test has.
func mask(t *testing.T, capabilities ...int) string {
	t.Helper()
	have, err := strconv.ParseUint(threads(t, os.Getpid())[0]["CapEff"], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	var m uint64
	for _, c := range capabilities {
		m |= 1 << c
	}
	return fmt.Sprintf("%016x", m&have)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("needs root, which has capabilities: the effective user is %d", os.Geteuid())
	}
}

// TestRightsOfBerthd: every thread of berthd has the capabilities that the configuration
// needs and no other, cannot get more, and may only make the system calls that it makes.
func TestRightsOfBerthd(t *testing.T) {
	t.Parallel()
	needRoot(t)
	always := []int{unix.CAP_KILL, unix.CAP_SYS_NICE, unix.CAP_SYS_RESOURCE, unix.CAP_DAC_OVERRIDE}
	for name, row := range map[string]struct {
		args []string
		want []int
	}{
		"with cgroups":    {nil, always},
		"without cgroups": {[]string{"--cgroup-tree", "memory"}, []int{unix.CAP_DAC_OVERRIDE}},
		"metrics":         {[]string{"--http", "127.31.7.3:0"}, always},
		"metrics on a port of root's": {
			[]string{"--http", "127.31.7.3:997"}, append([]int{unix.CAP_NET_BIND_SERVICE}, always...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if len(row.want) > 1 {
				n.needKernel()
			}
			d := n.start(row.args...)
			if name := filepath.Base(os.Args[0]); threads(t, d.Cmd.Process.Pid)[0]["Name"] != name[:min(len(name), 15)] {
				t.Errorf("the process is named %s, its program %s", threads(t, d.Cmd.Process.Pid)[0]["Name"], name)
			}
			for _, s := range threads(t, d.Cmd.Process.Pid) {
				set := mask(t, row.want...)
				for line, want := range map[string]string{
					"CapInh": mask(t), "CapPrm": set, "CapEff": set, "CapBnd": set, "CapAmb": mask(t), "NoNewPrivs": "1", "Seccomp": "2",
				} {
					if s[line] != want {
						t.Errorf("thread %s: %s is %s, want %s", s["Pid"], line, s[line], want)
					}
				}
			}
			d.admitted(burstable("a"))
			d.stop()
		})
	}
}

// TestRightsAreLeftAlone: each kind can be turned off by itself.
func TestRightsAreLeftAlone(t *testing.T) {
	t.Parallel()
	needRoot(t)
	own := threads(t, os.Getpid())[0]
	for name, row := range map[string]struct {
		args                       []string
		capabilities, alone, calls bool
		says                       string
	}{
		"all off": {[]string{"--drop-capabilities=false", "--landlock=false", "--seccomp=false"}, false, false, false,
			"landlock=0 seccomp=false"},
		"capabilities stay":   {[]string{"--drop-capabilities=false"}, false, true, true, "seccomp=true"},
		"files stay":          {[]string{"--landlock=false"}, true, true, true, "landlock=0 seccomp=true"},
		"system calls stay":   {[]string{"--seccomp=false"}, true, true, false, "seccomp=false"},
		"only files are kept": {[]string{"--drop-capabilities=false", "--seccomp=false"}, false, true, false, "seccomp=false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newNode(t).start(row.args...)
			s := threads(t, d.Cmd.Process.Pid)[0]
			if dropped := s["CapBnd"] != own["CapBnd"]; dropped != row.capabilities {
				t.Errorf("bounding set %s, the test's is %s", s["CapBnd"], own["CapBnd"])
			}
			if got := s["NoNewPrivs"] == "1"; got != row.alone {
				t.Errorf("NoNewPrivs is %s", s["NoNewPrivs"])
			}
			if got := s["Seccomp"] == "2"; got != row.calls {
				t.Errorf("Seccomp is %s", s["Seccomp"])
			}
			d.says(row.says)
			d.admitted(burstable("a"))
			d.stop()
		})
	}
}

// TestWhatIsLackingIsSaid: before berthd does anything it lists the capabilities that it lacks,
// and what fails without them.
func TestWhatIsLackingIsSaid(t *testing.T) {
	t.Parallel()
	needRoot(t)
	n := newNode(t)
	n.needKernel()
	n.env = []string{fmt.Sprintf("%s=%d %d", without, unix.CAP_KILL, unix.CAP_SYS_NICE)}
	d := n.start()
	d.says("msg=ready")
	log := d.log.String()
	for _, want := range []string{
		"berthd lacks CAP_KILL, which it needs to end the processes of a pod that is removed: ",
		"berthd lacks CAP_SYS_NICE, which it needs to put processes into the cpuset of their container: ",
	} {
		if at := strings.Index(log, want); at < 0 || at > strings.Index(log, "msg=ready") {
			t.Errorf("not said before it is ready: %s\n%s", want, log)
		}
	}
	if strings.Contains(log, "lacks CAP_DAC_OVERRIDE") {
		t.Errorf("said to lack what it has:\n%s", log)
	}
}

// TestEachCapabilityIsNeeded does what a capability is for with it and without it.
func TestEachCapabilityIsNeeded(t *testing.T) {
	t.Parallel()
	needRoot(t)
	const user = 64004
	start := func(t *testing.T, n *node, d *daemon, uid string, env ...string) (*process, error) {
		t.Helper()
		p := n.stoppedWith(0, env...)
		_, err := d.lifecycle.PreStartContainer(d.ctx(), &lifecyclev1.PreStartContainerRequest{
			PodUid: uid, ContainerName: "main", ContainerId: "c-" + uid, Pid: int32(p.pid()),
		})
		return p, err
	}
	score := func(t *testing.T, pid int) string {
		t.Helper()
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	begin := func(t *testing.T, n *node) (*daemon, error) {
		t.Helper()
		d := n.launch()
		if !d.readyOrDead() {
			return nil, d.Wait()
		}
		return d, nil
	}
	for name, row := range map[string]struct {
		capability int
		can        func(t *testing.T, n *node) error
	}{
		"end processes of other users": {unix.CAP_KILL, func(t *testing.T, n *node) error {
			if onVersion2() {
				t.Skip("cgroup v2 ends the processes of a cgroup without: cgroup.kill")
			}
			d := n.start()
			d.admitted(burstable("a"))
			if _, err := start(t, n, d, "a", fmt.Sprintf("%s=%d", asUser, user)); err != nil {
				t.Fatal(err)
			}
			_, err := d.admission.RemovePod(d.ctx(), &admissionv1.RemovePodRequest{PodUid: "a"})
			return err
		}},
		"place processes with capabilities that berthd has not": {unix.CAP_SYS_NICE, func(t *testing.T, n *node) error {
			d := n.start()
			d.admitted(burstable("a"))
			_, err := start(t, n, d, "a")
			return err
		}},
		"make cgroups in the root": {unix.CAP_DAC_OVERRIDE, func(t *testing.T, n *node) error {
			if n.driver == cgroup.Systemd {
				t.Skip("systemd makes them")
			}
			_, err := begin(t, n)
			return err
		}},
		"score processes of other users": {unix.CAP_DAC_OVERRIDE, func(t *testing.T, n *node) error {
			n.premade()
			d := n.start()
			d.admitted(pod("a", nil, nil))
			p, err := start(t, n, d, "a", fmt.Sprintf("%s=%d", asUser, user))
			if err != nil {
				return err
			}
			if got := score(t, p.pid()); got != "1000" {
				return fmt.Errorf("the score is %s", got)
			}
			return nil
		}},
		"call plugins of other users": {unix.CAP_DAC_OVERRIDE, func(t *testing.T, n *node) error {
			n.premade()
			if len(n.env) > 0 {
				n.configure("providers: {callTimeout: 500ms}\n") // of no avail
			}
			d := n.start()
			dir := filepath.Join(n.root, "device-plugins")
			l, err := net.Listen("unix", filepath.Join(dir, "theirs.sock"))
			if err != nil {
				t.Fatal(err)
			}
			s := grpc.NewServer()
			pluginv1.RegisterDevicePluginServer(s, pluginv1.UnimplementedDevicePluginServer{})
			go func() { _ = s.Serve(l) }()
			t.Cleanup(s.Stop)
			if err := errors.Join(os.Chown(l.Addr().String(), user, user), os.Chmod(l.Addr().String(), 0o600)); err != nil {
				t.Fatal(err)
			}
			conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"),
				grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			_, err = pluginv1.NewRegistrationClient(conn).Register(d.ctx(), &pluginv1.RegisterRequest{
				Version: pluginv1.Version, Endpoint: "theirs.sock", ResourceName: gpu, Options: &pluginv1.DevicePluginOptions{},
			})
			if status.Code(err) == codes.Unimplemented {
				return nil // that is the plugin's answer
			}
			return err
		}},
		"give a socket to a group": {unix.CAP_CHOWN, func(t *testing.T, n *node) error {
			n.premade()
			n.configure("listenGroup: \"64050\"\n")
			d, err := begin(t, n)
			if err != nil {
				return err
			}
			info, err := os.Stat(d.socket())
			if err != nil {
				return err
			}
			if gid := info.Sys().(*syscall.Stat_t).Gid; gid != 64050 || info.Mode().Perm() != 0o660 {
				t.Errorf("group %d, mode %s", gid, info.Mode())
			}
			return nil
		}},
		"lower scores": {unix.CAP_SYS_RESOURCE, func(t *testing.T, n *node) error {
			n.limited(512 << 20) // without one it does not
			if got := score(t, n.start().Cmd.Process.Pid); got != "-999" {
				return fmt.Errorf("the score is %s", got)
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if mask(t, row.capability) == mask(t) {
				t.Skipf("this test lacks capability %d: its own are %s", row.capability, threads(t, os.Getpid())[0]["CapEff"])
			}
			for _, has := range []bool{true, false} {
				n := newNode(t)
				n.needKernel()
				if !has {
					n.env = []string{fmt.Sprintf("%s=%d", without, row.capability)}
				}
				if err := row.can(t, n); (err == nil) != has {
					t.Errorf("has the capability: %t; %v", has, err)
				}
			}
		})
	}
}

// premade makes the node's cgroup, so that berthd need not write to the root.
func (n *node) premade() {
	n.t.Helper()
	if n.driver == cgroup.Systemd {
		return // it does not write there
	}
	mounts := []string{cgroupMount}
	if !onVersion2() {
		mounts, _ = filepath.Glob(cgroupMount + "/*")
	}
	for _, m := range mounts {
		if info, err := os.Lstat(m); err != nil || !info.IsDir() {
			continue // a link, as cpu to cpu,cpuacct
		}
		if err := os.Mkdir(filepath.Join(m, n.cgroup), 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
}

// onVersion2 reports whether the cgroup tree is of version 2.
func onVersion2() bool {
	_, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers"))
	return err == nil
}
