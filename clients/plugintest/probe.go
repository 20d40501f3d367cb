package plugintest

import (
	"cmp"
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
	// Watch is how long a list has to stay open; 0 means 5 s.
	Watch time.Duration
	// Slow is the time from which on an answer counts as slow; 0 means 1 s.
	Slow time.Duration
	// Elsewhere means that this machine does not have the devices: host paths that are missing are warnings.
	Elsewhere bool
	// Started is called as each check begins, and Done as it ends; nil for neither.
	Started func(name string)
	Done    func(Check)

	// prefix of the names of checks.
	prefix string
	// host returns where a path of the host is found here; nil for a path that is the same.
	host func(path string) string
}

// What an option means that is not set.
const (
	defaultTimeout = 10 * time.Second
	defaultWatch   = 5 * time.Second
	defaultSlow    = time.Second
)

func (o Options) filled() Options {
	o.Timeout, o.Watch, o.Slow = cmp.Or(o.Timeout, defaultTimeout), cmp.Or(o.Watch, defaultWatch), cmp.Or(o.Slow, defaultSlow)
	return o
}

// probe is one run.
type probe struct {
	Options
	socket string
	report Report

	conn    *grpc.ClientConn
	plugin  pluginapi.DevicePluginClient
	options *pluginapi.DevicePluginOptions
	// lists is the stream of lists; nil while there is none.
	lists   *listing
	devices []*pluginapi.Device
	// first is the answer to the first Allocate, of the first healthy device, and wire is how it was encoded.
	first *pluginapi.ContainerAllocateResponse
	wire  []byte
	// slowest is the method that has answered last of all, and after what time.
	slowest string
	took    time.Duration
}

// step is a check that has not run yet. Without an error it has passed, and the text describes
// the observation.
type step struct {
	name string
	run  func(*probe, context.Context) (string, error)
	// unbounded: the step has a time of its own, in place of that of a call.
	unbounded bool
}

// steps in the order in which they are taken.
var steps = []step{
	{name: "connect", run: (*probe).connect},
	{name: "registration", run: (*probe).registration},
	{name: "options", run: (*probe).getOptions},
	{name: "list", run: (*probe).list},
	{name: "device ids", run: (*probe).ids},
	{name: "device health", run: (*probe).health},
	{name: "device topology", run: (*probe).topology},
	{name: "list size", run: (*probe).size},
	{name: "preferred allocation", run: (*probe).preferred},
	{name: "allocate one", run: (*probe).allocateOne},
	{name: "allocate answer", run: (*probe).answer},
	{name: "allocate again", run: (*probe).allocateAgain},
	{name: "allocate two", run: (*probe).allocateTwo},
	{name: "allocate all", run: (*probe).allocateAll},
	{name: "allocate unknown", run: (*probe).allocateUnknown},
	{name: "allocate unhealthy", run: (*probe).allocateUnhealthy},
	{name: "prestart", run: (*probe).preStart},
	{name: "answer time", run: (*probe).answerTime},
	{name: "flood", run: (*probe).flood},
	{name: "list stays open", run: (*probe).staysOpen, unbounded: true},
	{name: "reconnect", run: (*probe).reconnect},
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
	p := probed(ctx, socket, o)
	return p.report
}

// probed is a probe that has run.
func probed(ctx context.Context, socket string, o Options) *probe {
	p := &probe{Options: o.filled(), socket: socket, report: Report{Socket: socket, Began: time.Now()}}
	for _, s := range steps {
		p.step(ctx, s)
	}
	p.disconnect()
	return p
}

// disconnect closes the connection, and with it the stream of lists.
func (p *probe) disconnect() {
	if p.conn != nil {
		_ = p.conn.Close()
	}
	if p.lists != nil {
		<-p.lists.done
	}
}

// step runs one check.
func (p *probe) step(ctx context.Context, s step) {
	p.take(ctx, &p.report, s.name, func(ctx context.Context) (string, error) {
		if p.conn == nil && s.name != "connect" {
			return "", skipped("no process answers")
		}
		if !s.unbounded {
			limited, cancel := context.WithTimeout(ctx, p.Timeout)
			defer cancel()
			ctx = limited
		}
		return s.run(p, ctx)
	})
}

// timed notes how long an answer takes that began to be waited for then.
func (p *probe) timed(method string, began time.Time) {
	if took := time.Since(began); took >= p.took {
		p.slowest, p.took = method, took
	}
}

// answerTime is about the calls that were made one after the other.
func (p *probe) answerTime(context.Context) (string, error) {
	switch {
	case p.slowest == "":
		return "", skipped("there was no answer")
	case p.took >= p.Slow:
		return "", warnf("%s took %s: a kubelet admits one pod after the other, so that each of them waits for it", p.slowest, rounded(p.took))
	}
	return fmt.Sprintf("the slowest answer, of %s, took %s", p.slowest, rounded(p.took)), nil
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

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
	defer p.timed("GetDevicePluginOptions", time.Now())
	options, err := p.plugin.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	if err != nil {
		return "", fmt.Errorf("GetDevicePluginOptions: %w; a plugin without options is not registered", err)
	}
	p.options = options
	return fmt.Sprintf("preferred allocation %t, prestart %t", options.GetGetPreferredAllocationAvailable(),
		options.GetPreStartRequired()), nil
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
