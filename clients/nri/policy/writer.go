package policy

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/clients/nri/abilities"
	"github.com/berthd/berth/clients/nri/amounts"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/placement"
)

// writer sends updates of containers to the runtime, in answers to its events or on request.
type writer struct {
	*common
	mu      *sync.Mutex // Policy.mu
	gate    *gate
	tracks  *tracks
	runtime *abilities.Runtime
	view    *view
	stalled atomic.Pointer[error] // why a requested update has no effect yet; nil if the runtime answers
	logged  string                // the failure that is in the log
}

// Updater is a runtime that updates containers on request; package stub's is one.
type Updater interface {
	UpdateContainers([]*api.ContainerUpdate) ([]*api.ContainerUpdate, error)
}

// update returns an update of a member's CPUs, if there are any, and its memory nodes. A
// member without a quota on its own CPUs loses the one that it may have. Any other member gets the quota
// that an earlier berth-nri has removed.
func update(m *member, cpus cpuset.Set) *api.ContainerUpdate {
	u := updateCPUs(m, cpus)
	if m.mems != "" {
		u.SetLinuxCPUSetMems(m.mems)
	}
	return u
}

// updateCPUs is update without the memory nodes.
func updateCPUs(m *member, cpus cpuset.Set) *api.ContainerUpdate {
	u := &api.ContainerUpdate{}
	u.SetContainerId(m.id)
	if !cpus.IsEmpty() {
		u.SetLinuxCPUSetCPUs(cpus.String())
	}
	if m.free {
		u.SetLinuxCPUQuota(-1)
	} else {
		setQuota(u, m.lostQuota())
	}
	return u
}

// everyone chooses all members, nobody none.
func everyone(*member, placement.Container) bool { return true }

func nobody(*member, placement.Container) bool { return false }

// requested returns the updates that are due, and marks them as requested.
func (wr *writer) requested() (updates []*api.ContainerUpdate) {
	if !wr.runtime.Requests {
		return nil // the next answers carry them
	}
	for _, w := range wr.tracks.due(wr.view.shared, everyone) {
		m := wr.node.members[w.ID]
		wr.tracks.sendRequested(m, w.CPUs)
		updates = append(updates, update(m, w.CPUs))
	}
	return updates
}

// landed records the results of updates, and reports whether push must compare again.
func (wr *writer) landed(updates, failed []*api.ContainerUpdate, err error, answered []*member) (again bool) {
	refused := map[string]bool{}
	for _, u := range failed {
		refused[u.GetContainerId()] = true
	}
	wr.mu.Lock()
	defer wr.mu.Unlock()
	for _, m := range answered { // the runtime had applied their responses before
		if !m.answered.IsEmpty() {
			wr.tracks.outcome(m, m.answered, nil)
			m.answered = cpuset.Set{}
		}
	}
	var names []string
	for _, u := range updates {
		m := wr.node.members[u.GetContainerId()]
		if m == nil || m.pushed.IsEmpty() {
			continue
		}
		sent, became := m.pushed, error(nil)
		m.pushed = cpuset.Set{}
		switch {
		case refused[m.id]:
			became = errRefused
		case err != nil && len(failed) == 0:
			became = err
		}
		if became != nil {
			names = append(names, m.title())
		} else if m.moved && u.GetLinux().GetResources().GetCpu().GetMems() == m.mems {
			m.moved, m.reportAt = false, time.Time{} // the kernel has moved the memory, or tryAgain lets it try again
		}
		again = again || !m.answered.IsEmpty()
		wr.tracks.outcome(m, sent, became)
	}
	if len(names) == 0 {
		wr.logged = ""
		return again
	}
	// One line for a failure, however often it is tried.
	level, text := slog.LevelDebug, fmt.Sprint(names, err)
	if text != wr.logged {
		level, wr.logged = slog.LevelWarn, text
	}
	wr.log.Log(context.Background(), level, "update containers failed", "containers", names, "error", err)
	wr.agenda.later()
	return false
}

// setQuota gives a container a quota; 0 leaves the one that it has.
func setQuota(u *api.ContainerUpdate, quota int64) {
	if quota > 0 {
		u.SetLinuxCPUPeriod(amounts.Period)
		u.SetLinuxCPUQuota(quota)
	}
}

// answer returns the updates for the answer to an event: those of the members that chosen selects. If answers are the only way to the
// runtime, it returns all updates that are due, except that of a member which the event is about.
func (wr *writer) answer(about *member, chosen func(*member, placement.Container) bool) []*api.ContainerUpdate {
	return wr.response(wr.owed(about, chosen))
}

// owed returns the writes of such an answer.
func (wr *writer) owed(about *member, chosen func(*member, placement.Container) bool) []placement.Write {
	if wr.gate.released {
		return nil
	}
	if !wr.runtime.Requests {
		chosen = everyone
	}
	return wr.tracks.due(wr.view.shared, func(m *member, c placement.Container) bool { return m != about && chosen(m, c) })
}

// response converts writes for a response. A failed update must not make the runtime fail its own
// request.
func (wr *writer) response(writes []placement.Write) (out []*api.ContainerUpdate) {
	for _, w := range writes {
		m := wr.node.members[w.ID]
		u := update(m, w.CPUs)
		u.SetIgnoreFailure()
		m.moved = false
		wr.tracks.send(m, w.CPUs)
		out = append(out, u)
	}
	return out
}

// clear returns the writes that move other members off a member's exclusive CPUs.
func (wr *writer) clear(m *member) []placement.Write {
	if m.own.IsEmpty() {
		return wr.owed(m, nobody)
	}
	for _, other := range wr.node.all() {
		_, _, _ = wr.tracks.observe(other) // a member that cannot be read keeps its possible CPUs
	}
	return wr.owed(m, func(_ *member, c placement.Container) bool { return c.Anywhere || c.PossibleCPUs.Overlaps(m.own) })
}

// A runtime that has not answered a requested update for patience times its deadline for an event does not work. defaultDeadline is that
// deadline if the runtime does not tell its own.
const (
	patience        = 5
	defaultDeadline = 2 * time.Second
)

// request requests updates of the runtime, and returns its answer, or the context's error when that ends. The call itself
// cannot be ended, and the runtime may carry out the updates later. So no other request is made meanwhile: it could overtake this one.
// Ready reports a runtime that does not answer. mu must be free.
func (wr *writer) request(ctx context.Context, runtime Updater, updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate,
	err error) {
	type answer struct {
		failed []*api.ContainerUpdate
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		failed, err := runtime.UpdateContainers(updates)
		answered <- answer{failed, err}
	}()
	deadline := defaultDeadline
	if wr.runtime.Timeout != nil {
		deadline = wr.runtime.Timeout()
	}
	late := time.NewTimer(patience * deadline)
	defer late.Stop()
	for {
		select {
		case a := <-answered:
			if wr.stalled.Swap(nil) != nil {
				wr.log.Info("the runtime has answered the update of containers")
			}
			return a.failed, a.err
		case <-late.C:
			var stalled error = errdefs.Unavailablef("the runtime has not answered an update of %d containers for %s: containers are not moved, and those that wait for them do not start", len(updates), patience*deadline)
			wr.stalled.Store(&stalled)
			wr.log.Warn("update containers failed", "error", stalled)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// outlasting returns a context that ends callTimeout after another one.
func outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(callTimeout, cancel) })
	return out, func() { stop(); cancel() }
}
