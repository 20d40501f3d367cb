package apiconformance

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
)

// TestPodNames: calls that read one pod take its name in place of its uid.
func TestPodNames(t *testing.T) {
	t.Parallel()
	n := newNode(t, "")
	for uid, name := range map[string]string{"uid-a": "web", "uid-b": "twin", "uid-c": "twin"} {
		p := guaranteed(uid, "2", "")
		p.Metadata.Name = name
		n.admitted(p)
	}
	for _, row := range []struct {
		uid, name, found string
		code             codes.Code
	}{
		{"uid-a", "", "uid-a", codes.OK}, {"", "default/web", "uid-a", codes.OK}, {"", "web", "uid-a", codes.OK},
		{"", "shop/web", "", codes.NotFound}, {"", "uid-a", "", codes.NotFound}, {"", "twin", "", codes.FailedPrecondition},
		{"", "", "", codes.InvalidArgument},
	} {
		get, affinity := &allocationv1.GetRequest{}, &topologyv1.GetAffinityRequest{ContainerName: "main"}
		if row.uid != "" {
			get.Subject, affinity.Subject = &allocationv1.GetRequest_PodUid{PodUid: row.uid},
				&topologyv1.GetAffinityRequest_PodUid{PodUid: row.uid}
		} else if row.name != "" {
			get.Subject, affinity.Subject = &allocationv1.GetRequest_PodName{PodName: row.name},
				&topologyv1.GetAffinityRequest_PodName{PodName: row.name}
		}
		got, err := n.allocation.Get(n.ctx(), get)
		if status.Code(err) != row.code || got.GetPod().GetUid() != row.found {
			t.Errorf("Get %q, %q: %v, %v", row.uid, row.name, got.GetPod().GetUid(), err)
		}
		_, err = topologyv1.NewTopologyServiceClient(n.conn).GetAffinity(n.ctx(), affinity)
		if status.Code(err) != row.code {
			t.Errorf("GetAffinity %q, %q: %v", row.uid, row.name, err)
		}
	}
}
