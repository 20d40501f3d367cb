package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/podspec"
	"github.com/berthd/berth/managers/errdefs"
)

const (
	// podsTimeout is the time for a call of the kubelet, because the runtime waits meanwhile; see bounded.
	podsTimeout = 500 * time.Millisecond
	// maxPods bounds the kubelet's list of all pods in bytes. A pod has at most 1.5 MiB in the API server's storage.
	maxPods = 256 << 20
)

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
	conn, err := dialKubelet(path)
	if err != nil {
		return nil, err
	}
	return &kubelet{path: path, conn: conn, pods: podsv1alpha1.NewPodsClient(conn)}, nil
}

// dialKubelet prepares a connection to a socket of the kubelet. The maximum delay is short, so that
// a restarted kubelet is found soon.
func dialKubelet(path string) (*grpc.ClientConn, error) {
	retry := grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
		MinConnectTimeout: podsTimeout,
	})
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), retry)
	if err != nil {
		return nil, fmt.Errorf("connect to the kubelet at %s: %w", path, err)
	}
	return conn, nil
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
	takeAllocated(&pod)
	return podspec.FromPod(&pod, podspec.Options{})
}

// Active returns the uids of the pods that have not ended and are not being deleted, as policy.Source has it.
func (k *kubelet) Active(ctx context.Context) (uids []string, err error) {
	if _, err := os.Stat(k.path); errors.Is(err, fs.ErrNotExist) {
		return nil, errdefs.Unsupportedf("the kubelet has no Pods API, or does not run: %w", err)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	answer, err := k.pods.ListPods(ctx, &podsv1alpha1.ListPodsRequest{}, grpc.MaxCallRecvMsgSize(maxPods))
	switch {
	case status.Code(err) == codes.Unimplemented:
		return nil, errdefs.Unsupportedf("the kubelet has no Pods API: %w", err)
	case err != nil: // after a boot berth-nri may be faster than the kubelet
		return nil, err
	}
	k.answered.Store(true)
	for _, text := range answer.GetPods() {
		var pod corev1.Pod
		if err := pod.Unmarshal(text); err != nil {
			return nil, fmt.Errorf("read the kubelet's answer: %w", err)
		}
		if unended(&pod) {
			uids = append(uids, string(pod.UID))
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
func (k *kubelet) unused() bool { return errors.Is(k.dial(), syscall.ECONNREFUSED) }

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

// takeAllocated replaces the requested amounts with those that the kubelet has allocated. The pod
// runs with the allocated amounts until a resize in place is carried out. The limits in the status are those of the
// cgroup: they differ from the allocated ones for exclusive CPUs and for claims. So a container that has what it requests
// keeps its limits.
func takeAllocated(pod *corev1.Pod) {
	pending := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue
	})
	for _, list := range []struct {
		containers []corev1.Container
		statuses   []corev1.ContainerStatus
	}{
		{pod.Spec.InitContainers, pod.Status.InitContainerStatuses},
		{pod.Spec.Containers, pod.Status.ContainerStatuses},
	} {
		for i := range list.containers {
			c := &list.containers[i]
			for _, s := range list.statuses {
				if s.Name != c.Name || s.Resources == nil || s.AllocatedResources == nil || !pending &&
					sameAmounts(c.Resources.Requests, s.AllocatedResources) {
					continue
				}
				c.Resources.Requests = s.AllocatedResources
				if s.Resources.Limits != nil {
					c.Resources.Limits = s.Resources.Limits
				}
			}
		}
	}
}

// sameAmounts reports whether two lists have the same resources with the same amounts.
func sameAmounts(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
}
