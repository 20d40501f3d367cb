package deviceplugin

import (
	"context"
	"path/filepath"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/breaker"
	"github.com/berthd/berth/server/internal/logs"
)

// Register answers a plugin's call on kubelet.sock. It calls the plugin back for
// its options first, so the plugin must serve already; the options in the
// request are ignored, as the kubelet does. Errors reach the plugin as text with
// code Unknown, as from the kubelet.
func (s *Server) Register(ctx context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if s.Observer != nil {
		s.Observer.Registered(req.ResourceName)
	}
	if err := s.register(ctx, req); err != nil {
		s.Log.Warn("device plugin refused", "resource", req.ResourceName, "endpoint", req.Endpoint, "error", err)
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}

func (s *Server) register(ctx context.Context, req *pluginapi.RegisterRequest) error {
	if err := s.check(req); err != nil {
		return err
	}
	p, err := s.connect(ctx, req.ResourceName, filepath.Join(s.Dir, req.Endpoint))
	if err != nil {
		return err
	}
	return s.install(ctx, p)
}

// connect dials a plugin and reads its options. It returns a session that is not installed yet.
func (s *Server) connect(ctx context.Context, resource, path string) (*session, error) {
	conn, err := s.dial(ctx, path)
	if err != nil {
		return nil, err
	}
	client := pluginapi.NewDevicePluginClient(conn)
	limited, cancel := context.WithTimeout(ctx, s.Deadlines.Options)
	defer cancel()
	options, err := client.GetDevicePluginOptions(limited, &pluginapi.Empty{})
	if err != nil {
		_ = conn.Close()
		return nil, errdefs.Unavailablef("failed to get device plugin options: %w", err)
	}
	return &session{
		server: s, resource: resource, path: path, conn: conn, client: client,
		options: device.Options{
			Preferred: options.GetPreferredAllocationAvailable,
			PreStart:  options.PreStartRequired,
		},
		ended: make(chan struct{}), breaker: breaker.New(s.Breaker), advice: breaker.New(s.Breaker),
	}, nil
}

// check validates a registration.
func (s *Server) check(req *pluginapi.RegisterRequest) error {
	if req.Version != pluginapi.Version {
		return errdefs.Unsupportedf("requested API version %q is not supported by berth. Supported version is %q",
			req.Version, pluginapi.Version)
	}
	if !workload.Resource(req.ResourceName).IsExtended() {
		return errdefs.Invalidf("the ResourceName %q is invalid", req.ResourceName)
	}
	if !inside(req.Endpoint) {
		return errdefs.Invalidf("the Endpoint %q is invalid: expected the name of a socket in %s", req.Endpoint, s.Dir)
	}
	return nil
}

// inside reports whether an endpoint, joined to the directory as the kubelet joins
// it, names something in there: a name with a slash before it does. A longer
// absolute path does too, but it is meant to be another one.
func inside(endpoint string) bool {
	name := strings.TrimLeft(endpoint, "/")
	if name != endpoint && strings.Contains(name, "/") {
		return false
	}
	return filepath.IsLocal(name) && filepath.Clean(name) != "."
}

// install makes a session the current one of its resource and starts it. The previous session is
// canceled. The new stream begins after the previous one has ended.
func (s *Server) install(ctx context.Context, next *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(func(p *session) bool { return p.resource == next.resource && p.path == next.path })
	return s.begin(ctx, next)
}

// roomFor refuses a resource that would be one too many.
func (s *Server) roomFor(resource string) error {
	n := 0
	for r := range s.Inventory.Snapshot().Resources() {
		if r.Name == resource {
			return nil
		}
		n++
	}
	if n >= s.MaxResources {
		return errdefs.Exhaustedf("register %s: device plugins have %d resources already, as many as limits.pluginResources allows",
			resource, n)
	}
	return nil
}

// begin is install with the lock held.
func (s *Server) begin(ctx context.Context, next *session) error {
	if s.running == nil || ctx.Err() != nil {
		_ = next.conn.Close()
		return errdefs.Unavailablef("register %s: the plugin hung up, or the server ends", next.resource)
	}
	if s.ExternalProvider != nil {
		if by, taken := s.ExternalProvider(next.resource); taken {
			_ = next.conn.Close()
			return errdefs.Preconditionf("register %s: hint provider %s serves it; a resource has one provider", next.resource, by)
		}
	}
	if err := s.roomFor(next.resource); err != nil {
		_ = next.conn.Close()
		return err
	}
	before := s.sessions[next.resource]
	next.id = s.Inventory.Registered(next.resource, next.options, s.Now())
	s.sessions[next.resource] = next
	next.life, next.cancel = context.WithCancelCause(s.running)
	if before != nil {
		why := errSuperseded
		if before.path == next.path {
			why = errAgain
		}
		before.cancel(why)
	}
	s.Log.Info("device plugin registered", logs.Came(logs.Plugin, "resource", next.resource, "endpoint", next.path,
		"preferred", next.options.Preferred, "prestart", next.options.PreStart, "again", before != nil)...)
	s.streams.Go(func() { next.run(before) })
	return nil
}
