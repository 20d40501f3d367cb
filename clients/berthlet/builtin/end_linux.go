//go:build linux && cgo

package builtin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/managers/errdefs"
)

// Start implements container.Runtime.
func (r *Runtime) Start(ctx context.Context, id string) error {
	for {
		s, found, err := r.status(id)
		switch {
		case err != nil:
			return err
		case !found:
			return errdefs.NotFoundf("start container %s: there is none", id)
		case s.Phase == container.Exited && s.Started.IsZero():
			return errdefs.Preconditionf("start container %s: it has exited", id)
		case s.Phase != container.Created:
			return nil
		}
		// Requesting twice is harmless: the keeper reads once.
		if err := requestStart(filepath.Join(r.container(id), startPipe)); err != nil {
			return fmt.Errorf("start container %s: %w", id, err)
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("start container %s: %w", id, err)
		}
	}
}

// requestStart requests the container's start from its keeper. If the keeper has not opened the pipe yet,
// the caller repeats the request.
func requestStart(path string) error {
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
		return errdefs.NotFoundf("signal container %s: there is none", id)
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
	if errors.Is(err, libcontainer.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = c.Signal(sig)
	}
	if errors.Is(err, libcontainer.ErrNotRunning) {
		return signalFirst(c, sig)
	}
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// signalFirst signals a container that libcontainer takes for ended.
func signalFirst(c *libcontainer.Container, sig syscall.Signal) error {
	first, err := openFirst(c)
	if errors.Is(err, errEnded) {
		return nil
	}
	if err != nil {
		return err
	}
	defer first.close()
	return first.signal(sig)
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
		if _, err := r.made(ctx, dir); err != nil {
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
	if err := os.Remove(filepath.Join(dir, bundleFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
