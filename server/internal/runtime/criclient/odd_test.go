package criclient_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/runtime/criclient"
)

// odd is a runtime that answers what no runtime should.
type odd struct {
	criv1.UnimplementedRuntimeServiceServer
	containers []*criv1.Container
	status     func(id string) (*criv1.ContainerStatusResponse, error)
}

func (o *odd) ListContainers(context.Context, *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	return &criv1.ListContainersResponse{Containers: o.containers}, nil
}

func (o *odd) ContainerStatus(_ context.Context, req *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	return o.status(req.GetContainerId())
}

// client connects to it.
func (o *odd) client(t *testing.T) *criclient.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "odd") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	criv1.RegisterRuntimeServiceServer(s, o)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return newBench(t, filepath.Join(dir, "s")).client
}

func labelled(id string, state criv1.ContainerState) *criv1.Container {
	return &criv1.Container{Id: id, State: state, Labels: map[string]string{
		types.KubernetesPodUIDLabel: "u", types.KubernetesContainerNameLabel: "c",
	}}
}

func TestOddLists(t *testing.T) {
	t.Parallel()
	running, exited := criv1.ContainerState_CONTAINER_RUNNING, criv1.ContainerState_CONTAINER_EXITED
	o := &odd{
		containers: []*criv1.Container{
			labelled("twice", exited), labelled("", running), labelled("odd", 7), labelled("broken", running),
			labelled("twice", running), labelled("sound", running), {},
		},
		status: func(id string) (*criv1.ContainerStatusResponse, error) {
			switch id {
			case "broken":
				return nil, status.Error(codes.Unknown, "its files are damaged")
			case "odd":
				return &criv1.ContainerStatusResponse{Info: map[string]string{"info": `{"runtimeSpec": [1]`}}, nil
			}
			return &criv1.ContainerStatusResponse{Info: map[string]string{"info": `{"runtimeSpec":{"linux":{"cgroupsPath":"/` + id +
				`"}}}`}}, nil
		},
	}
	client := o.client(t)
	// What is the matter with one container is no other's.
	listed, err := client.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range listed {
		got = append(got, fmt.Sprintf("%s %s %s", c.ID, c.Phase, c.Cgroup))
	}
	if got, want := strings.Join(got, ", "), "broken running /, odd running /, sound running /sound, twice running /twice"; got != want {
		t.Errorf("listed are %s, want %s", got, want)
	}
	// The call is repeated.
	sound := o.status
	o.status = func(string) (*criv1.ContainerStatusResponse, error) { return sound("broken once") }
	if listed, err = client.List(t.Context()); err != nil || listed[0].Cgroup.String() != "/broken once" || listed[1].Cgroup != nil {
		t.Errorf("%v, %v", listed, err)
	}
	// The list of a runtime that goes away in the middle is not complete.
	for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded} {
		o.containers = append(o.containers, labelled("new"+code.String(), running))
		o.status = func(string) (*criv1.ContainerStatusResponse, error) { return nil, status.Error(code, "gone") }
		if _, err := client.List(t.Context()); err == nil || errdefs.ClassOf(err) == errdefs.Internal {
			t.Errorf("%s: %v", code, err)
		}
	}
}
