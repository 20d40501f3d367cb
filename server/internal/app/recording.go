package app

import (
	"context"
	"strings"
	"time"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/rpc"
)

// recordCall names a call and its caller for the history. Calls that only read change nothing.
func (a *App) recordCall(ctx context.Context, fullMethod string) context.Context {
	if role, ok := access.RoleOf(fullMethod); !ok || role == access.Read {
		return ctx
	}
	c := &ledger.Call{Name: fullMethod[strings.LastIndexByte(fullMethod, '/')+1:], Time: a.Now()}
	if p, ok := rpc.PeerOf(ctx); ok {
		c.Caller = &ledger.Caller{UID: p.UID, GID: p.GID, PID: p.PID, Name: p.Name}
	}
	return ledger.WithCall(ctx, c)
}

// recordAdmit gives the history what is needed to make a call again.
func recordAdmit(ctx context.Context, req *admission.Request) {
	if c := ledger.CallOf(ctx); c != nil && !req.DryRun {
		c.Request = &ledger.HistoryRequest{Pod: ledger.Recorded(&req.Pod), Owner: req.Owner, Running: len(req.RunningAllocations) > 0}
	}
}

// recordResize is recordAdmit for a resize.
func recordResize(ctx context.Context, req *admission.ResizeRequest) {
	if c := ledger.CallOf(ctx); c != nil && !req.DryRun {
		c.Request = &ledger.HistoryRequest{Owner: req.Owner, Changes: req.Changes, QoS: req.QoS, MaxDisruption: int(req.MaxDisruption)}
	}
}

// recordSteps adds the time of steps to the history's entry of their call.
func recordSteps(next hint.Observer) hint.Observer {
	return func(ctx context.Context, step, provider string) (context.Context, func(error)) {
		inner, end := next(ctx, step, provider)
		c := ledger.CallOf(ctx)
		if c == nil {
			return inner, end
		}
		start := time.Now()
		return inner, func(err error) {
			end(err)
			c.Step(step, provider, time.Since(start))
		}
	}
}
