package apiconformance

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// methods returns the descriptors of all methods that berthd serves in its own packages, by
// "/package.Service/Method".
func methods(t *testing.T) map[string]protoreflect.MethodDescriptor {
	t.Helper()
	out := map[string]protoreflect.MethodDescriptor{}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(f.Package()), "berth.") {
			return true
		}
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			if s.Name() == "HintProviderService" { // served by providers
				continue
			}
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				out["/"+string(s.FullName())+"/"+string(m.Name())] = m
			}
		}
		return true
	})
	if len(out) < 50 {
		t.Fatalf("only %d methods", len(out))
	}
	return out
}

// reading are the methods that change nothing.
var reading = []string{
	"/berth.allocation.v1.AllocationService/Get", "/berth.allocation.v1.AllocationService/List",
	"/berth.allocation.v1.AllocationService/GetRevision", "/berth.allocation.v1.AllocationService/Watch",
	"/berth.cpu.v1.CPUService/", "/berth.memory.v1.MemoryService/",
	"/berth.device.v1.DeviceService/Get", "/berth.device.v1.DeviceService/List", "/berth.device.v1.DeviceService/UpdatePluginResources",
	"/berth.fit.v1.FitService/",
	"/berth.topology.v1.TopologyService/Get", "/berth.topology.v1.TopologyService/Merge",
	"/berth.node.v1.NodeService/Get", "/berth.qos.v1.QOSService/Get",
	"/berth.hint.v1.HintBusService/List",
	"/berth.cgroup.v1.CgroupService/Exists", "/berth.cgroup.v1.CgroupService/Validate", "/berth.cgroup.v1.CgroupService/GetConfig",
	"/berth.cgroup.v1.CgroupService/ListProcesses", "/berth.cgroup.v1.CgroupService/GetMemoryUsage",
	"/berth.cgroup.v1.CgroupService/Name", "/berth.cgroup.v1.CgroupService/Plan",
	"/berth.cgroup.v1.CgroupService/List",
	"/berth.cgroup.v1.PodCgroupService/Exists", "/berth.cgroup.v1.PodCgroupService/GetName",
	"/berth.cgroup.v1.PodCgroupService/IsPodCgroup",
	"/berth.cgroup.v1.PodCgroupService/ListPods",
	"/berth.inspect.v1.InspectService/Dump", "/berth.inspect.v1.InspectService/StreamDump",
	"/berth.inspect.v1.InspectService/StreamBundle", "/berth.inspect.v1.InspectService/Check",
	"/berth.inspect.v1.InspectService/Get", "/berth.inspect.v1.InspectService/ListTraces", "/berth.inspect.v1.InspectService/ListHistory",
	"/berth.inspect.v1.InspectService/Export",
}

// reads returns whether a method changes nothing.
func reads(method string) bool {
	return slices.ContainsFunc(reading, func(r string) bool {
		rest, ok := strings.CutPrefix(method, r)
		return ok && (rest == "" || strings.HasSuffix(r, "/") || strings.HasSuffix(r, "/Get") || strings.HasSuffix(r, "Service/List"))
	})
}
