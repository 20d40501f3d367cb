package confine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// asConfined makes the test binary confine itself to the plan that the variable holds, and
// print what it then can do.
const asConfined = "CONFINE_TEST_PLAN"

func TestMain(m *testing.M) {
	if text := os.Getenv(asConfined); text != "" {
		if err := confined(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// task is the input of the confined process.
type task struct {
	Plan Plan
	// Read, Write and Make are files to be read, written to, and made; Listen and Dial are
	// addresses as NETWORK/ADDRESS.
	Read, Write, Make, Remove, Listen, Dial []string
	// Open are files to be opened for writing; nothing is written.
	Open []string
	// Calls are system calls to be made.
	Calls bool
}

// outcome is what came of it: an error number, 0 for none, by what was tried.
type outcome struct {
	Report Report
	Did    map[string]syscall.Errno
	// Status has the lines of /proc/PID/task/TID/status of all threads.
	Status []map[string]string
}

func confined(text string) error {
	var do task
	if err := json.Unmarshal([]byte(text), &do); err != nil {
		return err
	}
	report, err := Enter(do.Plan)
	if err != nil {
		return err
	}
	out := outcome{Report: report, Did: map[string]syscall.Errno{}}
	note := func(what string, err error) {
		var number syscall.Errno
		if err != nil && !errors.As(err, &number) {
			number = syscall.Errno(9999)
		}
		out.Did[what] = number
	}
	for _, f := range do.Read {
		_, err := os.ReadFile(f)
		note("read "+f, err)
	}
	for _, f := range do.Write {
		note("write "+f, os.WriteFile(f, []byte("x"), 0o600))
	}
	for _, f := range do.Open {
		file, err := os.OpenFile(f, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			_ = file.Close()
		}
		note("open "+f, err)
	}
	for _, f := range do.Make {
		note("make "+f, os.Mkdir(f, 0o700))
	}
	for _, f := range do.Remove {
		note("remove "+f, os.Remove(f))
	}
	for _, at := range do.Listen {
		network, address, _ := strings.Cut(at, "/")
		l, err := net.Listen(network, address)
		if err == nil {
			_ = l.Close()
		}
		note("listen "+at, err)
	}
	for _, at := range do.Dial {
		network, address, _ := strings.Cut(at, "/")
		c, err := net.Dial(network, address)
		if err == nil {
			_ = c.Close()
		}
		note("dial "+at, err)
	}
	if do.Calls {
		makeCalls(note)
	}
	// More threads than those that there were when the filter was set.
	stop := make(chan struct{})
	ready := make(chan struct{})
	for range 4 {
		go func() { runtime.LockOSThread(); ready <- struct{}{}; <-stop }()
		<-ready
	}
	if out.Status, err = threads(); err != nil {
		return err
	}
	close(stop)
	return json.NewEncoder(os.Stdout).Encode(out)
}

// makeCalls makes calls that berthd does not need.
func makeCalls(note func(string, error)) {
	raw := func(name string, number uintptr, arguments ...uintptr) {
		arguments = append(arguments, 0, 0, 0)
		_, _, errno := syscall.RawSyscall(number, arguments[0], arguments[1], arguments[2])
		if errno != 0 {
			note(name, errno)
			return
		}
		note(name, nil)
	}
	note("execute", syscall.Exec("/proc/self/exe", []string{"x"}, []string{asConfined + "=none"}))
	note("start a process", exec.Command("/proc/self/exe").Run())
	raw("fork", unix.SYS_CLONE, uintptr(unix.SIGCHLD))
	raw("clone3", unix.SYS_CLONE3)
	raw("ptrace", unix.SYS_PTRACE, unix.PTRACE_TRACEME)
	raw("mount", unix.SYS_MOUNT)
	raw("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	raw("setuid", unix.SYS_SETUID, 1)
	raw("bpf", unix.SYS_BPF)
	raw("io_uring", unix.SYS_IO_URING_SETUP)
	raw("kexec", unix.SYS_KEXEC_LOAD)
	uevents, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	note("receive the kernel's events", err)
	_ = unix.Close(uevents)
	raw("netlink", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW)
	raw("packet", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW)
	for name, number := range forbidden {
		raw(name, number)
	}
	raw("attach", unix.SYS_PTRACE, unix.PTRACE_ATTACH, 1)
	raw("seize", unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(os.Getppid()))
	for _, family := range []uintptr{unix.AF_VSOCK, unix.AF_ALG, unix.AF_BLUETOOTH, unix.AF_CAN, unix.AF_KEY, unix.AF_XDP, unix.AF_UNSPEC} {
		raw(fmt.Sprint("family ", family), unix.SYS_SOCKET, family, unix.SOCK_RAW)
	}
	raw("younger", 999)
	raw("x32", 0x40000000+unix.SYS_GETPID)
	note("unix socket", func() error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			_, _ = unix.Close(pair[0]), unix.Close(pair[1])
		}
		return err
	}())
}

// forbidden are calls that get a process more than berthd has, by name. With these arguments
// each does nothing where it is allowed: it fails with another error than EPERM, or makes a
// descriptor.
var forbidden = map[string]uintptr{
	"another process's memory": unix.SYS_PROCESS_VM_READV, "write another's memory": unix.SYS_PROCESS_VM_WRITEV,
	"another's descriptor": unix.SYS_PIDFD_GETFD, "compare processes": unix.SYS_KCMP,
	"a module": unix.SYS_INIT_MODULE, "a module's file": unix.SYS_FINIT_MODULE, "no module": unix.SYS_DELETE_MODULE,
	"a namespace": unix.SYS_SETNS, "another root": unix.SYS_CHROOT, "swap roots": unix.SYS_PIVOT_ROOT,
	"move a mount": unix.SYS_MOVE_MOUNT, "a file system": unix.SYS_FSOPEN, "a tree": unix.SYS_OPEN_TREE,
	"a mount's attributes": unix.SYS_MOUNT_SETATTR, "no mount": unix.SYS_UMOUNT2,
	"swap": unix.SYS_SWAPON, "no swap": unix.SYS_SWAPOFF, "quotas": unix.SYS_QUOTACTL, "accounting": unix.SYS_ACCT,
	"counters": unix.SYS_PERF_EVENT_OPEN, "page faults": unix.SYS_USERFAULTFD, "a file in memory": unix.SYS_MEMFD_CREATE,
	"keys": unix.SYS_KEYCTL, "a key": unix.SYS_ADD_KEY, "ask for a key": unix.SYS_REQUEST_KEY,
	"a file by handle": unix.SYS_OPEN_BY_HANDLE_AT, "a device": unix.SYS_MKNODAT, "a link": unix.SYS_SYMLINKAT,
	"execute a descriptor": unix.SYS_EXECVEAT, "personality": unix.SYS_PERSONALITY, "watch all files": unix.SYS_FANOTIFY_INIT,
	"a group": unix.SYS_SETGID, "groups": unix.SYS_SETGROUPS, "file user": unix.SYS_SETFSUID,
	"the kernel's log": unix.SYS_SYSLOG, "an image": unix.SYS_KEXEC_FILE_LOAD, "submit": unix.SYS_IO_URING_ENTER,
	"share memory": unix.SYS_SHMGET, "a queue": unix.SYS_MSGGET,
}

// threads reads the status of all threads of this process.
func threads() (all []map[string]string, err error) {
	files, err := filepath.Glob("/proc/self/task/*/status")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		lines := map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			lines[name] = strings.TrimSpace(value)
		}
		all = append(all, lines)
	}
	return all, err
}

// run confines a process and reports what came of it. prepare may change its command.
func run(t *testing.T, do task, prepare ...func(*exec.Cmd)) (out outcome) {
	t.Helper()
	text, err := json.Marshal(do)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asConfined+"="+string(text))
	var said, complained bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &complained
	for _, p := range prepare {
		p(cmd)
	}
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, complained.String())
	}
	if err := json.Unmarshal(said.Bytes(), &out); err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	return out
}

// expect compares what came of something.
func (o outcome) expect(t *testing.T, what string, want ...syscall.Errno) {
	t.Helper()
	got, tried := o.Did[what]
	for _, w := range want {
		if tried && got == w {
			return
		}
	}
	t.Errorf("%s: tried %t, got %q, want %q", what, tried, got.Error(), want)
}

func hex(s Set) string { return fmt.Sprintf("%016x", uint64(s)) }

// TestNothing: nothing is done without a request.
func TestNothing(t *testing.T) {
	t.Parallel()
	o := run(t, task{})
	own, err := threads()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range o.Status {
		for _, line := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"} {
			if s[line] != own[0][line] {
				t.Errorf("%s is %s, and %s before", line, s[line], own[0][line])
			}
		}
	}
}

// TestCapabilities: root keeps the requested capabilities in every thread, and no others.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs root, which has capabilities: the effective user is %d", os.Geteuid())
	}
	for _, keep := range []Set{0, Of(Kill), Of(Kill, DACOverride, SysNice)} {
		o := run(t, task{Plan: Plan{DropCapabilities: true, Capabilities: keep}})
		if o.Report.Capabilities != keep {
			t.Errorf("%s is reported, want %s", o.Report.Capabilities, keep)
		}
		if len(o.Status) < 4 {
			t.Errorf("%d threads", len(o.Status))
		}
		for _, s := range o.Status {
			for line, want := range map[string]string{
				"CapInh": hex(0), "CapPrm": hex(keep), "CapEff": hex(keep), "CapBnd": hex(keep), "CapAmb": hex(0), "NoNewPrivs": "1",
			} {
				if s[line] != want {
					t.Errorf("keep %s: thread %s: %s is %s, want %s", keep, s["Pid"], line, s[line], want)
				}
			}
		}
	}
}

// TestCapabilitiesOfAUser: a user that was given capabilities keeps those that are requested.
func TestCapabilitiesOfAUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs root, which can give capabilities: the effective user is %d", os.Geteuid())
	}
	open := filepath.Join(t.TempDir(), "confine.test")
	text, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(open, text, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(open); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	o := run(t, task{Plan: Plan{DropCapabilities: true, Capabilities: Of(Kill, SysNice)}}, func(cmd *exec.Cmd) {
		cmd.Path = open
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: 64003, Gid: 64003},
			AmbientCaps: []uintptr{unix.CAP_KILL, unix.CAP_CHOWN},
		}
	})
	for _, s := range o.Status {
		if s["CapEff"] != hex(Of(Kill)) || s["CapPrm"] != hex(Of(Kill)) || s["CapInh"] != hex(Of(Kill)) {
			t.Errorf("effective %s, permitted %s, inheritable %s, want CAP_KILL alone", s["CapEff"], s["CapPrm"], s["CapInh"])
		}
	}
}

// TestRules: what is named can be used as it is named, and nothing else.
func TestRules(t *testing.T) {
	t.Parallel()
	if landlockVersion() == 0 {
		_, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
		t.Skipf("this kernel has no Landlock: %v", errno)
	}
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"change", "read", "other", "again"} {
		if err := errors.Join(os.Mkdir(in(d), 0o700), os.WriteFile(in(d+"/file"), []byte("a"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	rules := &Rules{
		Files: []File{
			{"/proc/self/exe", Run},
			{"/lib", Run}, {"/lib64", Run},
			{"/usr/lib", Run},
			{"/proc", Write},
			{in("change"), Change}, {in("read"), Read}, {in("read/file"), ReadFile},
			{in("again"), MakeAgain},
			{in("not there"), Change},
		},
		TCPPorts: []uint16{0},
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	abstract, err := net.Listen("unix", fmt.Sprintf("@confine-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	socket, err := net.Listen("unix", in("other/s"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	there := "unix/" + abstract.Addr().String()
	o := run(t, task{
		Plan:   Plan{Rules: rules, Filter: true},
		Read:   []string{in("change/file"), in("read/file"), in("other/file"), in("again/file"), "/etc/passwd", "/proc/1/status"},
		Write:  []string{in("change/file"), in("change/new"), in("read/file"), in("read/new"), in("other/file"), in("again/new")},
		Open:   []string{"/etc/shadow", "/etc/passwd", "/dev/null", "/usr/bin/env", "/proc/self/oom_score_adj"},
		Make:   []string{in("change/dir"), in("other/dir"), in("again/dir")},
		Remove: []string{in("change/file"), in("other/file"), in("read/file"), in("again/file")},
		Listen: []string{"tcp/127.0.0.1:0", "tcp/127.0.0.1:47", "unix/" + in("again/s"), "unix/" + in("other/t")},
		Dial:   []string{"tcp/" + l.Addr().String(), there, "unix/" + in("other/s")},
	})
	if o.Report.Landlock != landlockVersion() {
		t.Errorf("reported: %+v", o.Report)
	}
	done := func(what ...string) {
		t.Helper()
		for _, w := range what {
			o.expect(t, w, 0)
		}
	}
	refused := func(what ...string) {
		t.Helper()
		for _, w := range what {
			o.expect(t, w, syscall.EACCES)
		}
	}
	done("read "+in("change/file"), "read "+in("read/file"), "read /proc/1/status", "write "+in("change/file"), "write "+in("change/new"))
	refused("read "+in("other/file"), "read "+in("again/file"), "read /etc/passwd", "write "+in("read/file"), "write "+in("read/new"),
		"write "+in("other/file"), "write "+in("again/new"))
	refused("open /etc/shadow", "open /etc/passwd", "open /dev/null", "open /usr/bin/env")
	done("open /proc/self/oom_score_adj")
	done("make "+in("change/dir"), "make "+in("again/dir"), "remove "+in("change/file"), "remove "+in("again/file"))
	refused("make "+in("other/dir"), "remove "+in("other/file"), "remove "+in("read/file"))
	done("listen unix/"+in("again/s"), "listen tcp/127.0.0.1:0", "dial unix/"+in("other/s"))
	refused("listen unix/" + in("other/t"))
	if o.Report.Landlock >= 4 && o.Report.Filter {
		refused("listen tcp/127.0.0.1:47", "dial tcp/"+l.Addr().String())
	}
	if o.Report.Landlock >= 6 {
		o.expect(t, "dial "+there, syscall.EPERM)
		rules.AbstractSockets = true
		o = run(t, task{Plan: Plan{Rules: rules}, Dial: []string{there}})
		done("dial " + there)
	}
}

// TestFilter: calls that berthd does not make fail in every thread, and it continues.
func TestFilter(t *testing.T) {
	t.Parallel()
	if _, _, ok := machineCalls(); !ok {
		t.Skipf("there is no list of system calls for %s", runtime.GOARCH)
	}
	o := run(t, task{Plan: Plan{Filter: true}, Calls: true})
	if !o.Report.Filter {
		t.Skipf("this kernel has no seccomp: %v", o.Report.Missing)
	}
	for _, s := range o.Status {
		if s["Seccomp"] != "2" || s["NoNewPrivs"] != "1" {
			t.Errorf("thread %s: Seccomp %s, NoNewPrivs %s", s["Pid"], s["Seccomp"], s["NoNewPrivs"])
		}
	}
	for _, call := range []string{
		"execute", "start a process", "fork", "ptrace", "mount", "unshare", "setuid", "bpf", "io_uring", "kexec", "netlink", "packet",
		"x32",
	} {
		o.expect(t, call, syscall.EPERM)
	}
	for call := range forbidden {
		o.expect(t, call, syscall.EPERM)
	}
	for did, errno := range o.Did {
		if (did == "attach" || did == "seize" || strings.HasPrefix(did, "family ")) && errno != syscall.EPERM {
			t.Errorf("%s: %v", did, errno)
		}
	}
	o.expect(t, "clone3", syscall.ENOSYS)
	o.expect(t, "younger", syscall.ENOSYS)
	o.expect(t, "unix socket", 0)
	o.expect(t, "receive the kernel's events", 0)
}

// TestWords: a set names its members in the order of the kernel's numbers.
func TestWords(t *testing.T) {
	t.Parallel()
	for set, want := range map[Set]string{
		0: "none", Of(SysNice, Kill): "CAP_KILL CAP_SYS_NICE", Of(63): "CAP_63",
	} {
		if got := set.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
