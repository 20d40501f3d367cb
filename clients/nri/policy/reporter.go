package policy

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/nri/abilities"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
)

// reporter reports to berthd where the memory of containers is, because with a kubelet, berthd reads no cgroup. A move of
// memory goes on only with these reports.
type reporter struct {
	*common
	mu      *sync.Mutex // Policy.mu
	tracks  *tracks
	runtime *abilities.Runtime
	view    *view
	writer  *writer
	memory  func(cgroup string, pid int) (Memory, error) // Host.Memory
	timer   *time.Timer                                  // kicks for the next report of a move; a failure does not delay it
}

// Memory tells where the memory of a container is.
type Memory struct {
	// Nodes are the NUMA nodes that its cgroup may use memory of, and Bytes the memory by node that its processes have mapped and
	// that is of no file on a disk.
	Nodes numa.Mask
	Bytes map[int]uint64
}

// moveInterval is the interval of reports of a container whose pod moves. It grows up to pause while the move makes no
// step: pinned memory can stay for ever, and each pass reads the whole ledger.
const moveInterval = 200 * time.Millisecond

// mostReports limits the reports of one pass.
const mostReports = 32

// reportMemory reports the memory of members that is bound to nodes: when they are new to berthd, now and then, and often
// while their pod moves. Nothing is reported of one without a process: it may be starting, with memory nodes that were read before
// a change. A failed report is repeated by a later pass. The caller holds mu.
func (rp *reporter) reportMemory(ctx context.Context) {
	moving, done, now := false, 0, rp.now()
	next := now.Add(pause)
	for _, m := range rp.node.live() {
		if m.mems == "" || m.key == "" || !m.bound || len(m.claims) > 0 || m.match == unplaced || rp.memory != nil && m.pid == 0 {
			continue
		}
		pod := rp.view.ledger.pods[m.key]
		moving = moving || pod.GetMoving()
		stepped := pod.GetMoving() && !proto.Equal(pod, m.step)
		if !stepped && now.Before(m.reportAt) {
			next = earlier(next, m.reportAt)
			continue
		}
		if done++; done > mostReports {
			rp.agenda.kick() // events are handled in between
			break
		}
		if stepped {
			m.step, m.steppedAt = pod, now
		}
		if err := rp.reportOf(ctx, m); err != nil {
			rp.log.Debug("report the memory of a container failed", "container", m.title(), "error", err)
			m.reportAt = now.Add(pause) // the others have their turn
			rp.agenda.later()
			if undecided(err) {
				return // berthd does not answer
			}
		}
		next = earlier(next, m.reportAt)
	}
	if moving {
		rp.forgetEnded(ctx)
		rp.agenda.in(&rp.timer, max(next.Sub(now), moveInterval))
	}
}

// earlier returns the earlier of two times.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// reportOf reports the memory of a member, unless the member has ended.
func (rp *reporter) reportOf(ctx context.Context, m *member) error {
	m.wide = 0
	req := &lifecyclev1.ReportMemoryRequest{ContainerId: m.id, Revision: rp.view.ledger.revision}
	switch {
	case !rp.runtime.Requests:
		req.ImmovableReason = "berth-nri may not update containers at any time, because the runtime (" + rp.runtime.Name + ") has NRI " +
			rp.runtime.NRI.String()
	case rp.memory == nil:
		req.ImmovableReason = "berth-nri does not read cgroups, because --cgroups is empty"
	case !rp.read(m, req):
		m.reportAt = rp.now().Add(pause)
		return nil
	}
	answer, err := rp.client.Lifecycle().ReportMemory(ctx, req)
	if old := (*berth.Error)(nil); err != nil && (!errors.As(err, &old) || old.Code != codes.Unimplemented) {
		return err // an older berthd moves no memory
	}
	rp.noteStaying(m, req)
	m.reportAt = rp.now().Add(pause)
	switch {
	case rp.view.ledger.pods[m.key].GetMoving():
		const share = 8 // of the time since the last step
		m.reportAt = rp.now().Add(min(max(rp.now().Sub(m.steppedAt)/share, moveInterval), pause))
	case err != nil || answer.GetFound():
		m.reportAt = rp.now().Add(compareInterval)
	}
	return nil
}

// read adds what the kernel shows of a running member to a report; false if the member has ended. If the runtime has applied
// other memory nodes than the last ones, an update is due.
func (rp *reporter) read(m *member, to *lifecyclev1.ReportMemoryRequest) bool {
	now, err := rp.memory(m.cgroup, m.pid)
	switch {
	case gone(err) && !rp.tracks.hasProcess(m):
		return false
	case err != nil:
		text := strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return '?'
			}
			return r
		}, err.Error())
		to.ImmovableReason = strings.ToValidUTF8(text[:min(len(text), protocol.MaxImmovableReason)], "")
		return true
	}
	to.MemoryNodes = convert.SomeNodes(now.Nodes)
	for id, bytes := range now.Bytes {
		to.NodeMemory = append(to.NodeMemory, &typesv1.NodeMemory{Resource: string(workload.Memory), NumaNode: uint32(id), Bytes: bytes})
	}
	if now.Nodes.Commas() != m.mems && m.pushed.IsEmpty() {
		m.moved = true
	}
	return true
}

// noteStaying notes from a report that berthd has taken which memory of a member has stayed on nodes that it may not use any more.
func (rp *reporter) noteStaying(m *member, req *lifecyclev1.ReportMemoryRequest) {
	now := convert.Nodes(req.GetMemoryNodes())
	var elsewhere, all uint64
	wide := now
	for _, n := range req.GetNodeMemory() {
		all += n.GetBytes()
		if id := int(n.GetNumaNode()); !now.Contains(id) && n.GetBytes() > 0 {
			elsewhere += n.GetBytes()
			wide = wide.With(id)
		}
	}
	wide = wide.Intersect(m.held)
	switch at := rp.now(); {
	case !rp.view.ledger.pods[m.key].GetMoving() || now.Commas() != m.mems || wide.IsSubsetOf(now) || cgroup.Arrived(elsewhere, all):
		m.stays = time.Time{}
	case m.stays.IsZero():
		m.stays = at
	case at.Sub(m.stays) >= protocol.MoveRetryInterval:
		m.stays, m.wide = at, wide
	}
}

// tryAgain lets the kernel move what has stayed. It moves memory only when the memory nodes change: so the runtime gets the nodes
// with the rest in addition, and right after that only those that the member may use. berthd does not end the move meanwhile and gives
// nobody these nodes: its last report of the member, and those of the time of protocol.MoveRetryInterval, say that memory stays.
// mu must be free, as for push.
func (rp *reporter) tryAgain(ctx context.Context, runtime Updater) {
	var wide, narrow []*api.ContainerUpdate
	rp.mu.Lock()
	for _, m := range rp.node.live() {
		nodes := m.wide
		m.wide = 0
		c, known := rp.tracks.state(m)
		if !rp.runtime.Requests || nodes.IsEmpty() || !known || m.moved || m.life.unlisted() || !m.pushed.IsEmpty() ||
			!m.answered.IsEmpty() || c.Phase == placement.Starting {
			continue
		}
		cpus := rp.tracks.grantable(m, c.WantedCPUs)
		if cpus.IsEmpty() {
			continue
		}
		rp.tracks.sendRequested(m, cpus)
		m.moved = true
		u := update(m, cpus)
		u.SetLinuxCPUSetMems(nodes.Commas())
		wide, narrow = append(wide, u), append(narrow, update(m, cpus))
	}
	rp.mu.Unlock()
	if len(wide) == 0 {
		return
	}
	ctx, cancel := outlasting(ctx) // the nodes do not stay wide
	defer cancel()
	if failed, err := rp.writer.request(ctx, runtime, wide); err != nil || len(failed) > 0 {
		rp.log.Debug("memory nodes are not widened for another attempt", "containers", len(failed), "error", err)
	}
	failed, err := rp.writer.request(ctx, runtime, narrow)
	if rp.writer.landed(narrow, failed, err, nil) {
		rp.agenda.kick()
	}
}

// forgetEnded makes berthd forget the ids of containers that have ended in pods that move: a failed start leaves one, and berthd
// would wait for a report of it.
func (rp *reporter) forgetEnded(ctx context.Context) {
	if !rp.node.synchronized || rp.agenda.unreconciled {
		return
	}
	for _, pod := range rp.view.ledger.pods {
		if !pod.GetMoving() || !rp.view.owns(pod) {
			continue
		}
		for _, c := range pod.GetContainers() {
			for _, id := range c.GetContainerIds() {
				m := rp.node.members[id]
				if m != nil && (!m.life.over() || rp.tracks.may(m)) && m.life != barred {
					continue
				}
				if _, err := rp.client.PostStopContainer(ctx, id); err != nil {
					rp.log.Debug("make berthd forget an ended container failed", "id", id, "error", err)
					return
				}
				if m != nil {
					m.bound = false
				}
			}
		}
	}
}

// inNodes checks before the start of a member that its cgroup has no other memory nodes than berthd's. before are those of the
// member before it was bound. Its pod may have moved since the container was created, and then it would use memory that
// other pods may have.
func (rp *reporter) inNodes(m *member, before string) error {
	err := error(nil)
	if m.mems != before {
		err = errdefs.Unavailablef("its memory nodes were %s when it was created, and are %s now", before, m.mems)
	} else if want, bad := numa.Parse(m.mems); rp.memory != nil && bad == nil && !want.IsEmpty() {
		// Without an answer, as before the runtime has made the cgroup, the process is read when it runs.
		if now, unknown := rp.memory(m.cgroup, 0); unknown == nil && !now.Nodes.IsSubsetOf(want) {
			err = errdefs.Unavailablef("its cgroup may use memory of NUMA nodes %s, and not of %s only", now.Nodes, want)
		}
	}
	if err != nil {
		m.moved = true
		rp.agenda.kick()
	}
	return err
}

// reportAgain makes all members new to a berthd that may have been started again.
func (rp *reporter) reportAgain() {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	for _, m := range rp.node.members {
		m.reportAt = time.Time{}
	}
}
