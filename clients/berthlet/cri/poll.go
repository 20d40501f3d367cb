package cri

import (
	"context"
	"os"
	"path/filepath"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"

	"github.com/berthd/berth/clients/berthlet/beneath"
	"github.com/berthd/berth/clients/berthlet/logs"
)

// lastState is a container's state at the last poll.
type lastState struct {
	uid   string
	state criv1.ContainerState
}

// poll reads the states until Stop, and calls Changed for those that changed.
func (r *Runtime) poll() {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		select {
		case <-r.background.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(r.background, callTimeout)
		if err := r.compare(ctx); err != nil && r.background.Err() == nil {
			r.Log.Debug("read the states of containers failed", "error", err)
		}
		cancel()
	}
}

func (r *Runtime) compare(ctx context.Context) error {
	all, err := r.list(ctx, "")
	if err != nil {
		return err
	}
	now := make(map[string]lastState, len(all))
	changed := map[string]bool{}
	for _, c := range all {
		s := lastState{uid: c.GetLabels()[types.KubernetesPodUIDLabel], state: c.GetState()}
		now[c.GetId()] = s
		if r.known[c.GetId()] != s {
			changed[s.uid] = true
		}
		switch s.state {
		case criv1.ContainerState_CONTAINER_RUNNING:
			r.rotate(ctx, c.GetId())
		case criv1.ContainerState_CONTAINER_UNKNOWN:
			// The end of such a container cannot be detected, and may have been before its start.
			// Kubelets end such a container too.
			if r.startStop(c.GetId(), s.uid, 0) {
				r.Log.Warn("removing a container in an unknown state", "pod", s.uid, "id", c.GetId())
			}
		}
	}
	for id, s := range r.known {
		if _, there := now[id]; !there {
			changed[s.uid] = true
		}
	}
	r.known = now
	for uid := range changed {
		r.Changed(uid)
	}
	return nil
}

// rotate replaces the log of a container if it is too large. The old log gets the suffix ".1",
// and the runtime opens a new one.
func (r *Runtime) rotate(ctx context.Context, id string) {
	if r.LogBytes <= 0 {
		return
	}
	answer, err := r.cri.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id})
	path := answer.GetStatus().GetLogPath()
	if err != nil || path == "" {
		return
	}
	dir, err := logs.Directory(r.LogDir, path)
	if err != nil {
		r.Log.Warn("read a log failed", "log", path, "error", err)
		return
	}
	defer dir.Close()
	name := filepath.Base(path)
	if !tooLarge(dir, name, r.LogBytes) {
		return
	}
	if err := beneath.Rename(dir, name, name+".1"); err != nil {
		r.Log.Warn("rotate a log failed", "log", path, "error", err)
		return
	}
	if _, err := r.cri.ReopenContainerLog(ctx, &criv1.ReopenContainerLogRequest{ContainerId: id}); err != nil {
		r.Log.Warn("rotate a log failed", "log", path, "error", err)
		if err := beneath.Rename(dir, name+".1", name); err != nil {
			r.Log.Warn("put a log back failed", "log", path, "error", err)
		}
	}
}

// tooLarge reports whether a log exceeds a limit. Other kinds of files never do.
func tooLarge(dir *os.File, name string, limit int64) bool {
	f, err := beneath.File(dir, name, os.O_RDONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	return err == nil && info.Size() > limit
}
