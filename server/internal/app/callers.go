package app

import (
	"context"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/hintproxy"
	"github.com/berthd/berth/server/internal/host/procfs"
	"github.com/berthd/berth/server/internal/logs"
	"github.com/berthd/berth/server/internal/rpc"
	rpcadmission "github.com/berthd/berth/server/internal/rpc/admission"
	"github.com/berthd/berth/server/internal/rpc/lifecycle"
	"github.com/berthd/berth/server/internal/system"
)

// ownProcesses accepts from a caller only processes of the same user. Berthd runs as root as a
// rule, and limits and kills the processes in a pod's cgroup. Without this check the role agent
// would be equivalent to root. The rule is the kernel's for cgroup.procs of v1.
//
// A start may wait for long before the process is moved. Another process may get the same pid
// meanwhile; stillThere detects that.
type ownProcesses struct {
	lifecycle.Engine
	proc fs.FS
	self uint32
}

// PreStart implements lifecycle.Engine.
func (o ownProcesses) PreStart(ctx context.Context, owner ledger.Owner, id string, pid int) (admission.Started, error) {
	if pid != 0 {
		// The start time is read before the owner, so that the owner is that of the recorded
		// process.
		since, err := procfs.Since(o.proc, pid)
		if err != nil && errdefs.ClassOf(err) != errdefs.NotFound {
			return admission.Started{}, err
		}
		ctx = context.WithValue(ctx, handedOver{}, handedOver{pid: pid, since: since, missing: err})
	}
	if err := o.check(ctx, pid); err != nil {
		return admission.Started{}, err
	}
	return o.Engine.PreStart(ctx, owner, id, pid)
}

func (o ownProcesses) check(ctx context.Context, pid int) error {
	who, known := rpc.PeerOf(ctx)
	switch {
	case pid == 0:
		return nil
	case pid == os.Getpid():
		var vs errdefs.Violations
		vs.Addf("pid", "%d is berthd itself", pid)
		return vs.Err("request")
	case known && (who.UID == 0 || who.UID == o.self):
		return nil
	}
	own, saved, err := procfs.UIDs(o.proc, pid)
	if err != nil {
		return err
	}
	if !known || who.UID != own && who.UID != saved {
		return errdefs.PermissionDeniedf("process %d is of uid %d: only that user and root may place it, not %s", pid, own, who)
	}
	return nil
}

// handedOver is a process as it was when a caller handed it over, and the key under
// which a context has it.
type handedOver struct {
	pid   int
	since uint64
	// missing is the error that there was none.
	missing error
}

// stillThere returns an error of class NotFound if the process that was passed has ended. It
// cannot exclude an end between this check and the write: cgroup.procs accepts only a pid.
func stillThere(proc fs.FS) func(ctx context.Context, pid int) error {
	return func(ctx context.Context, pid int) error {
		p, ok := ctx.Value(handedOver{}).(handedOver)
		switch {
		case !ok || p.pid != pid:
			return errdefs.Internalf("place process %d: the caller has not passed it", pid)
		case p.missing != nil:
			return p.missing
		}
		since, err := procfs.Since(proc, pid)
		if err == nil && since != p.since {
			err = errdefs.NotFoundf("process %d has ended: another one has that id now", pid).Coded(errdefs.ProcessNotFound)
		}
		return err
	}
}

// ownProviders lets callers register providers in their own name only.
type ownProviders struct {
	*hintproxy.Registry
	access *rpc.Access
	self   uint32
}

// Register implements hintbus.Registry.
func (o ownProviders) Register(ctx context.Context, registration ledger.ExternalProvider) error {
	by, err := o.caller(ctx)
	if err != nil {
		return err
	}
	return o.Registry.Register(ctx, registration, by)
}

// Unregister implements hintbus.Registry. Admins end the registrations of all users.
func (o ownProviders) Unregister(ctx context.Context, name string) error {
	by, err := o.caller(ctx)
	if err != nil {
		return err
	}
	who, _ := rpc.PeerOf(ctx)
	by.Trusted = by.Trusted || o.access.Allows(who, access.Admin)
	return o.Registry.Unregister(ctx, name, by)
}

func (o ownProviders) caller(ctx context.Context) (hintproxy.Caller, error) {
	who, known := rpc.PeerOf(ctx)
	if !known {
		return hintproxy.Caller{}, errdefs.PermissionDeniedf("the connection does not identify the provider's user")
	}
	return hintproxy.Caller{UID: who.UID, GID: o.access.GroupFor(who, access.Provider), Trusted: who.UID == 0 || who.UID == o.self}, nil
}

// The rate limit and burst of logged verdicts. An agent that repeats its requests must not fill
// the disk.
const (
	rejectionLogEvery = 100 * time.Millisecond
	rejectionLogBurst = 100
)

// verdictCounter counts verdicts; *metrics.Set implements it.
type verdictCounter interface {
	Admission(pod *workload.Pod, v admission.Verdict, took time.Duration, err error)
	Resize(r live.Resized, took time.Duration, err error)
}

// verdicts counts an engine's admissions. It logs pods that are rejected, deferred, or admitted
// without a part of their request. A dry run is neither counted nor logged.
type verdicts struct {
	rpcadmission.Engine
	counts verdictCounter
	log    *slog.Logger
	now    func() time.Time
	limit  *rate.Limiter
	// omitted counts the lines that were left out since the last one.
	omitted atomic.Int64
}

func newVerdicts(e rpcadmission.Engine, counts verdictCounter, log *slog.Logger, now func() time.Time) *verdicts {
	return &verdicts{Engine: e, counts: counts, log: log, now: now, limit: rate.NewLimiter(rate.Every(rejectionLogEvery),
		rejectionLogBurst)}
}

// Admit implements rpcadmission.Engine.
func (r *verdicts) Admit(ctx context.Context, req admission.Request) (admission.Verdict, error) {
	recordAdmit(ctx, &req)
	start := time.Now()
	v, err := r.Engine.Admit(ctx, req)
	if !req.DryRun {
		r.counts.Admission(&req.Pod, v, time.Since(start), err)
	}
	switch {
	case err != nil || req.DryRun || v.Repeated:
	case v.Outcome == admission.Admitted:
		if text := unexpected(v.Notes); text != "" {
			r.line(ctx, slog.LevelWarn, "pod admitted without a resource that it requests", &req.Pod, "admitted", "notes", text)
		}
	case v.Outcome == admission.Deferred:
		r.line(ctx, slog.LevelInfo, "pod deferred", &req.Pod, "deferred", "reason", v.Reason, "message", v.Message, "retry_after",
			v.RetryAfter)
	default:
		r.line(ctx, slog.LevelInfo, "pod rejected", &req.Pod, "rejected", "reason", v.Reason, "message", v.Message)
	}
	return v, err
}

// Resize implements rpcadmission.Engine.
func (r *verdicts) Resize(ctx context.Context, req live.ResizeRequest) (live.Resized, error) {
	recordResize(ctx, &req)
	start := time.Now()
	v, err := r.Engine.Resize(ctx, req)
	if !req.DryRun {
		r.counts.Resize(v, time.Since(start), err)
	}
	if err != nil || req.DryRun || v.Repeated {
		return v, err
	}
	pod := &workload.Pod{UID: req.UID}
	if v.View != nil {
		if p, ok := v.View.Pod(req.UID); ok {
			pod.Namespace, pod.Name = p.Pod.Namespace, p.Pod.Name
		}
	}
	switch v.Outcome {
	case admission.Rejected:
		r.line(ctx, slog.LevelInfo, "resize rejected", pod, "rejected", "reason", v.Reason, "message", v.Message)
	case admission.Deferred:
		r.line(ctx, slog.LevelInfo, "resize deferred", pod, "deferred", "reason", v.Reason, "message", v.Message, "retry_after",
			v.RetryAfter)
	}
	return v, err
}

// unexpected joins the notes that the configuration does not request.
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
func (r *verdicts) line(ctx context.Context, level slog.Level, text string, pod *workload.Pod, verdict string, more ...any) {
	if !r.limit.AllowN(r.now(), 1) {
		r.omitted.Add(1)
		return
	}
	fields := []any{logs.Event, logs.Verdict, "verdict", verdict}
	if pod.Name != "" {
		fields = append(fields, "pod", pod.Namespace+"/"+pod.Name)
	}
	fields = append(append(fields, "uid", pod.UID), more...)
	fields = append(fields, "request_id", rpc.RequestID(ctx))
	if n := r.omitted.Swap(0); n > 0 {
		fields = append(fields, "omitted", n)
	}
	r.log.Log(ctx, level, text, fields...)
}

// recordCall returns a function that names a call and its caller for the history. Calls that only read change nothing.
func recordCall(now func() time.Time) func(context.Context, string) context.Context {
	return func(ctx context.Context, fullMethod string) context.Context {
		if role, ok := access.RoleOf(fullMethod); !ok || role == access.Read {
			return ctx
		}
		c := &history.Call{Name: fullMethod[strings.LastIndexByte(fullMethod, '/')+1:], Time: now()}
		if p, ok := rpc.PeerOf(ctx); ok {
			c.Caller = &history.Caller{UID: p.UID, GID: p.GID, PID: p.PID, Name: p.Name}
		}
		return history.WithCall(ctx, c)
	}
}

// recordAdmit gives the history what is needed to make a call again.
func recordAdmit(ctx context.Context, req *admission.Request) {
	if c := history.CallOf(ctx); c != nil && !req.DryRun {
		c.Request = &history.Request{Pod: history.Recorded(&req.Pod), Owner: req.Owner, Running: len(req.RunningAllocations) > 0}
	}
}

// recordResize is recordAdmit for a resize.
func recordResize(ctx context.Context, req *live.ResizeRequest) {
	if c := history.CallOf(ctx); c != nil && !req.DryRun {
		c.Request = &history.Request{Owner: req.Owner, Changes: req.Changes, QoS: req.QoS, MaxDisruption: int(req.MaxDisruption),
			MaxMove: int(req.MaxMove)}
	}
}

// stepRecorder counts steps, and adds their time to the history's entry of their call.
type stepRecorder struct{ metrics system.Metrics }

// Begin implements hint.Observer.
func (stepRecorder) Begin(ctx context.Context, _, _ string) (context.Context, time.Time) {
	return ctx, time.Now()
}

// End implements hint.Observer.
func (r stepRecorder) End(ctx context.Context, step, provider string, start time.Time, _ error) {
	took := time.Since(start)
	r.metrics.Step(step, provider, took)
	if c := history.CallOf(ctx); c != nil {
		c.Step(step, provider, took)
	}
}

// maxSchedulers bounds the owners whose schedulers are known.
const maxSchedulers = 16

// schedulers are what the agents' schedulers count as allocatable, by owner.
type schedulers struct {
	node func() *node.Manager
	// claims is what claims on dynamic resources can have.
	claims func() workload.Quantities

	mu      sync.Mutex // guards amounts
	amounts map[string]workload.Quantities
}

// Count keeps the amounts of an owner.
func (s *schedulers) Count(owner string, amounts workload.Quantities) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(amounts) == 0 {
		delete(s.amounts, owner)
		return nil, nil
	}
	if _, known := s.amounts[owner]; !known && len(s.amounts) >= maxSchedulers {
		return nil, errdefs.Exhaustedf("scheduler_allocatable of owner %q: the amounts of %d owners are known, and no more are kept; leave the field empty", owner, maxSchedulers)
	}
	if s.amounts == nil {
		s.amounts = map[string]workload.Quantities{}
	}
	s.amounts[owner] = amounts
	return s.compare(amounts), nil
}

// compare is what a scheduler counts that pods cannot have. What claims can have is named first, because it is counted twice.
func (s *schedulers) compare(amounts workload.Quantities) []string {
	m := s.node()
	return append(node.CountedTwice(m.Capacity(), amounts, s.claims()), m.Excess(amounts)...)
}

// excess is what all schedulers count that pods cannot have.
func (s *schedulers) excess() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, owner := range slices.Sorted(maps.Keys(s.amounts)) {
		out = append(out, s.compare(s.amounts[owner])...)
	}
	return slices.Compact(out)
}
