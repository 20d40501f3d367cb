package allocation

import (
	"iter"
	"slices"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/rpc"
)

// sendState sends the initial state of a view to a new reader. The view stays the same while the
// reader reads.
func (w *watch) sendState(view *ledger.View, snap *device.Snapshot) error {
	r, leave := w.starts.enter(rpc.UserOf(w.stream.Context()))
	defer leave()
	s, end := r.open(stateKey{view, snap, w.filter.key()}, func() *state { return w.collect(view, snap) })
	defer end()
	for i := range s.count() {
		if err := w.sendPart(r, s, i); err != nil {
			return err
		}
	}
	return nil
}

// sendPart sends a part of the initial state.
func (w *watch) sendPart(r *room, s *state, index int) error {
	p, err := r.pin(w.stream.Context(), s, index)
	if err != nil {
		return err
	}
	defer r.unpin(p)
	if !p.made.Load() {
		leave, err := w.slot()
		if err != nil {
			return err
		}
		p.once.Do(func() { w.encode(r, p) })
		leave()
	}
	if p.err != nil {
		return p.err
	}
	for _, m := range p.messages {
		if err := w.stream.SendMsg(m); err != nil {
			return err
		}
	}
	return nil
}

// collect returns the initial state of a view, without parts.
func (w *watch) collect(view *ledger.View, snap *device.Snapshot) *state {
	s := &state{rest: w.filter.of(append([]event{sharedCPUs(view), policy(view), machine(view)}, w.devices(nil, snap)...))}
	for p := range view.Pods() {
		if w.filter.passes(event{kind: allocationv1.EventType_EVENT_TYPE_ADDED, pod: p}) {
			s.pods = append(s.pods, p)
		}
	}
	slices.SortFunc(s.pods, inOrder)
	return s
}

// encode encodes a part. The last message of the last part has the revision.
func (w *watch) encode(r *room, p *part) {
	defer p.made.Store(true)
	view, revision := p.state.key.view, uint64(0)
	if p.last() {
		revision = view.Revision()
	}
	bytes := 0
	for m := range messages(p.events(), func(event) uint64 { return 0 }, revision, w.History.longest) {
		m.Initial = true
		shared, err := rpc.Share(m)
		if p.err = err; err != nil {
			return
		}
		p.messages = append(p.messages, shared)
		bytes += shared.Len()
	}
	r.settle(p, bytes)
}

func (p *part) last() bool { return p.index == p.state.count()-1 }

// events are those of a part. Each is encoded before the next one is computed.
func (p *part) events() iter.Seq[event] {
	s := p.state
	encoded := func(e event) event {
		e.Revision = s.key.view.Revision()
		e.encode()
		return e
	}
	return func(yield func(event) bool) {
		for _, pod := range s.pods[p.index*partPods : min((p.index+1)*partPods, len(s.pods))] {
			if !yield(encoded(added(s.key.view, pod, s.key.snap))) {
				return
			}
		}
		for i := 0; p.last() && i < len(s.rest); i++ {
			if !yield(encoded(s.rest[i])) {
				return
			}
		}
	}
}
