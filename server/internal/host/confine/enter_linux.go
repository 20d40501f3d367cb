package confine

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// variable passes the restrictions in force, and the helper's socket, to the program that Enter executes, as
// PID:LANDLOCK:SOCKET.
// A process keeps its id over an execve, so a child process does not mistake the variable for its
// own.
const variable = "BERTHD_CONFINED"

// Enter confines this process. It replaces the program by itself, with the same arguments,
// and so returns only in the new program, or with an error. Signals should not be caught
// before: one that is caught and not acted on yet is lost.
func Enter(p Plan) (Report, error) {
	version, socket, entered := entered()
	if !entered && len(p.Helper) > 0 {
		var err error
		if socket, err = startHelper(p.Helper); err != nil {
			return Report{}, fmt.Errorf("confine berthd: %w", err)
		}
	}
	if !entered && (p.DropCapabilities || p.Rules != nil || p.Filter) {
		return Report{}, fmt.Errorf("confine berthd: %w", p.replace(socket))
	}
	r := Report{Landlock: version}
	if socket > 0 {
		unix.CloseOnExec(socket)
		if err := unix.SetNonblock(socket, true); err != nil {
			return Report{}, fmt.Errorf("confine berthd: the helper's socket: %w", err)
		}
		r.Helper = os.NewFile(uintptr(socket), "helper")
	}
	if p.Rules != nil && version == 0 {
		r.Missing = append(r.Missing, "Landlock")
	}
	if p.Filter {
		var err error
		if r.Filter, err = filter(); err != nil {
			return Report{}, fmt.Errorf("confine berthd: %w", err)
		}
		if !r.Filter {
			r.Missing = append(r.Missing, "seccomp")
		}
	}
	var err error
	r.Capabilities, err = Effective()
	return r, err
}

// entered reports whether this is the program that Enter has executed, and what it was told. socket is 0 without a
// helper.
func entered() (landlock, socket int, yes bool) {
	fields := strings.Split(os.Getenv(variable), ":")
	if len(fields) != 3 || fields[0] != strconv.Itoa(os.Getpid()) {
		return 0, 0, false
	}
	_ = os.Unsetenv(variable)
	landlock, err := strconv.Atoi(fields[1])
	socket, err2 := strconv.Atoi(fields[2])
	return landlock, socket, err == nil && err2 == nil
}

// startHelper starts the helper, whose input is a socket, and returns the other end of the socket. It survives an
// execve. The helper gets its own process group: signals of a terminal are for berthd, and the helper ends with the
// socket.
func startHelper(args []string) (socket int, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("start the helper: %w", err)
	}
	theirs := os.NewFile(uintptr(ends[1]), "helper")
	defer theirs.Close()
	helper, err := os.StartProcess(self(), append([]string{os.Args[0]}, args...), &os.ProcAttr{
		Files: []*os.File{theirs, nil, os.Stderr}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err == nil {
		_ = helper.Release()
		_, err = unix.FcntlInt(uintptr(ends[0]), unix.F_SETFD, 0)
	}
	if err != nil {
		_ = unix.Close(ends[0])
		return 0, fmt.Errorf("start the helper: %w", err)
	}
	return ends[0], nil
}

// replace takes capabilities and files away from one thread, and makes it the process.
func (p Plan) replace(socket int) error {
	runtime.LockOSThread() // for good: the restrictions apply to this thread
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	version := 0
	if p.Rules != nil {
		version = landlockVersion()
	}
	if version > 0 {
		if err := p.Rules.restrict(version); err != nil {
			return err
		}
	}
	if p.DropCapabilities {
		if err := drop(p.Capabilities); err != nil {
			return err
		}
	}
	environment := append(os.Environ(), fmt.Sprintf("%s=%d:%d:%d", variable, os.Getpid(), version, socket))
	return fmt.Errorf("execute berthd again: %w", syscall.Exec(self(), os.Args, environment))
}

// CloseOthers has all files of this process, except the standard ones, closed by the next execve, which Enter makes.
func CloseOthers() error {
	const standard = 3
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list open files: %w", err)
	}
	for _, e := range dir {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= standard {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// self is the path of this program: its own, after which the process is named, unless
// another file has taken its place.
func self() string {
	const link = "/proc/self/exe"
	path, err := os.Readlink(link)
	if err != nil {
		return link
	}
	own, err := os.Stat(link)
	there, err2 := os.Stat(path)
	if err != nil || err2 != nil || !os.SameFile(own, there) {
		return link
	}
	return path
}
