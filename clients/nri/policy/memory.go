package policy

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"

	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// This file reports to berthd where the memory of containers is, because berthd reads no cgroup beside a kubelet. A move of
// memory goes on only with these reports.

// Memory is where the memory of a container is.
type Memory struct {
	// Nodes are the NUMA nodes that its cgroup may use memory of, and Bytes the anonymous memory of its processes by node.
	Nodes numa.Mask
	Bytes map[int]uint64
}

// moveInterval is the interval of reports of a container whose pod moves.
const moveInterval = 200 * time.Millisecond

// mostReports limits the reports of one pass, except those of pods that move.
const mostReports = 32

// maxImmovable is the most of a reason that berthd takes.
const maxImmovable = 256

// reportMemory reports the memory of members that is bound to nodes: when they are new to berthd, now and then,
// and in each pass while their pod moves. A failed report is repeated by a later pass. The caller holds mu.
func (p *Policy) reportMemory(ctx context.Context) {
	moving, done := false, 0
	for _, m := range p.live() {
		if m.mems == "" || m.key == "" || !m.bound || len(m.claims) > 0 || m.match == unplaced {
			continue
		}
		moves := p.ledger.pods[m.key].GetMoving()
		moving = moving || moves
		if !moves && p.Now().Before(m.reportAt) {
			continue
		}
		if m.pid == 0 && p.Memory != nil {
			continue
		}
		if done++; !moves && done > mostReports {
			p.kick() // events are handled in between
			continue
		}
		if err := p.reportOf(ctx, m); err != nil {
			p.Log.Debug("report the memory of a container", "container", m.title(), "error", err)
			p.kickLater()
			if undecided(err) {
				return // berthd does not answer
			}
		}
	}
	if moving {
		p.forgetEnded(ctx)
		p.kickIn(moveInterval)
	}
}

// reportOf reports the memory of a member. Nothing is reported of one without a process: it may be starting, with memory nodes
// that were read before a change.
func (p *Policy) reportOf(ctx context.Context, m *member) error {
	req := &lifecyclev1.ReportMemoryRequest{ContainerId: m.id, Revision: p.ledger.revision}
	switch {
	case p.Memory == nil:
		req.ImmovableReason = "berth-nri does not read cgroups, because --cgroups is empty"
	case !p.read(m, req):
		m.reportAt = p.Now().Add(pause)
		return nil
	}
	answer, err := p.Client.Lifecycle().ReportMemory(ctx, req)
	if old := (*berth.Error)(nil); err != nil && (!errors.As(err, &old) || old.Code != codes.Unimplemented) {
		return err // an older berthd moves no memory
	}
	m.reportAt = p.Now().Add(pause)
	if err != nil || answer.GetFound() {
		m.reportAt = p.Now().Add(compareInterval)
	}
	return nil
}

// read adds what the kernel shows of a running member to a report; false if the member has ended. If the runtime has applied
// other memory nodes than the last ones, an update is due.
func (p *Policy) read(m *member, to *lifecyclev1.ReportMemoryRequest) bool {
	now, err := p.Memory(m.cgroup, m.pid)
	switch {
	case gone(err) && !p.hasProcess(m):
		return false
	case err != nil:
		text := strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return '?'
			}
			return r
		}, err.Error())
		to.ImmovableReason = strings.ToValidUTF8(text[:min(len(text), maxImmovable)], "")
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

// forgetEnded makes berthd forget the ids of containers that have ended in pods that move: a failed start leaves one, and berthd
// would wait for a report of it.
func (p *Policy) forgetEnded(ctx context.Context) {
	if !p.synchronized || p.unreconciled {
		return
	}
	for _, pod := range p.ledger.pods {
		if !pod.GetMoving() || !p.owns(pod) {
			continue
		}
		for _, c := range pod.GetContainers() {
			for _, id := range c.GetContainerIds() {
				m := p.members[id]
				if m != nil && (!m.stopped || p.may(m)) && !m.unstarted {
					continue
				}
				if _, err := p.Client.Lifecycle().PostStopContainer(ctx, &lifecyclev1.PostStopContainerRequest{ContainerId: id}); err != nil {
					p.Log.Debug("make berthd forget a container that has ended", "id", id, "error", err)
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
func (p *Policy) inNodes(m *member, before string) error {
	err := error(nil)
	if m.mems != before {
		err = errdefs.Unavailablef("its memory nodes were %s when it was created, and are %s now", before, m.mems)
	} else if want, bad := numa.Parse(m.mems); p.Memory != nil && bad == nil && !want.IsEmpty() {
		// Without an answer, as before the runtime has made the cgroup, the process is read when it runs.
		if now, unknown := p.Memory(m.cgroup, 0); unknown == nil && !now.Nodes.IsSubsetOf(want) {
			err = errdefs.Unavailablef("its cgroup may use memory of NUMA nodes %s, and not of %s only", now.Nodes, want)
		}
	}
	if err != nil {
		m.moved = true
		p.kick()
	}
	return err
}

// bindTo takes the memory nodes that are in force from the answer to PreStartContainer.
func (m *member) bindTo(answer *lifecyclev1.PreStartContainerResponse) {
	m.bound, m.reportAt = true, time.Time{}
	if now := convert.Nodes(answer.GetCpusetMems()).Commas(); len(m.claims) == 0 && now != "" && now != m.mems {
		m.mems, m.moved = now, true
	}
}

// reportAgain makes all members new to a berthd that may have been started again.
func (p *Policy) reportAgain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.members {
		m.reportAt = time.Time{}
	}
}
