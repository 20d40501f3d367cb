package app_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/machine"
)

// TestEveryMethodIsServed calls all methods of berth's services that are no streams
// with nothing in the request. Most object to that; none is unknown.
func TestEveryMethodIsServed(t *testing.T) {
	t.Parallel()
	r := recordings(t)[0]
	m, err := machine.Load(r.Machine)
	if err != nil {
		t.Fatal(err)
	}
	p := newReplay(t, r, "/", memoryTree{memtree.New(memtree.V2(), m.CPUs(), m.NodeMask()).TakeAny()})
	for _, s := range r.Steps {
		if s.Do == "start" && !s.Error {
			p.start(s)
			break
		}
	}
	services := map[string]int{}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(file.Package()), "berth.") {
			return true
		}
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			// The hint provider's is for external providers to serve.
			if service.Name() == "HintProviderService" {
				continue
			}
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				if method.IsStreamingClient() || method.IsStreamingServer() {
					continue
				}
				name := "/" + string(service.FullName()) + "/" + string(method.Name())
				err := p.daemon.conn.Invoke(t.Context(), name, &emptypb.Empty{}, &emptypb.Empty{})
				if code := status.Code(err); code == codes.Unimplemented || code == codes.Internal {
					t.Errorf("%s: %v", name, err)
				}
				services[string(service.FullName())]++
			}
		}
		return true
	})
	for _, want := range []string{
		"berth.cgroup.v1.CgroupService", "berth.cgroup.v1.PodCgroupService", "berth.qos.v1.QOSService", "berth.node.v1.NodeService",
		"berth.admission.v1.AdmissionService",
	} {
		if services[want] == 0 {
			t.Errorf("%s has no methods: %v", want, services)
		}
	}
}
