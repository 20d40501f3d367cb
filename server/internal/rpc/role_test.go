package rpc_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/berthd/berth/api/access"
	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	qosv1 "github.com/berthd/berth/api/berth/qos/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
)

// everything registers what the main socket serves.
func everything() *grpc.Server {
	s := grpc.NewServer()
	admissionv1.RegisterAdmissionServiceServer(s, admissionv1.UnimplementedAdmissionServiceServer{})
	allocationv1.RegisterAllocationServiceServer(s, allocationv1.UnimplementedAllocationServiceServer{})
	cgroupv1.RegisterCgroupServiceServer(s, cgroupv1.UnimplementedCgroupServiceServer{})
	cgroupv1.RegisterPodCgroupServiceServer(s, cgroupv1.UnimplementedPodCgroupServiceServer{})
	cpuv1.RegisterCPUServiceServer(s, cpuv1.UnimplementedCPUServiceServer{})
	memoryv1.RegisterMemoryServiceServer(s, memoryv1.UnimplementedMemoryServiceServer{})
	devicev1.RegisterDeviceServiceServer(s, devicev1.UnimplementedDeviceServiceServer{})
	hintv1.RegisterHintBusServiceServer(s, hintv1.UnimplementedHintBusServiceServer{})
	inspectv1.RegisterInspectServiceServer(s, inspectv1.UnimplementedInspectServiceServer{})
	lifecyclev1.RegisterLifecycleServiceServer(s, lifecyclev1.UnimplementedLifecycleServiceServer{})
	nodev1.RegisterNodeServiceServer(s, nodev1.UnimplementedNodeServiceServer{})
	qosv1.RegisterQOSServiceServer(s, qosv1.UnimplementedQOSServiceServer{})
	fitv1.RegisterFitServiceServer(s, fitv1.UnimplementedFitServiceServer{})
	topologyv1.RegisterTopologyServiceServer(s, topologyv1.UnimplementedTopologyServiceServer{})
	podresourcesv1.RegisterPodResourcesListerServer(s, podresourcesv1.UnimplementedPodResourcesListerServer{})
	v1alpha1.RegisterPodResourcesListerServer(s, v1alpha1.UnimplementedPodResourcesListerServer{})
	healthpb.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	return s
}

func TestEveryMethodHasARole(t *testing.T) {
	t.Parallel()
	for service, info := range everything().GetServiceInfo() {
		for _, m := range info.Methods {
			role, ok := access.RoleOf("/" + service + "/" + m.Name)
			if !ok || !slices.Contains(access.Roles(), role) {
				t.Errorf("%s/%s has the role %q, want one of %q", service, m.Name, role, access.Roles())
			}
		}
	}
}

// A service that is generated and not registered here would escape the test
// above.
func TestEveryServiceIsAmongThem(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../api/berth/*/v1/*_grpc.pb.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no generated services found: %v", err)
	}
	services := everything().GetServiceInfo()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			_, name, found := strings.Cut(line, `ServiceName: "`)
			if !found {
				continue
			}
			name = strings.TrimSuffix(name, `",`)
			if name == hintv1.HintProviderService_ServiceDesc.ServiceName {
				continue // which providers serve, and berthd calls
			}
			if _, ok := services[name]; !ok {
				t.Errorf("%s of %s is not registered", name, file)
			}
		}
	}
}

// What changes something is never for those who may only read.
func TestRolesOfChanges(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]access.Role{
		admissionv1.AdmissionService_Admit_FullMethodName:             access.Agent,
		admissionv1.AdmissionService_RemovePod_FullMethodName:         access.Agent,
		admissionv1.AdmissionService_SyncPods_FullMethodName:          access.Agent,
		cgroupv1.CgroupService_Create_FullMethodName:                  access.Admin,
		cgroupv1.CgroupService_Destroy_FullMethodName:                 access.Admin,
		cgroupv1.CgroupService_Update_FullMethodName:                  access.Admin,
		cgroupv1.CgroupService_SetConfig_FullMethodName:               access.Admin,
		cgroupv1.CgroupService_ReduceCPULimits_FullMethodName:         access.Admin,
		cgroupv1.CgroupService_Plan_FullMethodName:                    access.Read,
		cgroupv1.PodCgroupService_EnsureExists_FullMethodName:         access.Admin,
		cgroupv1.PodCgroupService_Destroy_FullMethodName:              access.Admin,
		cgroupv1.PodCgroupService_ReduceCPULimits_FullMethodName:      access.Admin,
		qosv1.QOSService_UpdateCgroups_FullMethodName:                 access.Admin,
		allocationv1.AllocationService_Allocate_FullMethodName:        access.Agent,
		lifecyclev1.LifecycleService_PreStartContainer_FullMethodName: access.Agent,
		lifecyclev1.LifecycleService_PostStopContainer_FullMethodName: access.Agent,
		lifecyclev1.LifecycleService_ReportMemory_FullMethodName:      access.Agent,
		inspectv1.InspectService_Dump_FullMethodName:                  access.Admin,
		inspectv1.InspectService_GetTrace_FullMethodName:              access.Read,
		allocationv1.AllocationService_List_FullMethodName:            access.Read,
		hintv1.HintBusService_Register_FullMethodName:                 access.Provider,
		hintv1.HintBusService_Unregister_FullMethodName:               access.Provider,
		hintv1.HintBusService_ListProviders_FullMethodName:            access.Read,
		topologyv1.TopologyService_Merge_FullMethodName:               access.Read,
	} {
		if got, _ := access.RoleOf(method); got != want {
			t.Errorf("%s needs %q, want %q", method, got, want)
		}
	}
}
