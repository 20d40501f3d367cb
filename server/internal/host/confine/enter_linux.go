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

// variable passes the restrictions in force to the program that Enter executes, as PID:LANDLOCK.
// A process keeps its id over an execve, so a child process does not mistake the variable for its
// own.
const variable = "BERTHD_CONFINED"

// Enter confines this process. It replaces the program by itself, with the same arguments,
// and so returns only in the new program, or with an error. Signals should not be caught
// before: one that is caught and not acted on yet is lost.
func Enter(p Plan) (Report, error) {
	version, entered := entered()
	if !entered && (p.DropCapabilities || p.Rules != nil || p.Filter) {
		return Report{}, fmt.Errorf("confine berthd: %w", p.replace())
	}
	r := Report{Landlock: version}
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

// entered reports whether this is the program that Enter has executed.
func entered() (landlock int, yes bool) {
	pid, version, _ := strings.Cut(os.Getenv(variable), ":")
	if pid != strconv.Itoa(os.Getpid()) {
		return 0, false
	}
	_ = os.Unsetenv(variable)
	landlock, err := strconv.Atoi(version)
	return landlock, err == nil
}

// replace takes capabilities and files away from one thread, and makes it the process.
func (p Plan) replace() error {
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
	environment := append(os.Environ(), fmt.Sprintf("%s=%d:%d", variable, os.Getpid(), version))
	return fmt.Errorf("execute berthd again: %w", syscall.Exec(self(), os.Args, environment))
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
