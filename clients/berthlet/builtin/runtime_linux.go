//go:build linux && cgo

package builtin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/image"
	"github.com/berthd/berth/managers/fault"
)

// Runtime is the built-in runtime. What is true about containers is in its
// directory; here is only who watches them.
type Runtime struct {
	Options
	images *image.Store

	mu      sync.Mutex // guards watched
	watched map[string]*os.File
	watches sync.WaitGroup
}

var _ container.Runtime = (*Runtime)(nil)

// New opens the runtime of a directory, with the containers that are in it.
func New(o Options) (*Runtime, error) {
	if !filepath.IsAbs(o.Dir) {
		return nil, fault.Invalidf("directory %q of the runtime: expected an absolute path", o.Dir)
	}
	if os.Geteuid() != 0 {
		return nil, fault.PermissionDeniedf("the built-in runtime makes namespaces and mounts, which takes root; the effective user is %d", os.Geteuid())
	}
	r := &Runtime{Options: o, images: image.NewStore(o.Images, filepath.Join(o.Dir, "layers")), watched: map[string]*os.File{}}
	for _, dir := range []string{r.containers(), r.run(), r.sandboxes()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, err
		}
	}
	// mount(2) and libcontainer want the path without links.
	var err error
	if r.Dir, err = filepath.EvalSymlinks(o.Dir); err != nil {
		return nil, err
	}
	ids, err := r.ids()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if err := r.adopt(id); err != nil {
			return nil, fmt.Errorf("take container %s over: %w", id, err)
		}
	}
	return r, nil
}

// adopt watches a container, or removes what is left of one whose making or whose
// removal was cut off.
func (r *Runtime) adopt(id string) error {
	dir := r.container(id)
	alive, err := kept(dir)
	if err != nil {
		return err
	}
	if !exists(filepath.Join(dir, bundleFile)) || !alive && !exists(filepath.Join(dir, createdFile)) {
		return r.wipe(id)
	}
	r.watch(id)
	return nil
}

// Stop ends the watching; the containers go on.
func (r *Runtime) Stop() {
	r.mu.Lock()
	for _, f := range r.watched {
		_ = f.Close()
	}
	r.mu.Unlock()
	r.watches.Wait()
}

func (r *Runtime) containers() string         { return filepath.Join(r.Dir, "containers") }
func (r *Runtime) container(id string) string { return filepath.Join(r.containers(), id) }
func (r *Runtime) run() string                { return filepath.Join(r.Dir, "run") }
func (r *Runtime) sandboxes() string          { return filepath.Join(r.Dir, "sandboxes") }

// ids lists the directories of containers.
func (r *Runtime) ids() ([]string, error) {
	entries, err := os.ReadDir(r.containers())
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, nil
}

// watch waits for the end of a container's keeper and tells.
func (r *Runtime) watch(id string) {
	dir := r.container(id)
	var b bundle
	if found, err := read(dir, bundleFile, &b); err != nil || !found {
		return
	}
	life, err := os.OpenFile(filepath.Join(dir, lifePipe), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched[id] != nil {
		_ = life.Close()
		return
	}
	r.watched[id] = life
	r.watches.Go(func() {
		_, _ = life.Read(make([]byte, 1)) // until the keeper, or Stop, closes it
		r.Changed(b.Spec.PodUID)
	})
}

func (r *Runtime) unwatch(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.watched[id]; f != nil {
		_ = f.Close()
		delete(r.watched, id)
	}
}

// Open implements container.Runtime.
func (r *Runtime) Open(_ context.Context, p container.Pod) error {
	dir := filepath.Join(r.sandboxes(), p.UID)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = write(dir, podFile, p)
	}
	if err == nil {
		err = openSandbox(dir, p)
	}
	if err != nil {
		return fmt.Errorf("open pod %s: %w", p.UID, err)
	}
	return nil
}

// Close implements container.Runtime.
func (r *Runtime) Close(_ context.Context, uid string) error {
	dir := filepath.Join(r.sandboxes(), uid)
	var p container.Pod
	_, err := read(dir, podFile, &p)
	if err == nil {
		removeDevicesCgroup(p.CgroupParent)
		err = closeSandbox(dir)
	}
	if err != nil {
		return fmt.Errorf("close pod %s: %w", uid, err)
	}
	return nil
}

// removeDevicesCgroup removes a pod's cgroup in the devices hierarchy of version 1,
// and those above it that are empty: libcontainer has made them, and berthd leaves
// that hierarchy to runtimes. It does not matter if it fails: another pod may just
// be coming.
func removeDevicesCgroup(parent string) {
	if parent == "" || cgroups.IsCgroup2UnifiedMode() {
		return
	}
	top, err := cgroups.FindCgroupMountpoint("", "devices")
	if err != nil {
		return
	}
	for path := filepath.Join(top, parent); path != top && os.Remove(path) == nil; path = filepath.Dir(path) {
	}
}

// Create implements container.Runtime.
func (r *Runtime) Create(ctx context.Context, s container.Spec) error {
	if err := r.create(ctx, s); err != nil {
		return fmt.Errorf("create container %s: %w", s.ID, err)
	}
	return nil
}

func (r *Runtime) create(ctx context.Context, s container.Spec) error {
	dir := r.container(s.ID)
	there, err := r.settled(ctx, dir)
	if err != nil || there {
		return err
	}
	// What is left of an attempt that was cut off.
	if err := r.wipe(s.ID); err != nil {
		return err
	}
	b, err := r.bundle(ctx, s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.LogPath), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o711); err != nil {
		return err
	}
	err = unix.Mkfifo(filepath.Join(dir, lifePipe), 0o600)
	if err == nil {
		err = unix.Mkfifo(filepath.Join(dir, startPipe), 0o600)
	}
	if err == nil {
		err = write(dir, bundleFile, b)
	}
	if err == nil {
		err = r.keep(ctx, dir)
	}
	if err != nil {
		return errors.Join(err, r.wipe(s.ID))
	}
	r.watch(s.ID)
	return nil
}

// settled tells whether a container was made. One that a keeper is still making
// is waited for.
func (r *Runtime) settled(ctx context.Context, dir string) (bool, error) {
	for {
		if exists(filepath.Join(dir, createdFile)) {
			return true, nil
		}
		alive, err := kept(dir)
		if err != nil || !alive {
			return exists(filepath.Join(dir, createdFile)), err
		}
		if err := pause(ctx); err != nil {
			return false, err
		}
	}
}

// pause waits a moment.
func pause(ctx context.Context) error {
	timer := time.NewTimer(10 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keep starts a keeper and waits until it has made the container.
func (r *Runtime) keep(ctx context.Context, dir string) error {
	life, err := os.OpenFile(filepath.Join(dir, lifePipe), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer life.Close()
	log, err := os.Create(filepath.Join(dir, keeperLog))
	if err != nil {
		return err
	}
	defer log.Close()
	answer, report, err := os.Pipe()
	if err != nil {
		return err
	}
	defer answer.Close()
	cmd := exec.Command("/proc/self/exe", keepVerb, dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{report, life} // reportFD, lifeFD
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = report.Close()
	if err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	return heard(ctx, answer, log.Name())
}

// heard reads what a keeper says. If time runs out the keeper goes on: a next
// Create finds what it made.
func heard(ctx context.Context, answer *os.File, log string) error {
	stop := context.AfterFunc(ctx, func() { _ = answer.Close() })
	defer stop()
	text, err := io.ReadAll(answer)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var said struct{ Error string }
	if err == nil {
		err = json.Unmarshal(text, &said)
	}
	if err != nil {
		last, _ := os.ReadFile(log)
		return fault.Unavailablef("the keeper ended without a word: %w: %s", err, bytes.TrimSpace(last))
	}
	if said.Error != "" {
		return fault.Unavailablef("%s", said.Error)
	}
	return nil
}

// Start implements container.Runtime.
func (r *Runtime) Start(ctx context.Context, id string) error {
	for {
		s, found, err := r.status(id)
		switch {
		case err != nil:
			return err
		case !found:
			return fault.NotFoundf("start container %s: there is none", id)
		case s.Phase == container.Exited && s.Started.IsZero():
			return fault.Preconditionf("start container %s: it has exited", id)
		case s.Phase != container.Created:
			return nil
		}
		// Asking twice does no harm: the keeper listens once.
		if err := wish(filepath.Join(r.container(id), startPipe)); err != nil {
			return fmt.Errorf("start container %s: %w", id, err)
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("start container %s: %w", id, err)
		}
	}
}

// wish asks the keeper to let its container run. A keeper that does not listen yet
// hears it with the next wish.
func wish(path string) error {
	pipe, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err == nil {
		_, err = pipe.Write([]byte{1})
		err = errors.Join(err, pipe.Close())
	}
	return err
}

// Signal implements container.Runtime.
func (r *Runtime) Signal(_ context.Context, id string, sig syscall.Signal) error {
	s, found, err := r.status(id)
	if err != nil {
		return err
	}
	if !found {
		return fault.NotFoundf("signal container %s: there is none", id)
	}
	if s.Phase == container.Exited {
		return nil
	}
	if err := r.signal(id, sig); err != nil {
		return fmt.Errorf("signal container %s: %w", id, err)
	}
	return nil
}

// signal leaves a container alone that has ended meanwhile.
func (r *Runtime) signal(id string, sig syscall.Signal) error {
	c, err := libcontainer.Load(r.run(), id)
	if err == nil {
		err = c.Signal(sig)
	}
	if errors.Is(err, libcontainer.ErrNotRunning) || errors.Is(err, libcontainer.ErrNotExist) || errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Remove implements container.Runtime.
func (r *Runtime) Remove(ctx context.Context, id string) error {
	if err := r.remove(ctx, id); err != nil {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}

func (r *Runtime) remove(ctx context.Context, id string) error {
	dir := r.container(id)
	for {
		if _, err := r.settled(ctx, dir); err != nil {
			return err
		}
		s, found, err := r.status(id)
		if err != nil {
			return err
		}
		if !found || s.Phase == container.Exited {
			return r.wipe(id)
		}
		if err := r.signal(id, unix.SIGKILL); err != nil {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// wipe removes everything of a container that has no process any more.
func (r *Runtime) wipe(id string) error {
	r.unwatch(id)
	dir := r.container(id)
	// Without this the rest is not taken for a container any more.
	if err := os.Remove(filepath.Join(dir, bundleFile)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return err
	}
	c, err := libcontainer.Load(r.run(), id)
	switch {
	case err == nil:
		if err := c.Destroy(); err != nil {
			return err
		}
	case !errors.Is(err, libcontainer.ErrNotExist):
		return err
	}
	if err := os.RemoveAll(filepath.Join(r.run(), id)); err != nil {
		return err
	}
	if err := unmount(filepath.Join(dir, rootDir)); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// List implements container.Runtime.
func (r *Runtime) List(ctx context.Context, uid string) ([]container.Status, error) {
	ids, err := r.ids()
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var out []container.Status
	for _, id := range ids {
		s, found, err := r.listed(ctx, id, uid)
		if err != nil {
			return nil, fmt.Errorf("list containers: %w", err)
		}
		if found {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b container.Status) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// listed gives a container of a pod, of any pod if the uid is empty. One that is
// being made, by a keeper that an earlier berthlet has started, is waited for.
func (r *Runtime) listed(ctx context.Context, id, uid string) (container.Status, bool, error) {
	var b bundle
	found, err := read(r.container(id), bundleFile, &b)
	if err != nil || !found || uid != "" && uid != b.Spec.PodUID {
		return container.Status{}, false, err
	}
	if _, err := r.settled(ctx, r.container(id)); err != nil {
		return container.Status{}, false, err
	}
	return r.examine(id, b)
}

// status gives a container as it is. One that is still being made, or was left
// half made, is not found.
func (r *Runtime) status(id string) (container.Status, bool, error) {
	var b bundle
	if found, err := read(r.container(id), bundleFile, &b); err != nil || !found {
		return container.Status{}, false, err
	}
	return r.examine(id, b)
}

// examine reads what became of a bundle.
func (r *Runtime) examine(id string, b bundle) (container.Status, bool, error) {
	dir := r.container(id)
	// In this order: a keeper writes before it goes.
	alive, err := kept(dir)
	if err != nil {
		return container.Status{}, false, err
	}
	var made created
	if found, err := read(dir, createdFile, &made); err != nil || !found {
		return container.Status{}, false, err
	}
	out := container.Status{
		ID: id, PodUID: b.Spec.PodUID, Name: b.Spec.Name, Attempt: b.Spec.Attempt, Pause: b.Spec.Pause,
		Phase: container.Created, PID: made.PID, Created: made.At,
	}
	var begun started
	if _, err := read(dir, startedFile, &begun); err != nil {
		return container.Status{}, false, err
	}
	if out.Started = begun.At; !begun.At.IsZero() {
		out.Phase = container.Running
	}
	var end exit
	found, err := read(dir, exitFile, &end)
	if err == nil && !found && !alive {
		end, err = r.lose(id, made.PID)
		found = true
	}
	if err != nil {
		return container.Status{}, false, err
	}
	if found {
		out.Phase, out.PID, out.ExitCode, out.Reason, out.Finished = container.Exited, 0, end.Code, end.Reason, end.At
	}
	return out, true, nil
}

// lose ends a container whose keeper is gone. Nothing of it runs any more when the
// end is written down.
func (r *Runtime) lose(id string, pid int) (exit, error) {
	r.Log.Warn("a container without a keeper is lost", slog.String("id", id))
	// Before the signal, so that it is this process and no later one.
	process, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		defer func() { _ = unix.Close(process) }()
	}
	if err := r.signal(id, unix.SIGKILL); err != nil {
		return exit{}, fmt.Errorf("end the lost container %s: %w", id, err)
	}
	if c, loadErr := libcontainer.Load(r.run(), id); loadErr == nil && err == nil {
		if status, err := c.Status(); err == nil && status != libcontainer.Stopped {
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, lostMillis); err != nil || n == 0 {
				return exit{}, fault.Deadlinef("end the lost container %s: process %d is still there: %v", id, pid, err)
			}
		}
	}
	end := exit{Code: 128 + int(unix.SIGKILL), Reason: container.Lost, At: r.Now()}
	return end, write(r.container(id), exitFile, end)
}

// lostMillis is how long a killed process may take to go.
const lostMillis = 10_000
