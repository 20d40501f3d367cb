package cri

import (
	"context"
	"log/slog"
	"syscall"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/managers/errdefs"
)

// forever is a grace that does not end: berthlet measures grace itself, and kills
// when it has ended. CRI has no signal without one. In seconds.
const forever = int64(30 * 24 * time.Hour / time.Second)

// Start implements container.Runtime.
func (r *Runtime) Start(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := r.status(ctx, id)
	switch {
	case missing(err):
		return errdefs.NotFoundf("start container %s: there is none", id)
	case err != nil:
		return wrap(err, "start container %s", id)
	case s.Phase == container.Exited:
		return errdefs.Preconditionf("start container %s: it has exited", id)
	case s.Phase == container.Running:
		return nil
	}
	_, err = r.cri.StartContainer(ctx, &criv1.StartContainerRequest{ContainerId: id})
	return wrap(err, "start container %s", id)
}

// Signal implements container.Runtime for SIGTERM and SIGKILL, because CRI has no other signals.
// The runtime replaces SIGTERM with the image's stop signal.
func (r *Runtime) Signal(ctx context.Context, id string, sig syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if sig != syscall.SIGTERM && sig != syscall.SIGKILL {
		return errdefs.Unsupportedf("signal container %s: CRI has no call for %s", id, sig)
	}
	s, err := r.status(ctx, id)
	switch {
	case missing(err):
		return errdefs.NotFoundf("signal container %s: there is none", id)
	case err != nil:
		return wrap(err, "signal container %s", id)
	case s.Phase == container.Exited:
		return nil
	case s.Phase == container.Created:
		r.mu.Lock()
		r.ended[id] = ending{at: r.Now(), code: 128 + int(sig)}
		r.mu.Unlock()
		r.Changed(s.PodUID)
		return nil
	case sig == syscall.SIGTERM:
		r.startStop(id, s.PodUID, forever)
		return nil
	}
	_, err = r.cri.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: id})
	r.Changed(s.PodUID)
	return wrap(err, "kill container %s", id)
}

// startStop has the runtime send the signal, and kill after a grace. The call lasts until the
// container has ended, so it is left to itself; with berthlet it ends. After a failure the container
// may not have got the signal, and the call is repeated. It returns false if one is under way.
func (r *Runtime) startStop(id, uid string, grace int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.terminating[id] || r.background.Err() != nil {
		return false
	}
	r.terminating[id] = true
	r.work.Go(func() {
		tick := time.NewTicker(pollPeriod)
		defer tick.Stop()
		for level := slog.LevelWarn; ; level = slog.LevelDebug {
			_, err := r.cri.StopContainer(r.background, &criv1.StopContainerRequest{ContainerId: id, Timeout: grace})
			if err == nil || missing(err) || r.background.Err() != nil {
				break
			}
			r.Log.Log(r.background, level, "stop a container failed", "id", id, "error", err)
			select {
			case <-tick.C:
			case <-r.background.Done():
			}
		}
		r.mu.Lock()
		delete(r.terminating, id)
		r.mu.Unlock()
		r.Changed(uid)
	})
	return true
}

// Remove implements container.Runtime.
func (r *Runtime) Remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := r.cri.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: id})
	if err == nil || missing(err) {
		_, err = r.cri.RemoveContainer(ctx, &criv1.RemoveContainerRequest{ContainerId: id})
	}
	if err != nil && !missing(err) {
		return wrap(err, "remove container %s", id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ended, id)
	return nil
}
