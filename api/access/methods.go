package access

import "strings"

// methodRoles is the role that a method requires, by full name, or by
// service name with a trailing slash for all of its methods.
var methodRoles = map[string]Role{
	"/berth.admission.v1.AdmissionService/": Agent,
	// It moves pods of all owners.
	"/berth.admission.v1.AdmissionService/Defragment": Admin,
	"/berth.allocation.v1.AllocationService/":         Read,
	// Allocate may admit, so it is the agent's.
	"/berth.allocation.v1.AllocationService/Allocate": Agent,
	"/berth.lifecycle.v1.LifecycleService/":           Agent,
	"/berth.cpu.v1.CPUService/":                       Read,
	"/berth.memory.v1.MemoryService/":                 Read,
	"/berth.device.v1.DeviceService/":                 Read,
	"/berth.device.v1.DeviceService/ForgetResource":   Admin,
	"/berth.topology.v1.TopologyService/":             Read,
	"/berth.topology.v1.TopologyService/SetPolicy":    Admin,
	"/berth.node.v1.NodeService/":                     Read,
	"/berth.node.v1.NodeService/Reload":               Admin,
	"/berth.node.v1.NodeService/SetHugePages":         Admin,
	"/berth.fit.v1.FitService/":                       Read,
	"/berth.qos.v1.QOSService/":                       Read,
	"/berth.qos.v1.QOSService/UpdateCgroups":          Admin,
	// Whatever writes to cgroups is the admin's.
	"/berth.cgroup.v1.CgroupService/":                   Read,
	"/berth.cgroup.v1.CgroupService/Create":             Admin,
	"/berth.cgroup.v1.CgroupService/Destroy":            Admin,
	"/berth.cgroup.v1.CgroupService/Update":             Admin,
	"/berth.cgroup.v1.CgroupService/SetConfig":          Admin,
	"/berth.cgroup.v1.CgroupService/ReduceCPULimits":    Admin,
	"/berth.cgroup.v1.PodCgroupService/":                Read,
	"/berth.cgroup.v1.PodCgroupService/EnsureExists":    Admin,
	"/berth.cgroup.v1.PodCgroupService/Destroy":         Admin,
	"/berth.cgroup.v1.PodCgroupService/ReduceCPULimits": Admin,
	"/berth.hint.v1.HintBusService/":                    Provider,
	"/berth.hint.v1.HintBusService/ListProviders":       Read,
	"/berth.inspect.v1.InspectService/":                 Admin,
	// The role that reads allocations also reads their explanations.
	"/berth.inspect.v1.InspectService/GetTrace":                      Read,
	"/berth.inspect.v1.InspectService/ListTraces":                    Read,
	"/berth.inspect.v1.InspectService/ListHistory":                   Read,
	"/v1.PodResourcesLister/":                                        Read,
	"/v1alpha1.PodResourcesLister/":                                  Read,
	"/grpc.health.v1.Health/":                                        Read,
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      Read,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Read,
}

// RoleOf returns the role that a method requires; false if it has none, in
// which case it cannot be called.
func RoleOf(fullMethod string) (Role, bool) {
	if r, ok := methodRoles[fullMethod]; ok {
		return r, true
	}
	r, ok := methodRoles[fullMethod[:strings.LastIndexByte(fullMethod, '/')+1]]
	return r, ok
}
