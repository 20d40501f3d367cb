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
	"github.com/berthd/berth/server/breaker"
)

// Preferred asks a plugin which devices it would take (GetPreferredAllocation).
// An answer for more than one container, or for none, is read as far as it goes.
func (s *Server) Preferred(ctx context.Context, resource string, available, mustInclude []string, size int) ([]string, error) {
	var answer *pluginapi.PreferredAllocationResponse
	err := s.ask(ctx, resource, "GetPreferredAllocation", s.Deadlines.Preferred, func(ctx context.Context, p *session) (err error) {
		answer, err = p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
				AvailableDeviceIDs: available, MustIncludeDeviceIDs: mustInclude, AllocationSize: int32(size),
			}},
		}, grpc.MaxCallRecvMsgSize(maxCallBytes))
		return err
	})
	if err != nil || len(answer.ContainerResponses) == 0 {
		return nil, err
	}
	return answer.ContainerResponses[0].GetDeviceIDs(), nil
}

// Allocate has a plugin make devices ready for one container and returns its
// answer for this container in wire form. An answer for no container is an
// error; those after the first are ignored.
func (s *Server) Allocate(ctx context.Context, resource string, ids []string) ([]byte, error) {
	if _, err := s.session(resource); err != nil {
		return nil, err
	}
	var answer *pluginapi.AllocateResponse
	start := s.Now()
	err := s.ask(ctx, resource, "Allocate", s.Deadlines.Allocate, func(ctx context.Context, p *session) (err error) {
		answer, err = p.client.Allocate(ctx, &pluginapi.AllocateRequest{
			ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
		}, grpc.MaxCallRecvMsgSize(maxCallBytes))
		return err
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
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(answer.ContainerResponses[0])
	if err != nil {
		return nil, errdefs.Internalf("keep the answer of the device plugin for %s: %w", resource, err)
	}
	if n := len(wire); n > maxAnswer {
		return nil, errdefs.Unavailablef("the device plugin for %s wants %d bytes of settings for a container, expected at most %d", resource, n, maxAnswer)
	}
	return wire, nil
}

// Bounds of one answer to a call, and of what of it stays in the ledger with the claim.
const (
	maxCallBytes = 4 << 20
	maxAnswer    = 256 << 10
)

// PreStart tells the plugins of a container's devices that it is about to start,
// those that asked for it (PreStartContainer). It is called before every start,
// restarts included. A plugin that is needed and away is an error of class
// Unavailable: the container cannot start yet.
func (s *Server) PreStart(ctx context.Context, view *ledger.View, owner ledger.Owner) error {
	pod, ok := view.Pod(owner.Pod)
	if !ok {
		return errdefs.NotFoundf("pod %s is not known", owner.Pod).Coded(errdefs.PodNotFound, "pod_uid", owner.Pod)
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
		return errdefs.Unavailablef("endpoint not found in cache for a registered resource: %s", c.Resource)
	}
	if !r.Options.PreStart {
		return nil
	}
	err := s.ask(ctx, c.Resource, "PreStartContainer", s.Deadlines.PreStart, func(ctx context.Context, p *session) error {
		_, err := p.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: c.Devices.IDs()})
		return err
	})
	if err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}

// session finds the session of a resource.
func (s *Server) session(resource string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.sessions[resource]
	if !ok {
		return nil, &errdefs.Error{
			Class: errdefs.Unavailable, Err: device.ErrAway,
			Message: fmt.Sprintf("the device plugin for %s is not connected", resource),
		}
	}
	return p, nil
}

// ask calls a resource's plugin. A plugin that registers anew, as it does when it
// notices a restart of berthd, breaks the calls on its former connection: they
// are made once more on the new one.
func (s *Server) ask(ctx context.Context, resource, method string, limit time.Duration, do func(context.Context, *session) error) error {
	p, err := s.session(resource)
	if err != nil {
		return err
	}
	err = p.call(ctx, method, limit, func(ctx context.Context) error { return do(ctx, p) })
	if errdefs.ClassOf(err) != errdefs.Unavailable {
		return err
	}
	again, serr := s.session(resource)
	if serr != nil || again == p {
		return err
	}
	return again.call(ctx, method, limit, func(ctx context.Context) error { return do(ctx, again) })
}

// call makes one call to the plugin within a limit. What the caller's own
// context ended is the caller's error; all else is the plugin's.
func (p *session) call(ctx context.Context, method string, limit time.Duration, do func(context.Context) error) error {
	call, err := p.enter(method)
	if err != nil {
		return err
	}
	start := p.server.Now()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	err = do(limited)
	switch {
	case err == nil:
		p.leave(call, answered, "")
		return nil
	case ctx.Err() != nil:
		outcome := unknown
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && p.server.Now().Sub(start) >= limit/2 {
			// A caller's shorter deadline does not keep berthd from learning.
			outcome = silent
		}
		err = fmt.Errorf("%s of the device plugin for %s: %w", method, p.resource, context.Cause(ctx))
		p.leave(call, outcome, err.Error())
		return err
	case status.Code(err) == codes.DeadlineExceeded:
		err := errdefs.Deadlinef("the device plugin for %s did not answer %s within %s", p.resource, method, limit)
		p.leave(call, silent, err.Error())
		return err
	}
	failure := errdefs.Unavailablef("the device plugin for %s failed at %s: %w", p.resource, method, err).Coded(errdefs.PluginFailed)
	if code := status.Code(err); code == codes.Unavailable ||
		code == codes.Canceled && (p.life.Err() != nil || p.conn.GetState() == connectivity.Shutdown) {
		// The connection broke, or the session has ended.
		failure.Err = device.ErrAway
		p.leave(call, unknown, "")
	} else {
		p.leave(call, answered, "")
	}
	return failure
}

// outcome is what a call says about whether the plugin answers at all.
type outcome int

const (
	answered outcome = iota
	silent
	unknown
)

// enter asks the plugin's breaker whether a call may be made. A plugin that was
// silent three times in a row is not called for a while, so that pods which need
// it have their answer at once.
func (p *session) enter(method string) (breaker.Call, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.server.Now()
	call, err := p.breaker.Begin(now)
	open := new(breaker.OpenError)
	if !errors.As(err, &open) {
		return call, nil
	}
	refused := errdefs.Unavailablef("%s of the device plugin for %s at %s: %w", method, p.resource, p.path, err).Coded(errdefs.PluginFailed)
	refused.Err = device.ErrSuspended
	refused.RetryAfter = open.Until.Sub(now) // below 0 while a probe is under way
	return call, refused
}

// leave tells the breaker how a call ended.
func (p *session) leave(call breaker.Call, o outcome, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wasOpen := p.breaker.Open()
	switch o {
	case answered:
		call.Answered()
		if wasOpen {
			p.server.Log.Info("the device plugin answers again", "resource", p.resource, "endpoint", p.path)
		}
	case unknown:
		call.GaveUp()
	case silent:
		if now := p.server.Now(); call.Failed(now, text) {
			p.server.Log.Warn("the device plugin does not answer; it is not called for a while, and pods that need it are put off",
				"resource", p.resource, "endpoint", p.path, "until", p.breaker.Until().UTC(), "error", text)
		}
	}
}
