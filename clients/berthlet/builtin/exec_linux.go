//go:build linux && cgo

package builtin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/errdefs"
)

// Exec runs a program in a running container of a runtime's directory, and returns its exit code. The program gets what the
// container's first process has: cgroup, namespaces, user, capabilities, seccomp filter, environment and directory. It does
// not get descriptors of this process: pipes or a terminal of the container are between them.
func Exec(ctx context.Context, dir, id string, e Execution) (int, error) {
	code, err := execute(ctx, dir, id, e)
	if err != nil {
		return 0, fmt.Errorf("run a program in container %s: %w", id, err)
	}
	return code, nil
}

func execute(ctx context.Context, dir, id string, e Execution) (int, error) {
	// libcontainer logs for the operators of runc; its errors come with Start, too.
	logrus.SetOutput(io.Discard)
	b, err := running(dir, id)
	if err != nil {
		return 0, err
	}
	c, err := libcontainer.Load(b.Run, id)
	if err != nil {
		return 0, err
	}
	first, err := openFirst(c)
	if err != nil {
		return 0, err
	}
	defer first.close()
	beginning, cancel := context.WithTimeout(ctx, beginTime)
	defer cancel()
	if err := awaitRunning(beginning, c, first); err != nil {
		return 0, err
	}
	process := &libcontainer.Process{
		Args: e.Args, Env: slices.Clone(b.OCI.Process.Env), Cwd: b.OCI.Process.Cwd,
		UID: int(b.OCI.Process.User.UID), GID: int(b.OCI.Process.User.GID),
		// For the line of the log at which the filter is installed (awaitFilter).
		LogLevel: strconv.Itoa(int(logrus.DebugLevel)),
	}
	for _, gid := range b.OCI.Process.User.AdditionalGids {
		process.AdditionalGroups = append(process.AdditionalGroups, int(gid))
	}
	s, err := connect(process, e)
	if err != nil {
		return 0, err
	}
	defer s.close()
	begun := make(chan error, 1)
	go func() { begun <- begin(c, process, b, first) }()
	if err := awaitBegun(beginning, begun, e.Signals); err != nil {
		return 0, err
	}
	return s.follow(ctx, process)
}

// awaitRunning waits until libcontainer takes a container for running. The keeper writes the start down before it lets the
// process go, and a process whose program is being replaced seems to have ended.
func awaitRunning(ctx context.Context, c *libcontainer.Container, first firstProcess) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		status, err := c.Status()
		if err == nil && status == libcontainer.Stopped {
			err = first.alive()
		}
		switch {
		case err != nil:
			return err
		case status == libcontainer.Running:
			return nil
		case status == libcontainer.Created && pause(ctx) == nil, status == libcontainer.Stopped && pause(ctx) == nil:
		case status == libcontainer.Stopped:
			return errdefs.Preconditionf("its first process has ended its first thread, so nothing can enter its namespaces")
		default:
			return errdefs.Preconditionf("it is %s, and not running", status)
		}
	}
}

const (
	// settleTime bounds the wait for the start of a container.
	settleTime = 5 * time.Second
	// beginTime bounds the start of a program.
	beginTime = 30 * time.Second
)

// awaitBegun waits until a program has begun. The container's processes can stop the process that is to become the program:
// then the wait ends with the context or with a signal. The process ends with this one, because it gets no answer.
func awaitBegun(ctx context.Context, begun <-chan error, signals <-chan os.Signal) error {
	select {
	case err := <-begun:
		return err
	case s := <-signals:
		return errdefs.Unavailablef("%s came before the program began", s)
	case <-ctx.Done():
		return errdefs.Deadlinef("the program did not begin within %s: processes of the container may have stopped it", beginTime)
	}
}

// running reads a container that was started and has not ended.
func running(dir, id string) (*bundle, error) {
	dir, err := filepath.EvalSymlinks(filepath.Join(dir, "containers"))
	if err != nil {
		return nil, err
	}
	// The id must be a name, not a path, because the files read here are trusted.
	if id == "" || id != filepath.Base(id) || id == ".." || id == "." {
		return nil, errdefs.Invalidf("%q is no container id", id)
	}
	dir = filepath.Join(dir, id)
	b := new(bundle)
	if found, err := read(dir, bundleFile, b); err != nil || !found {
		return nil, errors.Join(err, errdefs.NotFoundf("the built-in runtime has no such container"))
	}
	var made created
	found, err := read(dir, createdFile, &made)
	if err != nil || !found || !exists(filepath.Join(dir, startedFile)) {
		return nil, errors.Join(err, errdefs.Preconditionf("it was not started yet"))
	}
	alive, err := kept(dir)
	boot, bootErr := bootID()
	if err := errors.Join(err, bootErr); err != nil {
		return nil, err
	}
	if exists(filepath.Join(dir, exitFile)) || !alive || boot != made.Boot {
		return nil, errEnded
	}
	return b, nil
}

// begin starts the process. It becomes the program after it has the container's filter, and only
// while the container's first process is alive. This ensures that the entered namespaces are the
// container's.
func begin(c *libcontainer.Container, process *libcontainer.Process, b *bundle, first firstProcess) error {
	ours, end, err := connection()
	if err != nil {
		return err
	}
	defer ours.Close()
	err = onDescriptor(ours, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
	if err != nil {
		return err
	}
	process.ExtraFiles = []*os.File{end} // filterFD
	answered := make(chan error, 1)
	go func() {
		answered <- confineLater(ours, b.Filter, func(pid int) error {
			score(pid, b.Spec.OOMScoreAdj)
			return first.alive()
		})
	}()
	err = c.Start(process)
	_ = end.Close() // the process has its own
	confined := <-answered
	if err != nil {
		return notStarted(err)
	}
	if confined != nil {
		_ = process.Signal(unix.SIGKILL)
		_, _ = process.Wait()
	}
	return confined
}

// notStarted removes libcontainer's prefixes from an error about the program, which the container
// does not have or may not run; they do not help the user.
func notStarted(err error) error {
	text := err.Error()
	for _, prefix := range []string{"unable to start container process: ", "error executing setns process: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	if !strings.HasPrefix(text, "exec: ") {
		return err
	}
	return errdefs.Preconditionf("%s", text)
}

// streams connect the program's streams with the caller's.
type streams struct {
	e       Execution
	console *os.File // our end of the connection that the terminal comes over
	theirs  []*os.File
	stdin   *os.File
	outputs []output
}

// output is a stream of the program and its destination.
type output struct {
	from *os.File
	to   io.Writer
}

// connect makes the streams of a process.
func connect(process *libcontainer.Process, e Execution) (*streams, error) {
	s := &streams{e: e}
	if e.TTY {
		ours, theirs, err := connection()
		if err != nil {
			return nil, err
		}
		s.console, s.theirs = ours, []*os.File{theirs}
		process.ConsoleSocket = theirs
		process.ConsoleWidth, process.ConsoleHeight = e.Width, e.Height
		if !slices.ContainsFunc(process.Env, func(v string) bool { return strings.HasPrefix(v, "TERM=") }) {
			process.Env = append(process.Env, "TERM=xterm")
		}
		return s, nil
	}
	// Also without input: the null device of the host would belong to the container's root user.
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if s.stdin = stdin; e.Stdin == nil {
		_ = stdin.Close()
		s.stdin = nil
	}
	s.theirs = append(s.theirs, in)
	process.Stdin = in
	for _, stream := range []struct {
		to   io.Writer
		file *io.Writer
	}{{e.Stdout, &process.Stdout}, {e.Stderr, &process.Stderr}} {
		r, w, err := os.Pipe()
		if err != nil {
			s.close()
			return nil, err
		}
		s.theirs = append(s.theirs, w)
		s.outputs = append(s.outputs, output{r, stream.to})
		*stream.file = w
	}
	return s, nil
}

// close closes this process's descriptors.
func (s *streams) close() {
	for _, f := range append([]*os.File{s.console, s.stdin}, s.theirs...) {
		if f != nil {
			_ = f.Close()
		}
	}
	for _, o := range s.outputs {
		_ = o.from.Close()
	}
}

// follow copies the streams and forwards signals until the program ends. A background process may
// keep the program's output open. The data in the pipes at the end is copied; later data is not.
func (s *streams) follow(ctx context.Context, process *libcontainer.Process) (int, error) {
	for _, f := range s.theirs {
		_ = f.Close() // the process has its own
	}
	var terminal *os.File
	if s.console != nil {
		var err error
		if terminal, err = receive(s.console); err != nil {
			_ = process.Signal(unix.SIGKILL)
			_, _ = process.Wait()
			return 0, fmt.Errorf("the container's terminal: %w", err)
		}
		s.stdin = terminal
		s.outputs = []output{{terminal, s.e.Stdout}}
	}
	if s.e.Stdin != nil {
		go s.feed()
	}
	ended := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() { s.control(ctx, process, terminal, ended) })
	var copies sync.WaitGroup
	for _, o := range s.outputs {
		copies.Go(func() { copyOutput(o, ended) })
	}
	state, err := process.Wait()
	close(ended)
	others.Wait()
	copies.Wait()
	if state == nil {
		return 0, err
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return state.ExitCode(), nil
}

// endOfFile is what a terminal takes for the end of its input (termios(3), VEOF).
const endOfFile = 4

// feed copies the input. Its end is the end of the program's input.
func (s *streams) feed() {
	_, _ = io.Copy(s.stdin, s.e.Stdin)
	if s.e.TTY {
		_, _ = s.stdin.Write([]byte{endOfFile})
		return
	}
	_ = s.stdin.Close()
}

// control hands signals and sizes on until the program has ended. The end of the context is one more signal.
func (s *streams) control(ctx context.Context, process *libcontainer.Process, terminal *os.File, ended <-chan struct{}) {
	done := ctx.Done()
	for {
		select {
		case sig := <-s.e.Signals:
			_ = process.Signal(sig)
		case <-done:
			_ = process.Signal(unix.SIGKILL)
			done = nil
		case size := <-s.e.Sizes:
			if terminal != nil {
				_ = onDescriptor(terminal, func(fd int) error {
					return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width})
				})
			}
		case <-ended:
			return
		}
	}
}

// onDescriptor uses the descriptor of a file, which stays as it is.
func onDescriptor(f *os.File, use func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var used error
	if err := conn.Control(func(fd uintptr) { used = use(int(fd)) }); err != nil {
		return err
	}
	return used
}

// leftover limits the data that is copied after the end. A pipe holds 64 KiB by default.
const leftover = 1 << 20

// copyOutput copies an output until its end, or until the program has ended and the pipe is
// empty.
func copyOutput(o output, ended <-chan struct{}) {
	stop := make(chan struct{})
	var waking sync.WaitGroup
	waking.Go(func() {
		select {
		case <-ended:
			_ = o.from.SetReadDeadline(past)
		case <-stop:
		}
	})
	_, err := io.Copy(o.to, o.from)
	close(stop)
	waking.Wait()
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		// A caller that does not read must not block the program.
		_, err = io.Copy(io.Discard, o.from)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
	conn, err := o.from.SyscallConn()
	if err != nil {
		return
	}
	text := make([]byte, 32<<10)
	for copied := 0; copied < leftover; {
		n := 0
		controlErr := conn.Control(func(fd uintptr) { n, err = unix.Read(int(fd), text) })
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if controlErr != nil || err != nil || n <= 0 {
			return
		}
		if _, err := o.to.Write(text[:n]); err != nil {
			return
		}
		copied += n
	}
}

// receive gets the terminal that the container's process has made.
func receive(console *os.File) (*os.File, error) {
	name, rights := make([]byte, unix.PathMax), make([]byte, unix.CmsgSpace(4))
	var n, got int
	err := onDescriptor(console, func(fd int) (err error) {
		n, got, _, _, err = unix.Recvmsg(fd, name, rights, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:got])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(err, errdefs.Internalf("%d messages of control came, with %d bytes", len(messages), n))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(err, errdefs.Internalf("%d descriptors came", len(fds)))
	}
	// So that a read of it can be ended.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_ = unix.Close(fds[0])
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}
