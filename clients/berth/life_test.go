package berth_test

import (
	"context"
	"path"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
)

// calls is a connection that keeps the last request.
type calls struct {
	grpc.ClientConnInterface
	method  string
	request proto.Message
}

func (c *calls) Invoke(_ context.Context, method string, req, _ any, _ ...grpc.CallOption) error {
	c.method, c.request = path.Base(method), req.(proto.Message)
	return nil
}

// TestLifeOfPod: each call sends what it is given, and the owner of the client.
func TestLifeOfPod(t *testing.T) {
	t.Parallel()
	conn := &calls{}
	c := berth.Over(conn, berth.Options{Owner: "example"})
	pod := &typesv1.Pod{Metadata: &typesv1.PodMetadata{Uid: "u"}}
	for _, row := range []struct {
		call   func(ctx context.Context) (proto.Message, error)
		method string
		want   proto.Message
	}{
		{func(ctx context.Context) (proto.Message, error) { return c.AdmitPod(ctx, pod) }, "Admit",
			&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}, Owner: "example"}},
		{func(ctx context.Context) (proto.Message, error) { return c.Allocate(ctx, "u", "main") }, "Allocate",
			&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "u"}, ContainerName: "main"}},
		{func(ctx context.Context) (proto.Message, error) { return c.PreStartContainer(ctx, "u", "main", "1", 7) }, "PreStartContainer",
			&lifecyclev1.PreStartContainerRequest{PodUid: "u", ContainerName: "main", ContainerId: "1", Pid: 7}},
		{func(ctx context.Context) (proto.Message, error) { return c.PostStopContainer(ctx, "1") }, "PostStopContainer",
			&lifecyclev1.PostStopContainerRequest{ContainerId: "1"}},
		{func(ctx context.Context) (proto.Message, error) { return c.RemovePod(ctx, "u") }, "RemovePod",
			&admissionv1.RemovePodRequest{PodUid: "u", Owner: "example"}},
	} {
		if _, err := row.call(t.Context()); err != nil {
			t.Errorf("%s: %v", row.method, err)
		}
		if r, ok := conn.request.(*admissionv1.AdmitRequest); ok {
			if r.GetAdmissionId() == "" {
				t.Error("an admission has no id")
			}
			r.AdmissionId = ""
		}
		if conn.method != row.method || !proto.Equal(conn.request, row.want) {
			t.Errorf("called %s with %v, want %s with %v", conn.method, conn.request, row.method, row.want)
		}
	}
}
