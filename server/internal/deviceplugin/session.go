package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/internal/breaker"
	"github.com/berthd/berth/server/internal/logs"
)

// Why a session was ended from this side.
var (
	errSuperseded = errors.New("superseded by a newer registration")
	errAgain      = errors.New("the plugin has registered again")
	errDetached   = errors.New("its socket is gone")
)

// maxDeviceID is how long a device's id may be: it is in the ledger, in traces and in every
// list of what a pod holds.
const maxDeviceID = 1024

// session follows one registration: a connection and the stream of lists on it.
type session struct {
	server   *Server
	id       device.Session
	resource string
	path     string
	options  device.Options
	conn     *grpc.ClientConn
	client   pluginapi.DevicePluginClient
	// found means that the registry has discovered the plugin, and will connect again.
	found bool
	// life ends when the session is to end, and the calls to the plugin with it.
	life   context.Context
	cancel context.CancelCauseFunc
	// ended is closed when the stream has ended and the connection is closed or kept
	// for another session.
	ended chan struct{}

	strange  bool // a node that no machine can have was reported
	nameless bool // a device without a usable id was reported
	// remembered means that the ledger contains the resource.
	remembered bool

	mu      sync.Mutex
	breaker *breaker.Breaker // guarded by mu
	advice  *breaker.Breaker // guarded by mu; of calls for advice
	alone   int              // guarded by mu; the calls that continue without their callers
}

// run follows the plugin's lists until its stream ends, which is the end of the
// session: the stream is not opened again. Several plugins serve all streams
// from one queue, so an older stream is waited for (a second reader would take
// events from the first).
func (p *session) run(before *session) {
	defer close(p.ended)
	defer p.cancel(nil)
	if before != nil {
		<-before.ended
	}
	ctx := p.life
	err := p.follow(ctx)
	if p.makeRoom() {
		return
	}
	if cause := context.Cause(ctx); cause != nil {
		if !errors.Is(cause, errDetached) {
			// The session was replaced, or berthd is stopping: the plugin is not disconnected.
			return
		}
		err, ctx = cause, context.WithoutCancel(ctx)
	}
	s := p.server
	s.Log.Warn("device plugin has gone", logs.Gone(logs.Plugin, "resource", p.resource, "endpoint", p.path, "error", err)...)
	if s.Inventory.Gone(p.id, s.Now()) {
		p.remember(ctx)
	}
	s.takeOver(p.resource)
}

// makeRoom makes room for another session of the resource. It reports whether the
// connection is kept.
func (p *session) makeRoom() (kept bool) {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[p.resource] == p {
		delete(s.sessions, p.resource)
	}
	if errors.Is(context.Cause(p.life), errSuperseded) && s.keep(p) {
		return true
	}
	_ = p.conn.Close()
	return false
}

// follow reads lists until the stream ends, and returns the reason.
func (p *session) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	// The ledger stores the resource before its devices can be requested. After a crash a
	// resource in use would otherwise be unknown.
	p.remember(ctx)
	lists := newLatest(paced(ctx, stream.Recv))
	defer lists.wait()
	defer cancel()
	for {
		list, err := lists.next(p.server.UpdateEvery)
		if errors.Is(err, io.EOF) {
			return errors.New("the plugin ended its list")
		}
		if err != nil {
			return err
		}
		if n := len(list.Devices); n > p.server.MaxDevices {
			return errdefs.Exhaustedf("the plugin lists %d devices, more than the %d that limits.pluginDevices allows", n,
				p.server.MaxDevices)
		}
		if !p.server.Inventory.Listed(p.id, p.devices(list), p.server.Now()) {
			return errSuperseded
		}
	}
}

// remember notes for the next start that the resource has a plugin.
func (p *session) remember(ctx context.Context) {
	seen := ledger.SeenResource{Name: p.resource, LastSeen: p.server.Now(), PreStart: p.options.PreStart}
	switch err := p.server.Memory.Remember(ctx, seen); {
	case err == nil:
		p.remembered = true
	case p.remembered:
		p.server.Log.Debug("the time of the last connection of a device plugin was not stored", "resource", p.resource, "error", err)
	case ctx.Err() != nil:
		// berthd is stopping, and no device has been allocated yet.
	default:
		p.server.Log.Error("a device resource will not be known after a restart", "resource", p.resource, "error", err)
	}
}

// devices converts a list. A health text other than Healthy is unhealthy.
func (p *session) devices(list *pluginapi.ListAndWatchResponse) []device.Device {
	out := make([]device.Device, 0, len(list.Devices))
	for _, d := range list.Devices {
		if n := len(d.GetID()); n == 0 || n > maxDeviceID {
			if !p.nameless {
				p.nameless = true
				p.server.Log.Warn("device plugin reports a device with an unusable id; the device is ignored",
					"resource", p.resource, "bytes", n, "expected", fmt.Sprintf("1 to %d", maxDeviceID))
			}
			continue
		}
		next := device.Device{ID: d.GetID(), Healthy: d.GetHealth() == pluginapi.Healthy, Topology: d.GetTopology() != nil}
		nodes := d.GetTopology().GetNodes()
		for _, n := range nodes {
			if id := n.GetID(); id >= 0 && id < numa.MaxNodes {
				next.Nodes = next.Nodes.With(int(id))
			} else if !p.strange {
				p.strange = true
				p.server.Log.Warn("device plugin reports a NUMA node that no machine has; no pod is near to it",
					"resource", p.resource, "device", d.GetID(), "node", id, "nodes", numa.MaxNodes)
			}
		}
		next.Alien = len(nodes) > 0 && next.Nodes.IsEmpty()
		out = append(out, next)
	}
	return out
}
