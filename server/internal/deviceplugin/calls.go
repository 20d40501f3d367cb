package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/breaker"
)

// Preferred returns the devices that a plugin prefers (GetPreferredAllocation). Only the first
// container of a response counts. A failure is logged, because the pod is admitted nevertheless.
func (s *Server) Preferred(ctx context.Context, resource string, available, mustInclude []string, size int) ([]string, error) {
	what := request{method: "GetPreferredAllocation", limit: s.Deadlines.Preferred, advice: true}
	answer, err := callPlugin(ctx, s, resource, what, func(ctx context.Context, p *session) (*pluginapi.PreferredAllocationResponse,
		error) {
		return p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
				AvailableDeviceIDs: available, MustIncludeDeviceIDs: mustInclude, AllocationSize: int32(size),
			}},
		}, grpc.MaxCallRecvMsgSize(maxCallBytes))
	})
	switch {
	case err != nil && ctx.Err() == nil:
		s.Log.WarnContext(ctx, "GetPreferredAllocation of a device plugin failed; berth chooses the devices without its preference",
			"resource", resource, "error", err)
		return nil, err
	case err != nil || len(answer.ContainerResponses) == 0:
		return nil, err
	}
	return answer.ContainerResponses[0].GetDeviceIDs(), nil
}

// Allocate calls a plugin's Allocate for one container, and returns the container's response in
// wire form. A response without a container is an error. Responses after the first are ignored.
func (s *Server) Allocate(ctx context.Context, resource string, ids []string) ([]byte, error) {
	if _, err := s.session(resource); err != nil {
		return nil, err
	}
	start := s.Now()
	what := request{method: "Allocate", limit: s.Deadlines.Allocate}
	answer, err := callPlugin(ctx, s, resource, what, func(ctx context.Context, p *session) (*pluginapi.AllocateResponse, error) {
		return p.client.Allocate(ctx, &pluginapi.AllocateRequest{
			ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
		}, grpc.MaxCallRecvMsgSize(maxCallBytes))
	})
	if s.Observer != nil {
		s.Observer.Allocated(resource, s.Now().Sub(start))
	}
	if err != nil {
		return nil, err
	}
	if len(answer.ContainerResponses) == 0 {
		return nil, errdefs.Unavailablef("no containers return in allocation response of the device plugin for %s", resource)
	}
	if why := inexpressible(answer.ContainerResponses[0]); why != "" {
		return nil, errdefs.Unavailablef("the device plugin for %s answers Allocate with settings that no container can have: %s",
			resource, why)
	}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(answer.ContainerResponses[0])
	if err != nil {
		return nil, errdefs.Internalf("keep the answer of the device plugin for %s: %w", resource, err)
	}
	if n := len(wire); n > maxAnswer {
		return nil, errdefs.Unavailablef("the device plugin for %s answers with %d bytes of settings for a container, expected at most %d", resource, n, maxAnswer)
	}
	return wire, nil
}

// Bounds of one answer to a call, and of what of it stays in the ledger with the claim.
const (
	maxCallBytes = 4 << 20
	maxAnswer    = 256 << 10
)

// PreStart calls PreStartContainer of the plugins of a container's devices, if their options
// require the call. It is called before every start, including restarts. If a required plugin is
// disconnected, the error is of class Unavailable: the container cannot start yet.
func (s *Server) PreStart(ctx context.Context, view *ledger.View, owner ledger.Owner) error {
	pod, ok := view.Pod(owner.Pod)
	if !ok {
		return view.NotAdmitted(owner.Pod)
	}
	snap := s.Inventory.Snapshot()
	for _, c := range pod.Claims {
		if c.Owner != owner || c.Devices == nil || c.Provider != device.Name {
			continue
		}
		if err := s.preStart(ctx, snap, &c); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) preStart(ctx context.Context, snap *device.Snapshot, c *ledger.Claim) error {
	r, ok := snap.Resource(c.Resource)
	if !ok || r.State == device.Expired {
		return errdefs.Unavailablef("endpoint not found in cache for a registered resource: %s", c.Resource).
			Coded(errdefs.PluginAway, "resource", c.Resource)
	}
	if !r.Options.PreStart {
		return nil
	}
	what := request{method: "PreStartContainer", limit: s.Deadlines.PreStart, attended: true}
	_, err := callPlugin(ctx, s, c.Resource, what, func(ctx context.Context, p *session) (*pluginapi.PreStartContainerResponse, error) {
		return p.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: c.Devices.IDs()})
	})
	if err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}

func (s *Server) session(resource string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.sessions[resource]
	if !ok {
		away := &errdefs.Error{
			Class: errdefs.Unavailable, Err: device.ErrAway,
			Message: fmt.Sprintf("the device plugin for %s is not connected", resource),
		}
		return nil, away.Coded(errdefs.PluginAway, "resource", resource)
	}
	return p, nil
}

// request is a method of a plugin, and how long it may take to answer.
type request struct {
	method string
	limit  time.Duration
	// attended calls are canceled with their caller's context. A plugin may reset a starting
	// container's device, so such a call must not outlive its caller.
	attended bool
	// advice is a call without whose answer pods get their devices, too. Such calls have a breaker of
	// their own: a plugin that never answers them is nevertheless called for the others.
	advice bool
}

// callPlugin calls a resource's plugin. A plugin that registers again, as after a restart of berthd,
// breaks calls on its previous connection. They are repeated once on the new connection.
func callPlugin[T any](ctx context.Context, s *Server, resource string, what request,
	do func(context.Context, *session) (T, error)) (T, error) {
	p, err := s.session(resource)
	if err != nil {
		return *new(T), err
	}
	answer, err := call(ctx, p, what, do)
	if errdefs.ClassOf(err) != errdefs.Unavailable {
		return answer, err
	}
	again, serr := s.session(resource)
	if serr != nil || again == p {
		return answer, err
	}
	return call(ctx, again, what, do)
}

// call makes one call to a plugin within the call's limit. The plugin does not get the caller's
// deadline. A caller whose deadline comes before the limit gets its own error, while the call
// continues. Callers with short deadlines therefore neither suspend a plugin that responds in
// time, nor hide one that does not.
func call[T any](ctx context.Context, p *session, what request, do func(context.Context, *session) (T, error)) (T, error) {
	type result struct {
		answer T
		err    error
	}
	attempt, err := p.enter(what)
	if err != nil {
		return *new(T), err
	}
	calling, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	done, left := make(chan result, 1), make(chan bool, 1)
	if !p.server.goes(func() {
		defer giveUp()
		var r result
		r.answer, r.err = within(calling, p, what, attempt, do)
		done <- r
		if <-left {
			p.unattended(-1)
		}
	}) {
		giveUp()
		p.leave(what, attempt, unknown, "")
		return *new(T), errdefs.Unavailablef("%s of the device plugin for %s: berthd ends", what.method,
			p.resource).Coded(errdefs.ShuttingDown)
	}
	select {
	case r := <-done:
		left <- false
		return r.answer, r.err
	case <-ctx.Done():
		goesOn := !what.attended && p.unattended(1)
		if !goesOn {
			giveUp()
		}
		left <- goesOn
		return *new(T), fmt.Errorf("%s of the device plugin for %s: %w", what.method, p.resource, context.Cause(ctx))
	}
}

// unattended counts calls that continue without their callers. It returns false, and does not
// count, if there are already enough to open the breaker.
func (p *session) unattended(more int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if more > 0 && p.alone >= p.server.Breaker.WithDefaults().Failures {
		return false
	}
	p.alone += more
	return true
}

// within makes a call within its limit, and reports the outcome to the breaker. calling is
// canceled when the caller has left and the call must not continue.
func within[T any](calling context.Context, p *session, what request, attempt breaker.Call,
	do func(context.Context, *session) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(calling, what.limit)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	answer, err := do(limited, p)
	switch {
	case err == nil:
		p.leave(what, attempt, answered, "")
		return answer, nil
	case calling.Err() != nil:
		p.leave(what, attempt, unknown, "")
		return answer, err // the result is not read
	case status.Code(err) == codes.DeadlineExceeded && (!errors.As(err, new(sentError)) || over(limited)):
		err := errdefs.Deadlinef("the device plugin for %s did not answer %s within %s", p.resource, what.method, what.limit)
		p.leave(what, attempt, silent, err.Error())
		return answer, err
	}
	failure := errdefs.Unavailablef("the device plugin for %s failed at %s: %w", p.resource, what.method, err).Coded(errdefs.PluginFailed)
	if code := status.Code(err); code == codes.Unavailable && !errors.As(err, new(sentError)) ||
		code == codes.Canceled && (p.life.Err() != nil || p.conn.GetState() == connectivity.Shutdown) {
		// The connection broke, or the session has ended.
		failure.Err = device.ErrAway
		p.leave(what, attempt, unknown, "")
	} else {
		p.leave(what, attempt, answered, "")
	}
	return answer, failure
}

// over reports whether the deadline has passed. The plugin may notice the deadline before the
// context does, and return DeadlineExceeded.
func over(ctx context.Context) bool {
	end, limited := ctx.Deadline()
	return limited && time.Until(end) <= 0
}

// outcome is whether a plugin responded to a call.
type outcome int

const (
	answered outcome = iota
	silent
	unknown
)

// enter begins a call if the plugin's breaker permits it. After three consecutive calls without a
// response the plugin is not called for a while. Pods that need the plugin then get an error
// immediately. No advice is requested either until the plugin has answered another call.
func (p *session) enter(what request) (breaker.Call, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.server.Now()
	var call breaker.Call
	var err error
	if what.advice && p.breaker.Open() {
		err = errors.New("it does not answer other calls")
	} else {
		call, err = p.breakerOf(what).Begin(now)
	}
	if err == nil {
		return call, nil
	}
	refused := errdefs.Unavailablef("%s of the device plugin for %s at %s: %w", what.method, p.resource, p.path, err).
		Coded(errdefs.PluginFailed)
	refused.Err = device.ErrSuspended
	if open := new(breaker.OpenError); errors.As(err, &open) {
		refused.RetryAfter = open.Until.Sub(now) // below 0 while a probe is under way
	}
	return call, refused
}

func (p *session) breakerOf(what request) *breaker.Breaker {
	if what.advice {
		return p.advice
	}
	return p.breaker
}

// leave reports the outcome of a call to the breaker.
func (p *session) leave(what request, call breaker.Call, o outcome, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.breakerOf(what)
	wasOpen := b.Open()
	switch o {
	case answered:
		call.Answered()
		if wasOpen {
			p.server.Log.Info("the device plugin answers again", "resource", p.resource, "endpoint", p.path, "method", what.method)
		}
	case unknown:
		call.GaveUp()
	case silent:
		effect := "pods that need it are put off"
		if what.advice {
			effect = "berth chooses its devices without its preference"
		}
		if now := p.server.Now(); call.Failed(now, text) {
			p.server.Log.Warn("the device plugin does not answer; it is not called for a while",
				"resource", p.resource, "endpoint", p.path, "effect", effect, "until", b.Until().UTC(), "error", text)
		}
	}
}
