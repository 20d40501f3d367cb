package plugintest

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registrationapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Options of a probe.
type Options struct {
	// NoAllocate leaves out everything that calls Allocate or PreStartContainer.
	NoAllocate bool
	// Flood is how many calls are made at once to see that all are answered.
	Flood int
	// Timeout bounds every call; 0 means 10 s.
	Timeout time.Duration
}

// defaultTimeout limits a call if the options have no timeout.
const defaultTimeout = 10 * time.Second

// probe is one run.
type probe struct {
	Options
	socket string
	report Report

	conn    *grpc.ClientConn
	plugin  pluginapi.DevicePluginClient
	options *pluginapi.DevicePluginOptions
	stream  grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse]
	devices []*pluginapi.Device
	// first is the answer to the first Allocate, of the first healthy device.
	first *pluginapi.ContainerAllocateResponse
}

// step is a check that has not run yet. Without an error it has passed, and the text describes
// the observation.
type step struct {
	name string
	run  func(*probe, context.Context) (string, error)
}

// steps in the order in which they are taken.
var steps = []step{
	{"connect", (*probe).connect},
	{"registration", (*probe).registration},
	{"options", (*probe).getOptions},
	{"list", (*probe).list},
	{"device ids", (*probe).ids},
	{"device health", (*probe).health},
	{"device topology", (*probe).topology},
	{"list size", (*probe).size},
	{"preferred allocation", (*probe).preferred},
	{"allocate one", (*probe).allocateOne},
	{"allocate answer", (*probe).answer},
	{"allocate again", (*probe).allocateAgain},
	{"allocate all", (*probe).allocateAll},
	{"allocate unknown", (*probe).allocateUnknown},
	{"allocate unhealthy", (*probe).allocateUnhealthy},
	{"prestart", (*probe).preStart},
	{"flood", (*probe).flood},
	{"list stays open", (*probe).staysOpen},
	{"reconnect", (*probe).reconnect},
}

// warning is something that works, though not everywhere or not always.
type warning string

func (w warning) Error() string { return string(w) }

func warnf(format string, args ...any) error { return warning(fmt.Sprintf(format, args...)) }

// skipped is a check that does not apply.
type skipped string

func (s skipped) Error() string { return string(s) }

// Run probes the plugin behind a socket.
func Run(ctx context.Context, socket string, o Options) Report {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	p := &probe{Options: o, socket: socket, report: Report{Socket: socket}}
	for _, s := range steps {
		p.take(ctx, s)
	}
	if p.conn != nil {
		_ = p.conn.Close()
	}
	return p.report
}

// take runs one check.
func (p *probe) take(ctx context.Context, s step) {
	p.report.take(ctx, s.name, func(ctx context.Context) (string, error) {
		if p.conn == nil && s.name != "connect" {
			return "", skipped("no process answers")
		}
		ctx, cancel := context.WithTimeout(ctx, p.Timeout)
		defer cancel()
		return s.run(p, ctx)
	})
}

// dial connects to the plugin.
func (p *probe) dial(ctx context.Context) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", p.socket)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, err
	}
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if state == connectivity.TransientFailure || !conn.WaitForStateChange(ctx, state) {
			_ = conn.Close()
			return nil, fmt.Errorf("no process answers at %s (%s)", p.socket, state)
		}
	}
	return conn, nil
}

func (p *probe) connect(ctx context.Context) (string, error) {
	conn, err := p.dial(ctx)
	if err != nil {
		return "", err
	}
	p.conn, p.plugin = conn, pluginapi.NewDevicePluginClient(conn)
	return "the socket answers", nil
}

// registration checks the data of a plugin that waits to be found. A plugin that registers itself
// does not serve this method.
func (p *probe) registration(ctx context.Context) (string, error) {
	info, err := registrationapi.NewRegistrationClient(p.conn).GetInfo(ctx, &registrationapi.InfoRequest{})
	if err != nil {
		return "", skipped("the plugin does not wait to be found, so it has to register by itself")
	}
	p.report.Resource = info.GetName()
	return checkInfo(info)
}

func (p *probe) getOptions(ctx context.Context) (string, error) {
	options, err := p.plugin.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	if err != nil {
		return "", fmt.Errorf("GetDevicePluginOptions: %w; a plugin without options is not registered", err)
	}
	p.options = options
	return fmt.Sprintf("preferred allocation %t, prestart %t", options.GetGetPreferredAllocationAvailable(),
		options.GetPreStartRequired()), nil
}

func (p *probe) list(ctx context.Context) (string, error) {
	// The stream lives as long as the connection.
	stream, err := p.plugin.ListAndWatch(context.WithoutCancel(ctx), &pluginapi.Empty{})
	if err != nil {
		return "", fmt.Errorf("ListAndWatch: %w", err)
	}
	list, err := receive(ctx, stream)
	if err != nil {
		return "", fmt.Errorf("the first list: %w", err)
	}
	p.stream, p.devices = stream, list.GetDevices()
	if len(p.devices) == 0 {
		return "", warnf("the list is empty: the resource is known and has capacity 0")
	}
	return fmt.Sprintf("%d devices, %d of them healthy", len(p.devices), len(p.healthy())), nil
}

// receive waits for a list until ctx ends.
func receive(ctx context.Context, stream grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse]) (*pluginapi.ListAndWatchResponse,
	error) {
	type received struct {
		list *pluginapi.ListAndWatchResponse
		err  error
	}
	got := make(chan received, 1)
	go func() {
		list, err := stream.Recv()
		got <- received{list, err}
	}()
	select {
	case r := <-got:
		return r.list, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// healthy lists the ids of the devices that may be allocated.
func (p *probe) healthy() (ids []string) {
	for _, d := range p.devices {
		if d.GetHealth() == pluginapi.Healthy {
			ids = append(ids, d.GetID())
		}
	}
	return ids
}
