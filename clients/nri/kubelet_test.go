package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/errdefs"
)

// podsServer answers as a kubelet does.
type podsServer struct {
	podsv1alpha1.UnimplementedPodsServer
	pod *corev1.Pod
	err error
}

func (s *podsServer) GetPod(context.Context, *podsv1alpha1.GetPodRequest) (*podsv1alpha1.GetPodResponse, error) {
	if s.err != nil {
		return nil, s.err
	}
	text, err := s.pod.Marshal()
	return &podsv1alpha1.GetPodResponse{Pod: text}, err
}

// ListPods implements the API: all that a kubelet may list of one pod.
func (s *podsServer) ListPods(context.Context, *podsv1alpha1.ListPodsRequest) (*podsv1alpha1.ListPodsResponse, error) {
	if s.err != nil {
		return nil, s.err
	}
	out := &podsv1alpha1.ListPodsResponse{}
	for uid, change := range map[string]func(*corev1.Pod){
		"new": func(*corev1.Pod) {}, "runs": func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning },
		"ended":   func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"failed":  func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"deleted": func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
	} {
		p := s.pod.DeepCopy()
		p.UID = types.UID(uid)
		change(p)
		text, err := p.Marshal()
		if err != nil {
			return nil, err
		}
		out.Pods = append(out.Pods, text)
	}
	return out, nil
}

// TestBounded: a call of the kubelet has more time if the runtime waits longer than by default.
func TestBounded(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ left, want time.Duration }{
		{0, podsTimeout}, {1200 * time.Millisecond, podsTimeout}, {100 * time.Millisecond, 100 * time.Millisecond},
		{12 * time.Second, 2400 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := t.Context(), func() {}
			if row.left > 0 {
				ctx, cancel = context.WithTimeout(ctx, row.left)
			}
			defer cancel()
			limited, end := bounded(ctx)
			defer end()
			if at, ok := limited.Deadline(); !ok || time.Until(at) != row.want {
				t.Errorf("of %v a call has %v, want %v", row.left, time.Until(at), row.want)
			}
		})
	}
}

// TestKubeletSource reads pods from a server of the kubelet's API.
func TestKubeletSource(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "pods") // the paths of sockets are short (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	k, err := newKubelet(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.close() })
	if pod, err := k.Pod(t.Context(), "u"); pod != nil || errdefs.ClassOf(err) != errdefs.Unsupported {
		t.Errorf("without a kubelet: %v, %v", pod, err)
	}
	listen := func() net.Listener {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		return l
	}
	if uids, err := k.Active(t.Context()); errdefs.ClassOf(err) != errdefs.Unsupported {
		t.Errorf("without a kubelet these pods are active: %v, %v", uids, err)
	}
	_ = listen().Close()
	if uids, err := k.Active(t.Context()); err == nil || errdefs.ClassOf(err) == errdefs.Unsupported {
		t.Errorf("with the socket of a kubelet that has not started yet these pods are active: %v", uids)
	}
	if pod, err := k.Pod(t.Context(), "u"); pod != nil || errdefs.ClassOf(err) != errdefs.Unsupported {
		t.Errorf("the socket of an earlier kubelet: %v, %v", pod, err)
	}
	_ = os.Remove(path)
	kubelet, l := &podsServer{pod: resized()}, listen()
	server := grpc.NewServer()
	podsv1alpha1.RegisterPodsServer(server, kubelet)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)

	var pod *typesv1.Pod
	nodetest.Eventually(t, time.Minute, "the kubelet answers", func() bool {
		pod, err = k.Pod(t.Context(), "u")
		return pod != nil && err == nil
	})
	if got := pod.GetSpec().GetContainers()[0].GetResources().GetRequests()["cpu"]; got != "1" || pod.GetMetadata().GetUid() != "u" {
		t.Errorf("while a resize waits: got %s of cpu, pod %v; want the 1 that the kubelet has allocated", got, pod.GetMetadata())
	}
	if pod, err := k.Pod(t.Context(), "other"); err == nil {
		t.Errorf("another pod than was asked for: %v", pod)
	}
	uids, err := k.Active(t.Context())
	if slices.Sort(uids); err != nil || !slices.Equal(uids, []string{"new", "runs"}) {
		t.Errorf("these pods are active: %v, %v", uids, err)
	}
	for code, class := range map[codes.Code]errdefs.Class{codes.FailedPrecondition: errdefs.Precondition,
		codes.Unimplemented: errdefs.Unsupported} {
		kubelet.err = status.Error(code, "no")
		if pod, err := k.Pod(t.Context(), "u"); pod != nil || errdefs.ClassOf(err) != class {
			t.Errorf("%s: %v, %v", code, pod, err)
		}
		if uids, err := k.Active(t.Context()); err == nil || errdefs.ClassOf(err) == errdefs.Unsupported != (class == errdefs.Unsupported) {
			t.Errorf("%s: these pods are active: %v, %v", code, uids, err)
		}
	}
	kubelet.err = status.Error(codes.NotFound, "no")
	if pod, err := k.Pod(t.Context(), "u"); pod != nil || err != nil {
		t.Errorf("a pod that the kubelet does not have: %v, %v", pod, err)
	}
	kubelet.err = status.Error(codes.ResourceExhausted, "too many")
	if _, err := k.Pod(t.Context(), "u"); err == nil {
		t.Error("a kubelet that has too many calls counts as one that does not know the pod")
	}
	server.Stop()
	if _, err := k.Pod(t.Context(), "u"); err == nil {
		t.Error("a kubelet that has answered and restarts counts as one that does not have the API")
	}
}

// TestKubeletWithoutThePod: a kubelet that does not have a pod has the API, also if it was killed after this answer.
func TestKubeletWithoutThePod(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.NotFound, codes.FailedPrecondition} {
		dir, err := os.MkdirTemp("", "pods") // the paths of sockets are short (unix(7))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		k, err := newKubelet(filepath.Join(dir, "s"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = k.close() })
		l, err := net.Listen("unix", k.path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		server := grpc.NewServer()
		podsv1alpha1.RegisterPodsServer(server, &podsServer{err: status.Error(code, "no")})
		go func() { _ = server.Serve(l) }()
		nodetest.Eventually(t, time.Minute, "the kubelet answers", func() bool {
			_, err := k.Pod(t.Context(), "u")
			return err == nil || errdefs.ClassOf(err) == errdefs.Precondition
		})
		server.Stop()
		if _, err := k.Pod(t.Context(), "u"); err == nil || errdefs.ClassOf(err) == errdefs.Unsupported {
			t.Errorf("%s: a kubelet that was killed: %v", code, err)
		}
	}
}

// resized is a pod that requests 3 CPUs after a resize and still has 1.
func resized() *corev1.Pod {
	cpus := func(text string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(text)}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Resources: corev1.ResourceRequirements{Requests: cpus("3")},
		}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", AllocatedResources: cpus("1"), Resources: &corev1.ResourceRequirements{Requests: cpus("1")},
		}}},
	}
}
