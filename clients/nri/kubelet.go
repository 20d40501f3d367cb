package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	kubeletapi "github.com/berthd/berth/api/kubelet"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/managers/errdefs"
)

// podsTimeout is the time for a call of the kubelet, because the runtime waits meanwhile; see bounded.
const podsTimeout = kubeletapi.Timeout

// kubelet reads pods from a kubelet (the Pods API of Kubernetes 1.37, KEP-4188).
type kubelet struct {
	path string
	conn *grpc.ClientConn
	pods podsv1alpha1.PodsClient
	// answered means that this kubelet has the API.
	answered atomic.Bool
}

// newKubelet connects when it is first needed: the kubelet may start later, or have no such API.
func newKubelet(path string) (*kubelet, error) {
	conn, err := kubeletapi.Dial(path)
	if err != nil {
		return nil, err
	}
	return &kubelet{path: path, conn: conn, pods: podsv1alpha1.NewPodsClient(conn)}, nil
}

func (k *kubelet) close() error { return k.conn.Close() }

// Pod returns the pod with a uid; nil if the kubelet has no such pod. Class Unsupported means that the kubelet has no Pods API, and
// Precondition that it does not have all pods of the API server yet.
func (k *kubelet) Pod(ctx context.Context, uid string) (*typesv1.Pod, error) {
	if _, err := os.Stat(k.path); errors.Is(err, fs.ErrNotExist) {
		return nil, errdefs.Unsupportedf("the kubelet has no Pods API, or does not run: %w", err)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	answer, err := k.pods.GetPod(ctx, &podsv1alpha1.GetPodRequest{PodUID: uid})
	if code := status.Code(err); code == codes.Unimplemented || code == codes.Unavailable && !k.answered.Load() && k.unused() {
		return nil, errdefs.Unsupportedf("the kubelet has no Pods API: %w", err)
	}
	has := []codes.Code{codes.OK, codes.NotFound, codes.FailedPrecondition}
	k.answered.Store(k.answered.Load() || slices.Contains(has, status.Code(err)))
	switch status.Code(err) {
	case codes.OK:
	case codes.NotFound:
		return nil, nil // another node's pod
	case codes.FailedPrecondition:
		return nil, errdefs.Preconditionf("the kubelet does not have the pods of the API server yet: %w", err)
	default:
		return nil, err
	}
	var pod corev1.Pod
	if err := pod.Unmarshal(answer.GetPod()); err != nil {
		return nil, fmt.Errorf("read the kubelet's answer: %w", err)
	}
	if got := string(pod.UID); got != uid {
		return nil, fmt.Errorf("the kubelet answers with pod %q, expected %q", got, uid)
	}
	podspec.TakeAllocated(&pod)
	return podspec.FromPod(&pod, podspec.Options{})
}

// Active returns the uids of the pods that have not ended and are not being deleted, as policy.Source has it.
func (k *kubelet) Active(ctx context.Context) (uids []string, err error) {
	if _, err := os.Stat(k.path); errors.Is(err, fs.ErrNotExist) {
		return nil, errdefs.Unsupportedf("the kubelet has no Pods API, or does not run: %w", err)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	pods, err := kubeletapi.Pods(ctx, k.conn)
	switch {
	case status.Code(err) == codes.Unimplemented:
		return nil, errdefs.Unsupportedf("the kubelet has no Pods API: %w", err)
	case err != nil: // after a boot berth-nri may be faster than the kubelet
		return nil, err
	}
	k.answered.Store(true)
	for i := range pods {
		if unended(&pods[i]) {
			uids = append(uids, string(pods[i].UID))
		}
	}
	return uids, nil
}

// unended reports whether a pod has not ended, and is not being deleted.
func unended(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed && pod.DeletionTimestamp == nil
}

// unused reports whether no process listens on the socket. A kubelet that had the API and was replaced
// by an older one leaves the file.
func (k *kubelet) unused() bool { return kubeletapi.Unused(k.path) }

// dial connects to the socket, and closes the connection.
func (k *kubelet) dial() error {
	conn, err := net.DialTimeout("unix", k.path, podsTimeout)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

// bounded limits a call of the kubelet: to podsTimeout, or to a fifth of the time that is left, if the runtime waits so long that
// this is more. A machine with a slow kubelet needs only a longer plugin_request_timeout in containerd.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := podsTimeout
	if at, ok := ctx.Deadline(); ok {
		limit = max(limit, time.Until(at)/5)
	}
	return context.WithTimeout(ctx, limit)
}
