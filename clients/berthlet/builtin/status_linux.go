//go:build linux && cgo

package builtin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/managers/errdefs"
)

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
	if _, err := r.made(ctx, r.container(id)); err != nil {
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
	// The order matters: a keeper writes its files before it ends.
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
		end, err = r.lose(id, made)
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

// lose ends a container whose keeper has ended. The end is stored after its processes have ended.
func (r *Runtime) lose(id string, made created) (exit, error) {
	r.Log.Warn("a container without a keeper is lost", slog.String("id", id))
	boot, err := bootID()
	if err == nil && boot == made.Boot {
		err = r.killAndWait(id)
	}
	if err != nil {
		return exit{}, fmt.Errorf("end the lost container %s: %w", id, err)
	}
	end := exit{Code: 128 + int(unix.SIGKILL), Reason: container.Lost, At: r.Now()}
	return end, write(r.container(id), exitFile, end)
}

// killAndWait kills a container and waits until its first process has ended.
func (r *Runtime) killAndWait(id string) error {
	c, err := libcontainer.Load(r.run(), id)
	if errors.Is(err, libcontainer.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	first, err := openFirst(c)
	if errors.Is(err, errEnded) {
		return nil
	}
	if err != nil {
		return err
	}
	defer first.close()
	if err := r.signal(id, unix.SIGKILL); err != nil {
		return err
	}
	ended, err := first.wait(lostMillis)
	if err == nil && !ended {
		err = errdefs.Deadlinef("its first process was killed and is still there")
	}
	return err
}

// lostMillis is how long a killed process may take to go.
const lostMillis = 10_000
