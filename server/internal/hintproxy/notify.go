package hintproxy

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/server/internal/logs"
)

// notify sends the undelivered aborts, and then what has changed in the allocations. It does
// nothing if the provider has confirmed the same allocations on this connection. A provider
// that lacks the list of an update gets everything.
func (p *proxy) notify(ctx context.Context) error {
	select {
	case p.notifying <- struct{}{}:
		defer func() { <-p.notifying }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := p.sendAborts(ctx); err != nil {
		return err
	}
	err := p.send(ctx)
	if status.Code(err) == codes.FailedPrecondition {
		p.mu.Lock()
		_, sequence := p.list()
		p.mu.Unlock()
		if sequence == 0 {
			return err // it was everything
		}
		p.forget(sequence)
		return p.send(ctx)
	}
	return err
}

// send sends what has changed in the allocations since the provider confirmed them; everything,
// with the machine, on a new connection and after a change of the machine. notifying must be held.
func (p *proxy) send(ctx context.Context) error {
	view := p.parts.Ledger.View()
	allocations := convert.ProviderAllocations(view, p.Name())
	p.mu.Lock()
	if p.introduced && p.machine != view.Machine() {
		p.acknowledged, p.sequence, p.again = nil, 0, true
	}
	connection, introduced, decided, silent := p.connection, p.introduced, p.decided, p.silent
	acknowledged, sequence := p.list()
	update := difference(acknowledged, sequence, allocations)
	known := introduced && !p.again && len(update.GetChanged())+len(update.GetRemovedPodUids()) == 0
	p.mu.Unlock()
	leases := p.leases(view)
	if silent || known && !p.owes(leases) {
		return nil
	}
	divided := parts(update, p.sequences+1)
	for i, part := range divided {
		req := &hintv1.CommitRequest{Provider: p.Name(), Allocations: part, Partial: i < len(divided)-1}
		if part.GetBaseSequence() == 0 {
			snapshot, err := view.Machine().Marshal()
			if err != nil {
				return errdefs.Internalf("describe the machine to provider %s: %w", p.Name(), err)
			}
			req.MachineSnapshotJson = snapshot
		}
		if !req.GetPartial() {
			req.DiscardReservations = !decided
			for _, l := range leases {
				req.CommittedAdmissions = append(req.CommittedAdmissions, l.AdmissionID)
			}
		}
		p.sequences = part.GetSequence()
		if _, err := p.client.Commit(ctx, req); err != nil {
			return err
		}
	}
	p.confirm(connection, view.Machine(), leases, allocations, p.sequences)
	return nil
}

// leases returns the provider's leases in a view.
func (p *proxy) leases(view *ledger.View) (own []ledger.Lease) {
	for l := range view.Leases() {
		if l.Provider == p.Name() {
			own = append(own, l)
		}
	}
	return own
}

// owes returns whether the provider has to confirm a committed admission.
func (p *proxy) owes(leases []ledger.Lease) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(leases, func(l ledger.Lease) bool { return !p.hasConfirmed(l) })
}

// hasConfirmed returns whether the provider has confirmed the commit of a lease's admission. mu
// must be held.
func (p *proxy) hasConfirmed(l ledger.Lease) bool {
	c, ok := p.confirmed[l.ID]
	return ok && c.Expires.Equal(l.Expires)
}

// confirm records that the provider has confirmed the machine, its allocations, and the commits of
// the leases' admissions.
func (p *proxy) confirm(connection int, m *machine.Topology, leases []ledger.Lease, allocations []*hintv1.ProviderAllocation,
	sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if connection != p.connection {
		return // the confirmation may be from another process
	}
	if !p.introduced {
		p.introduced, p.away = true, ""
		p.breaker.Reconnected()
		if p.lost && p.lines.Allow() {
			p.parts.Log.Info("hint provider is back", logs.Came(logs.Provider, "provider", p.Name(), "endpoint",
				p.registration.Endpoint)...)
		}
		p.lost = false
		select {
		case <-p.confirmation:
		default:
			close(p.confirmation)
		}
	}
	p.machine, p.acknowledged, p.sequence, p.again, p.decided = m, allocations, sequence, false, true
	clear(p.confirmed)
	for _, l := range leases {
		p.confirmed[l.ID] = l
		delete(p.reservations, l.AdmissionID)
	}
	now := p.parts.Now()
	maps.DeleteFunc(p.reservations, func(_ string, r reservation) bool { return now.After(r.lease.Expires) })
}

// knows returns whether the provider has confirmed a machine.
func (p *proxy) knows(m *machine.Topology) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.machine == m
}

// sendAborts delivers aborts; those with an expired lease are dropped.
func (p *proxy) sendAborts(ctx context.Context) error {
	p.mu.Lock()
	pending := slices.Sorted(maps.Keys(p.aborts))
	p.mu.Unlock()
	for _, id := range pending {
		p.mu.Lock()
		expired := p.parts.Now().After(p.aborts[id])
		p.mu.Unlock()
		if !expired {
			if _, err := p.client.Abort(ctx, &hintv1.AbortRequest{Provider: p.Name(), AdmissionId: id}); err != nil {
				return err
			}
		}
		// A pod may hold claims that were reserved again for its admission. The provider
		// may have released them with the abort, so its allocations are sent again.
		_, holds := p.parts.Ledger.View().Admitted(id)
		p.mu.Lock()
		delete(p.aborts, id)
		p.again = p.again || holds
		p.mu.Unlock()
	}
	return nil
}

// changed records a change of the connection. The next process at the endpoint may be
// another one without any state.
func (p *proxy) changed(reachable bool, away string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connection++
	if p.introduced && !reachable {
		p.since = p.parts.Now()
	}
	if p.introduced && !reachable && !p.silent {
		p.lost = true
		if p.lines.Allow() {
			p.parts.Log.Warn("hint provider has gone", logs.Gone(logs.Provider, "provider", p.Name(), "endpoint", p.registration.Endpoint,
				"reason", away)...)
		}
	}
	p.reachable, p.introduced, p.away = reachable, false, away
}

// canBeNotified returns whether watch has recorded the connection. A confirmation on an
// unrecorded connection would be forgotten when watch records it.
func (p *proxy) canBeNotified() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reachable
}

// silence stops sending allocations, because another proxy of the same provider sends them
// now, or none does. Aborts are still delivered.
func (p *proxy) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
}

// settled waits until no call that sends something to the provider is under way.
func (p *proxy) settled() {
	p.notifying <- struct{}{}
	<-p.notifying
}

// sendAgain makes the keeper send the allocations although they are confirmed.
func (p *proxy) sendAgain() {
	p.mu.Lock()
	p.again = true
	p.mu.Unlock()
	p.poke()
}

// watch follows the connection until ctx ends.
func (p *proxy) watch(ctx context.Context) {
	for {
		state := p.conn.GetState()
		if state == connectivity.Idle {
			p.conn.Connect()
		}
		if state == connectivity.Ready {
			p.changed(true, "it has not confirmed its allocations yet")
		} else {
			p.changed(false, cmp.Or(p.conn.refusal(), "no process answers at "+p.registration.Endpoint))
		}
		p.poke()
		if !p.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// keep sends the provider its allocations until it confirms, and removes confirmed leases from
// the ledger. It ends with ctx, or after the last admission that may use this proxy when
// another proxy has replaced it.
func (p *proxy) keep(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	watching := make(chan struct{})
	go func() { defer close(watching); p.watch(ctx) }()
	defer func() {
		cancel()
		<-watching
		p.release()
	}()
	pause := redial.Backoff.BaseDelay
	again, end := time.NewTimer(0), time.NewTimer(0)
	defer again.Stop()
	defer end.Stop()
	<-end.C
	retired := p.retired
	for {
		again.Stop()
		if err := p.attempt(ctx); err != nil && ctx.Err() == nil {
			p.parts.Log.DebugContext(ctx, "provider is not up to date", "provider", p.Name(), "error", err)
			again.Reset(pause)
			pause = min(2*pause, slowest)
		} else {
			pause = redial.Backoff.BaseDelay
		}
		select {
		case <-p.wake:
		case <-again.C:
		case <-retired:
			// This is the longest time that an admission with this proxy can take.
			retired = nil
			end.Reset(p.config.Lease)
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// slowest is the longest pause between two attempts to send the allocations.
const slowest = 5 * time.Second

// attempt makes one attempt, if there is a connection.
func (p *proxy) attempt(ctx context.Context) error {
	if !p.canBeNotified() {
		return nil // watch will call poke
	}
	if err := p.within(ctx, "Commit", p.registration.Deadline, p.notify); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.introduced && ctx.Err() == nil {
			p.away = err.Error()
			select {
			case p.refused <- err:
			default:
			}
		}
		return err
	}
	return p.dropLeases(ctx)
}

// dropLeases removes leases from the ledger whose admissions the provider has confirmed.
func (p *proxy) dropLeases(ctx context.Context) error {
	pending := func(view *ledger.View) (ids []string) {
		leases := p.leases(view)
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, l := range leases {
			if p.hasConfirmed(l) && !p.silent {
				ids = append(ids, l.ID)
			}
		}
		return ids
	}
	if len(pending(p.parts.Ledger.View())) == 0 {
		return nil
	}
	_, err := p.parts.Ledger.Update(ctx, func(d *ledger.Draft) error {
		for _, id := range pending(d.View()) {
			d.DropLease(id)
		}
		return nil
	})
	return err
}
