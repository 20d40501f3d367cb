// Package kubelet calls a kubelet over its sockets.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/managers/errdefs"
)

// Timeout is the time for a call, and for a connection.
const Timeout = 500 * time.Millisecond

// Dir is the kubelet's directory, unless it was started with another one.
const Dir = "/var/lib/kubelet"

// PodsSocket is the socket of the Pods API (Kubernetes 1.37, KEP-4188), below the kubelet's directory.
const PodsSocket = "pods-api/pods-api.sock"

// maxPods bounds the list of all pods in bytes. A pod has at most 1.5 MiB in the API server's storage.
const maxPods = 256 << 20

// Dial prepares a connection to a socket of the kubelet. The maximum delay is short, so that a restarted kubelet is found soon.
func Dial(path string) (*grpc.ClientConn, error) {
	retry := grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
		MinConnectTimeout: Timeout,
	})
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), retry)
	if err != nil {
		return nil, fmt.Errorf("connect to the kubelet at %s: %w", path, err)
	}
	return conn, nil
}

// Pods lists all pods of the Pods API. Errors of the call are those of gRPC.
func Pods(ctx context.Context, conn grpc.ClientConnInterface) ([]corev1.Pod, error) {
	answer, err := podsv1alpha1.NewPodsClient(conn).ListPods(ctx, &podsv1alpha1.ListPodsRequest{}, grpc.MaxCallRecvMsgSize(maxPods))
	if err != nil {
		return nil, err
	}
	pods := make([]corev1.Pod, len(answer.GetPods()))
	for i, text := range answer.GetPods() {
		if err := pods[i].Unmarshal(text); err != nil {
			return nil, fmt.Errorf("read the kubelet's answer: %w", err)
		}
	}
	return pods, nil
}

// listTime is the time for the list of all pods.
const listTime = 5 * time.Second

// NodePods lists the pods of the kubelet whose directory is dir. Errors are of class Unsupported if it has no Pods API, or does not run.
func NodePods(ctx context.Context, dir string) ([]podspec.NodePod, error) {
	path := filepath.Join(dir, PodsSocket)
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeSocket {
		return nil, errdefs.Unsupportedf("the kubelet has no Pods API, or does not run: there is no socket %s", path)
	}
	conn, err := Dial(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	all, err := Pods(ctx, conn)
	switch {
	case status.Code(err) == codes.Unimplemented || err != nil && Unused(path):
		return nil, errdefs.Unsupportedf("the kubelet has no Pods API, or does not run: %w", err)
	case err != nil:
		return nil, fmt.Errorf("pods of the kubelet at %s: %w", path, err)
	}
	pods := make([]podspec.NodePod, len(all))
	for i := range all {
		if pods[i], err = podspec.FromNode(&all[i]); err != nil {
			return nil, err
		}
	}
	return pods, nil
}

// Unused reports whether no process listens on a socket. A kubelet that had the Pods API and was replaced by an older one leaves it.
func Unused(path string) bool {
	conn, err := net.DialTimeout("unix", path, Timeout)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// again is the time between two tries to watch pods.
const again = 2 * time.Second

// Watch calls changed when the pods of the kubelet whose directory is dir may have changed, until ctx ends. A kubelet may have no Pods API,
// or get it later.
func Watch(ctx context.Context, dir string, changed func()) {
	for ctx.Err() == nil {
		if conn, err := Dial(filepath.Join(dir, PodsSocket)); err == nil {
			_ = follow(ctx, conn, changed)
			_ = conn.Close()
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

// follow calls changed for each event, until there is an error.
func follow(ctx context.Context, conn grpc.ClientConnInterface, changed func()) error {
	stream, err := podsv1alpha1.NewPodsClient(conn).WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{}, grpc.MaxCallRecvMsgSize(maxPods))
	if err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		changed()
	}
}
