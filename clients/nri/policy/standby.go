package policy

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
)

// PodEvent is what the owner of a pod should know about its place.
type PodEvent struct {
	Namespace, Name, UID string
	Reason, Message      string
	Warning              bool
}

// Reasons of events.
const (
	// ReasonPlaced is of a pod that ran without an allocation and has exclusive CPUs now.
	ReasonPlaced = "Placed"
	// ReasonNotPlaced is of a pod that runs, and that berthd has refused.
	ReasonNotPlaced = "NotPlaced"
)

// tellAfter is how many tries to place a running container fail before its pod has an event. The kubelet may just be starting.
const tellAfter = 5

// tell sends an event about a member's pod.
func (p *Policy) tell(m *member, warning bool, reason, format string, args ...any) {
	if p.Tell != nil {
		p.Tell(PodEvent{m.pod.namespace, m.pod.name, m.pod.uid, reason, fmt.Sprintf("container "+m.name+" "+format, args...), warning})
	}
}

// tellPlaced says where a container runs from now on that ran somewhere else without an allocation.
func (p *Policy) tellPlaced(m *member) {
	if m.own.IsEmpty() {
		return
	}
	if now, seen, err := p.observe(m); err != nil || !seen || now == m.own {
		return // it runs there already, or does not run
	}
	memory := "its memory stays where it is; restart the pod to have it near the CPUs"
	if m.mems != "" {
		memory = "its memory is bound to NUMA nodes " + m.mems + "; berthd does not wait until the kernel has moved it"
	}
	p.tell(m, false, ReasonPlaced, "ran without a place, and has CPUs %s for itself from now on; %s", m.own, memory)
}

// EverReady reports whether berthd has been ready on this node once. Before, nobody relies on it, and containers start without an
// allocation.
func (p *Policy) EverReady() bool {
	if p.Established == nil || p.established.Load() {
		return true
	}
	if p.Established() {
		p.established.Store(true)
	}
	return p.established.Load()
}

// SetStandby makes this policy place nothing and move nothing, for a reason, because another program assigns the CPUs of
// the node. Containers start as without it. With nil it works again, and compares all running containers with the ledger.
func (p *Policy) SetStandby(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.standby
	if p.standby = reason; (before == nil) == (reason == nil) {
		return
	}
	p.unreconciled = true
	if reason != nil {
		p.Log.Error("no container is placed or moved", "error", reason)
	} else {
		p.Log.Info("containers are placed again")
	}
	p.kick()
}

// Stalled returns an error if the runtime does not carry out updates.
func (p *Policy) Stalled() error {
	if stalled := p.stalled.Load(); stalled != nil {
		return *stalled
	}
	return nil
}

// Standby returns the reason for which nothing is placed and moved; nil if there is none.
func (p *Policy) Standby() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.standby
}

// bar returns why no container can have an allocation. The caller holds mu.
func (p *Policy) bar() error {
	switch {
	case p.standby != nil:
		return p.standby
	case !p.EverReady():
		return errNeverReady // a call would cost each pod the time of a deadline
	}
	return p.barred
}

var errNeverReady = errdefs.Unavailablef("berthd has never been ready on this node")

// oldestFirst orders members: those whose earlier tries have failed come last, so that they do not delay the others. Among the
// others, the pods come in the order in which they began, with all of their containers.
func oldestFirst(members []*member) {
	began := map[*sandbox]int64{}
	for _, m := range members {
		if at, ok := began[m.pod]; !ok || m.created < at {
			began[m.pod] = m.created
		}
	}
	slices.SortStableFunc(members, func(a, b *member) int {
		return cmp.Or(cmp.Compare(a.tries, b.tries), cmp.Compare(began[a.pod], began[b.pod]), cmp.Compare(a.pod.id, b.pod.id),
			cmp.Compare(a.created, b.created))
	})
}
