package policy

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
)

// Follow updates running containers after changes of the ledger, above all of the shared CPUs,
// until the context ends.
func (p *Policy) Follow(ctx context.Context, runtime Updater) {
	reported := "" // the outage that is in the log
	for ctx.Err() == nil {
		err := p.follow(ctx, runtime, func() {
			if reported != "" {
				p.log.Info("berthd is followed again")
			}
			reported = ""
		})
		if ctx.Err() != nil {
			return
		}
		if reported == "" {
			reported = err.Error()
			p.log.Warn("berthd is not followed", "error", err)
		}
		p.mu.Lock()
		p.agenda.unreconciled = true
		p.mu.Unlock()
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// follow runs until the connection to berthd is lost. It calls connected once berthd answers.
func (p *Policy) follow(ctx context.Context, runtime Updater, connected func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := p.client.WaitReady(ctx); err != nil {
		return err
	}
	calling, called := context.WithTimeout(ctx, callTimeout)
	defer called()
	now, err := p.client.Allocation().GetRevision(calling, &allocationv1.GetRevisionRequest{})
	if err != nil {
		return err
	}
	stream, err := p.client.Allocation().Watch(ctx, &allocationv1.WatchRequest{FromRevision: now.GetRevision(),
		Types: slices.AppendSeq(slices.Clone(moves), maps.Keys(frees))})
	if err != nil {
		return err
	}
	p.followed.Store(true)
	p.gate.ready.Store(true)
	defer p.followed.Store(false)
	connected()
	p.agenda.room.Add(1) // events may have been lost before
	p.reporter.reportAgain()
	ended := make(chan error, 1)
	go func() {
		for {
			message, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			for _, e := range message.GetEvents() {
				if frees[eventType(e)] {
					p.agenda.room.Add(1)
				}
				if slices.Contains(moves, eventType(e)) {
					p.agenda.kick()
				}
			}
		}
	}()
	tick, often := time.NewTicker(compareInterval), time.NewTicker(sweeping)
	defer tick.Stop()
	defer often.Stop()
	for {
		if err := p.push(ctx, runtime); err != nil {
			return err
		}
		for looks := false; !looks; {
			select {
			case <-p.agenda.kicked:
				looks = true
			case <-tick.C:
				looks = true
			case <-often.C:
				looks = p.sweepNow(ctx)
			case err := <-ended:
				return err
			}
		}
	}
}

// moves are the events that may change the CPUs of a container that runs.
var moves = []allocationv1.EventType{allocationv1.EventType_EVENT_TYPE_SHARED_CPUS, allocationv1.EventType_EVENT_TYPE_CHANGED}

// push requests the updates that are due. mu must be free meanwhile: the runtime handles no event
// until UpdateContainers returns, and events need mu. CPUs that other calls send meanwhile are
// compared afterwards.
func (p *Policy) push(ctx context.Context, runtime Updater) error {
	for {
		updates, answered, err := p.look(ctx)
		if err != nil {
			return err
		}
		if len(updates) == 0 {
			p.reporter.tryAgain(ctx, runtime)
			return nil
		}
		p.log.Debug("containers move", "containers", len(updates))
		failed, err := p.writer.request(ctx, runtime, updates)
		if p.writer.landed(updates, failed, err, answered) {
			continue
		}
		return nil
	}
}

// look returns the updates that are due, and marks them as requested. answered are the members
// with CPUs in an earlier response. look must be quick, because events wait for mu.
func (p *Policy) look(ctx context.Context) (updates []*api.ContainerUpdate, answered []*member, err error) {
	p.awaited.call(ctx)
	ctx, cancel := p.within(ctx, followShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends.sweep(ctx)
	if err := p.placer.reconcile(ctx); err != nil {
		return nil, nil, err
	}
	p.quotas.podQuotas()
	for _, m := range p.node.live() {
		_, _, _ = p.tracks.observe(m) // a member that cannot be read keeps its possible CPUs
		if !m.answered.IsEmpty() {
			answered = append(answered, m)
		}
	}
	p.reporter.reportMemory(ctx)
	return p.writer.requested(), answered, nil
}

// sweepNow calls sweep, and reports whether it found ended members.
func (p *Policy) sweepNow(ctx context.Context) bool {
	ctx, cancel := p.within(ctx, followShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ends.sweep(ctx)
}
