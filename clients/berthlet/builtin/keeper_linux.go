//go:build linux && cgo

package builtin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	_ "github.com/opencontainers/cgroups/devices" // device rules on both versions
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // runs before Go does, in "init"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/logs"
	"github.com/berthd/berth/managers/timestamp"
)

// What this program is when it calls itself.
const (
	initVerb = "init" // libcontainer's choice
	keepVerb = "keep"
)

// Descriptors that a keeper is given.
const (
	reportFD = 3
	lifeFD   = 4
)

// A container's first process replaces its program from the thread that it is known by. From another thread, the kernel
// lets the first one end before, and for a moment the process looks like one that has ended. Only an init function runs on
// that thread for certain.
func init() {
	if len(os.Args) > 1 && os.Args[1] == initVerb {
		runtime.LockOSThread()
	}
}

// Child runs the other functions of this program: a container's first process, or a keeper. It
// reports whether it did, after that function has ended. Call it first in main.
func Child() bool {
	switch {
	case len(os.Args) > 1 && os.Args[1] == initVerb && os.Getenv("_LIBCONTAINER_INITPIPE") != "":
		awaitFilter(os.Getenv("_LIBCONTAINER_INITTYPE") == "setns")
		libcontainer.Init()
	case len(os.Args) == 3 && os.Args[1] == keepVerb:
		keep(os.Args[2])
	default:
		return false
	}
	return true
}

// report is a keeper's only message.
type report struct{ Error string }

// keep makes the container of a directory and stays until it has ended.
func keep(dir string) {
	// The agent's end and its terminal's are not the container's.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	unix.CloseOnExec(reportFD)
	unix.CloseOnExec(lifeFD)
	k := &keeper{dir: dir}
	err := k.create()
	var said report
	if err != nil {
		said.Error = err.Error()
		k.undo()
	}
	answer := os.NewFile(reportFD, "report")
	// If the agent has ended, its successor finds the container by its files.
	_ = json.NewEncoder(answer).Encode(said)
	_ = answer.Close()
	if err != nil {
		os.Exit(1)
	}
	go k.begin()
	if err := k.wait(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type keeper struct {
	dir       string
	container *libcontainer.Container
	process   *libcontainer.Process
	log       *logs.File
	streams   sync.WaitGroup
}

// create makes the container up to the point where its process waits.
func (k *keeper) create() error {
	var b bundle
	if found, err := read(k.dir, bundleFile, &b); err != nil || !found {
		return errors.Join(err, errors.New("no bundle"))
	}
	if err := mountRoot(k.dir, b.Layers); err != nil {
		return err
	}
	b.OCI.Root.Path = filepath.Join(k.dir, rootDir)
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{CgroupName: b.Spec.ID, Spec: b.OCI})
	if err != nil {
		return err
	}
	if k.container, err = libcontainer.Create(b.Run, b.Spec.ID, config); err != nil {
		return err
	}
	k.process = &libcontainer.Process{
		Args: b.OCI.Process.Args, Env: b.OCI.Process.Env, Cwd: b.OCI.Process.Cwd,
		UID: int(b.OCI.Process.User.UID), GID: int(b.OCI.Process.User.GID), Init: true,
	}
	for _, gid := range b.OCI.Process.User.AdditionalGids {
		k.process.AdditionalGroups = append(k.process.AdditionalGroups, int(gid))
	}
	cpus, err := reserveStart(config.Cgroups, b.Spec.StartCPUs)
	if err != nil {
		return fmt.Errorf("make cgroup %s: %w", b.Spec.CgroupPath, err)
	}
	process, end, err := connection()
	if err != nil {
		return err
	}
	defer process.Close()
	k.process.ExtraFiles = []*os.File{end} // filterFD
	err = onCPUs(cpus, func() error { return k.start(b) })
	_ = end.Close() // the process has its own
	if err != nil {
		return err
	}
	pid, err := k.process.Pid()
	if err != nil {
		return err
	}
	if b.Filter != nil {
		if err := confine(process, pid, *b.Filter); err != nil {
			return err
		}
	}
	score(pid, b.Spec.OOMScoreAdj)
	boot, err := bootID()
	if err != nil {
		return err
	}
	return write(k.dir, createdFile, created{PID: pid, At: timestamp.Bounded(time.Now()), Boot: boot})
}

// start starts the process with its output going to the log.
func (k *keeper) start(b bundle) error {
	var err error
	if k.log, err = logs.Open(b.Spec.LogRoot, b.Spec.LogPath, b.LogBytes, time.Now); err != nil {
		return err
	}
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer stdin.Close()
	k.process.Stdin = stdin
	for _, stream := range []struct {
		name logs.Stream
		to   *io.Writer
	}{{logs.Stdout, &k.process.Stdout}, {logs.Stderr, &k.process.Stderr}} {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer w.Close() // the process has its own
		*stream.to = w
		k.streams.Go(func() {
			defer r.Close()
			if err := k.log.Copy(stream.name, r); err != nil {
				fmt.Fprintln(os.Stderr, "log:", err)
				// The container must not stand still because its log is full.
				_, _ = io.Copy(io.Discard, r)
			}
		})
	}
	return k.container.Start(k.process)
}

// begin waits for the request to start the container, and starts it. If the requester did it, an
// interrupted start could neither be repeated nor be distinguished from a running container.
func (k *keeper) begin() {
	// For writing too, so that it does not end.
	request, err := os.OpenFile(filepath.Join(k.dir, startPipe), os.O_RDWR, 0)
	if err == nil {
		_, err = request.Read(make([]byte, 1))
	}
	if err == nil {
		err = write(k.dir, startedFile, started{At: timestamp.Bounded(time.Now())})
	}
	if err == nil {
		err = k.container.Exec()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "start:", err)
	}
}

// undo removes what a failed create left.
func (k *keeper) undo() {
	if k.container != nil {
		_ = k.container.Signal(unix.SIGKILL)
		if err := k.container.Destroy(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if err := unmount(filepath.Join(k.dir, rootDir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// score sets the process's score for the out-of-memory killer. Lowering it requires
// CAP_SYS_RESOURCE. Without that capability the score does not change.
func score(pid, adjustment int) {
	path := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	if err := os.WriteFile(path, fmt.Appendf(nil, "%d", adjustment), 0); err != nil {
		fmt.Fprintln(os.Stderr, "score for the out-of-memory killer:", err)
	}
}

// wait waits for the container's end and stores the exit code.
func (k *keeper) wait() error {
	state, err := k.process.Wait()
	if state == nil {
		return err // without an exit file the container is lost
	}
	end := exit{Code: state.ExitCode(), At: timestamp.Bounded(time.Now())}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		end.Code = 128 + int(status.Signal())
		if status.Signal() == unix.SIGKILL && k.ranOutOfMemory() {
			end.Reason = container.OOMKilled
		}
	}
	// Without a PID namespace of its own, processes may be left that hold the
	// output open.
	if !k.container.Config().Namespaces.IsPrivate(configs.NEWPID) {
		_ = k.container.Signal(unix.SIGKILL)
	}
	k.streams.Wait()
	return errors.Join(k.log.Close(), write(k.dir, exitFile, end))
}

// ranOutOfMemory reports whether the kernel killed a process in the container's cgroup for lack
// of memory.
func (k *keeper) ranOutOfMemory() bool {
	state, err := k.container.State()
	if err != nil {
		return false
	}
	var killed uint64
	for controller, path := range state.CgroupPaths {
		switch {
		case controller == "memory":
			killed, err = fs.OOMKillCount(path)
		case controller == "" && !strings.Contains(path, "/unified/"):
			killed, err = fs2.OOMKillCount(path)
		}
		if err == nil && killed > 0 {
			return true
		}
	}
	return false
}
