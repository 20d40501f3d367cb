package app

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/server/rpc"
	rpcadmission "github.com/berthd/berth/server/rpc/admission"
)

// Rejected pods are logged this often, and in bursts of that many: an agent that
// asks again and again must not fill the disk.
const (
	rejectionLogEvery = 100 * time.Millisecond
	rejectionLogBurst = 100
)

// rejections is an engine that logs the pods which it rejects. A dry run rejects
// nobody.
type rejections struct {
	rpcadmission.Engine
	log   *slog.Logger
	now   func() time.Time
	limit *rate.Limiter
	// omitted counts the lines that were left out since the last one.
	omitted atomic.Int64
}

func logRejections(e rpcadmission.Engine, log *slog.Logger, now func() time.Time) *rejections {
	return &rejections{Engine: e, log: log, now: now, limit: rate.NewLimiter(rate.Every(rejectionLogEvery), rejectionLogBurst)}
}

// Admit implements rpcadmission.Engine.
func (r *rejections) Admit(ctx context.Context, req admission.Request) (admission.Verdict, error) {
	v, err := r.Engine.Admit(ctx, req)
	if err != nil || req.DryRun || v.Outcome != admission.Rejected {
		return v, err
	}
	if !r.limit.AllowN(r.now(), 1) {
		r.omitted.Add(1)
		return v, nil
	}
	fields := []any{
		"pod", req.Pod.Namespace + "/" + req.Pod.Name, "uid", req.Pod.UID,
		"reason", v.Reason, "message", v.Message, "request_id", rpc.RequestID(ctx),
	}
	if n := r.omitted.Swap(0); n > 0 {
		fields = append(fields, "omitted", n)
	}
	r.log.InfoContext(ctx, "pod rejected", fields...)
	return v, nil
}
