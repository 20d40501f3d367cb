// Package kubelet calls a kubelet over its sockets.
package kubelet

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// Timeout is the time for a call, and for a connection.
const Timeout = 500 * time.Millisecond

// PodsSocket is the socket of the Pods API (Kubernetes 1.37, KEP-4188).
const PodsSocket = "/var/lib/kubelet/pods-api/pods-api.sock"

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
