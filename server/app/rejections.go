package app

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/rpc"
	rpcadmission "github.com/berthd/berth/server/rpc/admission"
)

// Verdicts are logged this often, and in bursts of that many: an agent that
// asks again and again must not fill the disk.
const (
	rejectionLogEvery = 100 * time.Millisecond
	rejectionLogBurst = 100
)

// rejections is an engine that logs the pods which it rejects, and those that it lets
// in without something that they ask for. A dry run does neither.
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
	switch {
	case err != nil || req.DryRun || v.Repeated:
	case v.Outcome == admission.Rejected:
		r.line(ctx, slog.LevelInfo, "pod rejected", &req.Pod, "reason", v.Reason, "message", v.Message)
	case v.Outcome == admission.Admitted:
		if text := unexpected(v.Notes); text != "" {
			r.line(ctx, slog.LevelWarn, "pod admitted without something that it asks for", &req.Pod, "notes", text)
		}
	}
	return v, err
}

// unexpected joins the notes that nobody has asked for in the configuration.
func unexpected(notes []admission.Note) string {
	var all []string
	for _, n := range notes {
		if !n.Expected {
			all = append(all, n.Text)
		}
	}
	return strings.Join(all, "; ")
}

// line writes a line about a pod, unless there are too many.
func (r *rejections) line(ctx context.Context, level slog.Level, text string, pod *workload.Pod, more ...any) {
	if !r.limit.AllowN(r.now(), 1) {
		r.omitted.Add(1)
		return
	}
	fields := append([]any{"pod", pod.Namespace + "/" + pod.Name, "uid", pod.UID}, more...)
	fields = append(fields, "request_id", rpc.RequestID(ctx))
	if n := r.omitted.Swap(0); n > 0 {
		fields = append(fields, "omitted", n)
	}
	r.log.Log(ctx, level, text, fields...)
}
