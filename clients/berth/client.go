package berth

import (
	"cmp"
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	qosv1 "github.com/berthd/berth/api/berth/qos/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
)

// Options of a client. The zero value is good.
type Options struct {
	// UserAgent names the program to berthd.
	UserAgent string
	// Owner is whose pods the client admits, removes and lists: the name of the agent, a DNS label. Empty means "default".
	// Requests that name an owner themselves keep it.
	Owner string
	// MaxReceiveBytes bounds an answer; 0 means 64 MiB, since a dump of the ledger holds an explanation for every pod.
	MaxReceiveBytes int
	// Attempts is how often Admit calls at most; 0 means 5.
	Attempts int
	// Wait lets Dial return only when berthd is ready.
	Wait bool
	// ConnectTimeout is how long berthd may take to answer a new connection; 0 means 20 s. On a machine that is very
	// busy that takes more than a moment.
	ConnectTimeout time.Duration
	// Dialer makes the connections, to a berthd that no socket of this machine leads to; nil connects to the endpoint's socket.
	Dialer func(ctx context.Context) (net.Conn, error)
}

const (
	defaultMaxReceiveBytes = 64 << 20
	defaultAttempts        = 5
	defaultConnectTimeout  = 20 * time.Second
)

// A berthd that starts is there within milliseconds: dial often at first.
var reconnect = backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// Client talks to one berthd. It may be used from several goroutines at once.
type Client struct {
	onAnswer func(proto.Message)

	conn     grpc.ClientConnInterface
	close    func() error
	path     string
	owner    string
	attempts int
	// connectTimeout is how long berthd may take to answer a new connection.
	connectTimeout time.Duration
}

// Dial makes a client for an endpoint: a path or unix:///path; empty means the value of BERTH_ENDPOINT, and without that
// DefaultEndpoint. It does not connect, so berthd need not run yet; the context matters with Options.Wait only.
func Dial(ctx context.Context, endpoint string, o Options) (*Client, error) {
	path, err := SocketPath(endpoint)
	if err != nil {
		return nil, err
	}
	o.MaxReceiveBytes, o.ConnectTimeout = cmp.Or(o.MaxReceiveBytes, defaultMaxReceiveBytes), cmp.Or(o.ConnectTimeout, defaultConnectTimeout)
	// The dialer has the path, so that no character of the path can be taken for part of a URL.
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if o.Dialer != nil {
				return o.Dialer(ctx)
			}
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: o.ConnectTimeout}),
		grpc.WithUserAgent(o.UserAgent),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxReceiveBytes)),
	)
	if err != nil {
		return nil, err
	}
	c := Over(conn, o)
	c.path, c.close = path, conn.Close
	if o.Wait {
		if err := c.WaitReady(ctx); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	return c, nil
}

// Over makes a client of a connection that the caller has, to berthd or to what answers in its place, as in a test. The caller closes
// the connection.
func Over(conn grpc.ClientConnInterface, o Options) *Client {
	c := &Client{owner: o.Owner, attempts: cmp.Or(o.Attempts, defaultAttempts), connectTimeout: o.ConnectTimeout,
		close: func() error { return nil }}
	c.conn = typed{conn, c}
	return c
}

// OnAnswer has a function called with each answer before its caller has it. It is set before
// the first call.
func (c *Client) OnAnswer(f func(proto.Message)) { c.onAnswer = f }

func (c *Client) received(answer any, err error) {
	if m, ok := answer.(proto.Message); ok && err == nil && c.onAnswer != nil {
		c.onAnswer(m)
	}
}

// Close ends the connection; calls that are under way fail.
func (c *Client) Close() error { return c.close() }

// Endpoint returns where the client expects berthd, as unix:///path.
func (c *Client) Endpoint() string { return "unix://" + c.path }

// Owner returns the owner of Options; empty means "default".
func (c *Client) Owner() string { return c.owner }

// Conn returns the connection, for services that have no accessor here: health, reflection, the kubelet's podresources.
func (c *Client) Conn() grpc.ClientConnInterface { return c.conn }

// Admission decides about pods.
func (c *Client) Admission() admissionv1.AdmissionServiceClient {
	return admissionv1.NewAdmissionServiceClient(c.conn)
}

// Allocation reports what admitted pods hold and what a runtime needs to start them.
func (c *Client) Allocation() allocationv1.AllocationServiceClient {
	return allocationv1.NewAllocationServiceClient(c.conn)
}

// Lifecycle follows containers from creation to their end.
func (c *Client) Lifecycle() lifecyclev1.LifecycleServiceClient {
	return lifecyclev1.NewLifecycleServiceClient(c.conn)
}

// CPU shows the CPU manager.
func (c *Client) CPU() cpuv1.CPUServiceClient { return cpuv1.NewCPUServiceClient(c.conn) }

// Memory shows the memory manager.
func (c *Client) Memory() memoryv1.MemoryServiceClient {
	return memoryv1.NewMemoryServiceClient(c.conn)
}

// Device shows the device manager.
func (c *Client) Device() devicev1.DeviceServiceClient {
	return devicev1.NewDeviceServiceClient(c.conn)
}

// Fit shows what the NUMA nodes have left.
func (c *Client) Fit() fitv1.FitServiceClient { return fitv1.NewFitServiceClient(c.conn) }

// Topology shows the topology manager.
func (c *Client) Topology() topologyv1.TopologyServiceClient {
	return topologyv1.NewTopologyServiceClient(c.conn)
}

// Node shows the machine and what the node as a whole has and gives.
func (c *Client) Node() nodev1.NodeServiceClient { return nodev1.NewNodeServiceClient(c.conn) }

// Cgroup reaches the cgroups below berthd's own root.
func (c *Client) Cgroup() cgroupv1.CgroupServiceClient {
	return cgroupv1.NewCgroupServiceClient(c.conn)
}

// PodCgroup reaches the cgroups of pods.
func (c *Client) PodCgroup() cgroupv1.PodCgroupServiceClient {
	return cgroupv1.NewPodCgroupServiceClient(c.conn)
}

// QOS is about the cgroups of the QoS classes.
func (c *Client) QOS() qosv1.QOSServiceClient { return qosv1.NewQOSServiceClient(c.conn) }

// HintBus registers hint providers and lists them.
func (c *Client) HintBus() hintv1.HintBusServiceClient {
	return hintv1.NewHintBusServiceClient(c.conn)
}

// Inspect shows the ledger.
func (c *Client) Inspect() inspectv1.InspectServiceClient {
	return inspectv1.NewInspectServiceClient(c.conn)
}

// typed is a connection whose errors are of type *Error.
type typed struct {
	grpc.ClientConnInterface
	client *Client
}

// Invoke implements grpc.ClientConnInterface.
func (t typed) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	err := t.client.connectError(fromStatus(t.ClientConnInterface.Invoke(ctx, method, req, reply, opts...)))
	t.client.received(reply, err)
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (t typed) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := t.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, t.client.connectError(fromStatus(err))
	}
	return stream{s, t.client}, nil
}

type stream struct {
	grpc.ClientStream
	client *Client
}

func (s stream) SendMsg(m any) error {
	return s.client.connectError(fromStatus(s.ClientStream.SendMsg(m)))
}
func (s stream) RecvMsg(m any) error {
	err := s.client.connectError(fromStatus(s.ClientStream.RecvMsg(m)))
	s.client.received(m, err)
	return err
}
