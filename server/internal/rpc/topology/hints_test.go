package topology_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

// hinter answers as two providers, of which the request concerns one. It knows container
// "main" only.
type hinter struct{}

func (hinter) Hints(_ context.Context, pod workload.Pod, container string) ([]hint.Reply, error) {
	if container != "main" {
		return nil, errdefs.NotFoundf("pod %s has no container %q", pod.UID, container)
	}
	answer := hint.Answer{Kind: hint.Options, Hints: []hint.Hint{{Nodes: 0b10, Preferred: true}}}
	return []hint.Reply{
		{Provider: "device"},
		{Provider: "cpu", Answers: []hint.ResourceAnswer{{Resource: "cpu", Answer: answer}}},
	}, nil
}

// TestGetHints: all providers answer at once, in the form that Merge takes.
func TestGetHints(t *testing.T) {
	t.Parallel()
	client := serve(t)
	pod := &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: "web", Uid: "w"},
		Spec:     &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "main"}}},
	}
	got, err := client.GetHints(t.Context(), &topologyv1.GetHintsRequest{Pod: pod, ContainerName: "main"})
	if err != nil {
		t.Fatal(err)
	}
	want := &topologyv1.GetHintsResponse{Providers: []*topologyv1.ProviderHints{
		{Provider: "device"},
		{Provider: "cpu", TopologyHints: []*typesv1.TopologyHints{{
			Resource: "cpu", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS, Hints: []*typesv1.TopologyHint{on(true, 1)},
		}}},
	}}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	merged, err := client.Merge(t.Context(), &topologyv1.MergeRequest{Providers: got.GetProviders()})
	if err != nil || !merged.GetAdmit() || !proto.Equal(merged.GetHint(), on(true, 1)) {
		t.Errorf("merged: %v, %v", merged, err)
	}
	for name, row := range map[string]struct {
		req  *topologyv1.GetHintsRequest
		want rpctest.Failure
	}{
		"no pod": {&topologyv1.GetHintsRequest{}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"pod"},
			Message: "request is invalid: pod: is required",
		}},
		"unknown container": {&topologyv1.GetHintsRequest{Pod: pod, ContainerName: "who"}, rpctest.Failure{
			Code: codes.NotFound, Reason: "OBJECT_NOT_FOUND", Message: `pod w has no container "who"`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.GetHints(t.Context(), row.req)
			row.want.Check(t, err)
		})
	}
}
