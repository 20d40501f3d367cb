package criclient

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

const (
	// callTimeout limits one call. An admission cannot wait longer for the runtime.
	callTimeout = 10 * time.Second
	// maxMessage is how large an answer may be; lists grow with the machine.
	maxMessage = 16 << 20
)

// Client is a connection to a runtime. It is safe for concurrent use.
type Client struct {
	endpoint string
	conn     *grpc.ClientConn
	cri      criv1.RuntimeServiceClient

	mu      sync.Mutex             // guards cgroups
	cgroups map[string]cgroup.Name // by container id; nil if the runtime does not report it
}

// Dial prepares a connection, which comes up with the first call and again
// whenever the runtime comes back. An endpoint that is no absolute path is an
// error of class Invalid. Close the client after its last use.
func Dial(endpoint string) (*Client, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !filepath.IsAbs(path) {
		return nil, errdefs.Invalidf("runtime endpoint %q: expected the absolute path of a socket, as unix:///run/containerd/containerd.sock", endpoint)
	}
	timeout := backoff.DefaultConfig
	timeout.MaxDelay = time.Second // it is on this machine, and back in a moment
	conn, err := grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: timeout, MinConnectTimeout: 20 * time.Second}))
	if err != nil {
		return nil, errdefs.Invalidf("runtime endpoint %q: %w", endpoint, err)
	}
	return &Client{endpoint: path, conn: conn, cri: criv1.NewRuntimeServiceClient(conn), cgroups: map[string]cgroup.Name{}}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// About returns the name and version of the runtime, as "containerd v2.1.0". It waits for a
// runtime until ctx ends.
func (c *Client) About(ctx context.Context) (string, error) {
	v, err := c.cri.Version(ctx, &criv1.VersionRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return "", c.failed("get the version", err)
	}
	return v.GetRuntimeName() + " " + v.GetRuntimeVersion(), nil
}

// Driver returns the runtime's cgroup driver. known is false for a runtime without the call
// (before containerd 2.0 and CRI-O 1.28; KEP-4033). The driver is empty if the runtime has the
// call and reports none, as on other systems than Linux.
func (c *Client) Driver(ctx context.Context) (driver cgroup.Driver, known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.cri.RuntimeConfig(ctx, &criv1.RuntimeConfigRequest{}, grpc.WaitForReady(true))
	switch {
	case status.Code(err) == codes.Unimplemented:
		return "", false, nil
	case err != nil:
		return "", false, c.failed("get the cgroup driver", err)
	case answer.GetLinux() == nil:
		return "", true, nil
	}
	switch d := answer.GetLinux().GetCgroupDriver(); d {
	case criv1.CgroupDriver_CGROUPFS:
		return cgroup.Cgroupfs, true, nil
	case criv1.CgroupDriver_SYSTEMD:
		return cgroup.Systemd, true, nil
	default:
		return "", false, errdefs.Unsupportedf("get the cgroup driver of the container runtime at %s: got %s, expected CGROUPFS or SYSTEMD", c.endpoint, d)
	}
}

// failed gives an error of the runtime its class.
func (c *Client) failed(what string, err error) error {
	const text = "%s of the container runtime at %s: %w"
	s, _ := status.FromError(err)
	err = errors.New(s.Message())
	switch s.Code() {
	case codes.NotFound:
		return errdefs.NotFoundf(text, what, c.endpoint, err)
	case codes.DeadlineExceeded, codes.Canceled:
		return errdefs.Deadlinef(text, what, c.endpoint, err)
	case codes.Unimplemented:
		return errdefs.Unsupportedf(text, what, c.endpoint, err)
	default:
		// Other errors are the runtime's, and may be temporary.
		return errdefs.Unavailablef(text, what, c.endpoint, fmt.Errorf("%w (%s)", err, s.Code()))
	}
}
