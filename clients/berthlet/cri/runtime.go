package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/managers/errdefs"
)

// Options of a runtime.
type Options struct {
	// Endpoint is the socket, a path with or without "unix://".
	Endpoint string
	// Owner is the name of this berthlet, unique on the runtime: a label's value (letters,
	// digits, "-", "_" and ".").
	Owner string
	// LogDir holds the logs of all pods. Below it no link is followed.
	LogDir string
	// LogBytes is the size at which a log is replaced by a new file; 0 for no limit.
	LogBytes int64
	// Changed is called with the uid of a pod when one of its containers may have ended. It must
	// not block.
	Changed func(uid string)
	Now     func() time.Time
	Log     *slog.Logger
}

const (
	// callTimeout bounds calls that make or remove something; kubelets wait as long.
	callTimeout = 2 * time.Minute
	// pollPeriod is how often the states are read.
	pollPeriod = time.Second
	maxMessage = 16 << 20
)

// Runtime is a container.Runtime over CRI.
type Runtime struct {
	Options
	conn   *grpc.ClientConn
	cri    criv1.RuntimeServiceClient
	images criv1.ImageServiceClient

	background context.Context // ends with Stop
	stop       context.CancelFunc
	work       sync.WaitGroup

	known map[string]lastState // by id, from the last poll; used only by poll

	mu          sync.Mutex        // guards the fields below
	ended       map[string]ending // containers that were ended before they began, by id
	terminating map[string]bool   // containers that are being terminated, by id
}

// ending is the end of a container that never began.
type ending struct {
	at   time.Time
	code int
}

var _ container.Runtime = (*Runtime)(nil)

// New connects to a runtime, which may come up later.
func New(o Options) (*Runtime, error) {
	path := strings.TrimPrefix(o.Endpoint, "unix://")
	if !filepath.IsAbs(path) {
		return nil, errdefs.Invalidf("runtime endpoint %q: expected the absolute path of a socket, as unix:///run/containerd/containerd.sock", o.Endpoint)
	}
	timeout := backoff.DefaultConfig
	timeout.MaxDelay = time.Second
	conn, err := grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: timeout, MinConnectTimeout: 20 * time.Second}))
	if err != nil {
		return nil, errdefs.Invalidf("runtime endpoint %q: %w", o.Endpoint, err)
	}
	r := &Runtime{
		Options: o, conn: conn, cri: criv1.NewRuntimeServiceClient(conn), images: criv1.NewImageServiceClient(conn),
		ended: map[string]ending{}, terminating: map[string]bool{},
	}
	r.background, r.stop = context.WithCancel(context.Background())
	r.work.Go(r.poll)
	return r, nil
}

// Stop ends the watching; the containers continue.
func (r *Runtime) Stop() {
	r.stop()
	r.work.Wait()
	_ = r.conn.Close()
}

// failed gives an error of the runtime its class.
func failed(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	err = errors.New(s.Message())
	switch s.Code() {
	case codes.NotFound:
		return errdefs.NotFoundf("%w", err)
	case codes.InvalidArgument:
		return errdefs.Invalidf("%w", err)
	case codes.DeadlineExceeded, codes.Canceled:
		return errdefs.Deadlinef("%w", err)
	case codes.Unimplemented:
		return errdefs.Unsupportedf("%w", err)
	default:
		return errdefs.Unavailablef("%w", err)
	}
}

func missing(err error) bool { return status.Code(err) == codes.NotFound }

// wrap adds the operation and its object to an error.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, failed(err))...)
}
