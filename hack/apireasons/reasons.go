// Package apireasons lists the reasons with which each method of the API may fail. hack/apidoc writes
// it into the reference, and hack/apiconformance makes berthd return each reason.
//
// Words:
//
//   - reason: a value of berth.errors.v1.ErrorReason.
//   - method: a full name without the first slash, "berth.cpu.v1.CPUService/GetState".
//
// Invariants: every method of berthd is in the table, and each reason of a call that a test of
// hack/apiconformance checks.
package apireasons

import (
	e "github.com/berthd/berth/api/berth/errors/v1"
)

// Common are the reasons of every method.
var Common = []e.ErrorReason{
	e.ErrorReason_ROLE_MISSING, e.ErrorReason_TOO_MANY_CALLS, e.ErrorReason_LIMIT_EXCEEDED,
	e.ErrorReason_TEMPORARILY_UNAVAILABLE, e.ErrorReason_SHUTTING_DOWN,
	e.ErrorReason_TIMED_OUT, e.ErrorReason_CALL_CANCELED, e.ErrorReason_INTERNAL_ERROR,
}

// Short names for the table.
const (
	invalid     = e.ErrorReason_REQUEST_INVALID
	unsupported = e.ErrorReason_UNSUPPORTED_POD_FIELD
	noPod       = e.ErrorReason_POD_NOT_FOUND
	noContainer = e.ErrorReason_CONTAINER_NOT_FOUND
	noCgroup    = e.ErrorReason_CGROUP_NOT_FOUND
	noProcess   = e.ErrorReason_PROCESS_NOT_FOUND
	idUsed      = e.ErrorReason_ADMISSION_ID_USED
	specDiffers = e.ErrorReason_POD_SPEC_DIFFERS
	ownerDiffer = e.ErrorReason_OWNER_DIFFERS
	notOwner    = e.ErrorReason_OWNER_NOT_PERMITTED
	condition   = e.ErrorReason_PRECONDITION_FAILED
	notKept     = e.ErrorReason_HISTORY_NOT_KEPT
	unknown     = e.ErrorReason_REVISION_UNKNOWN
	compacted   = e.ErrorReason_REVISION_COMPACTED
	uncertain   = e.ErrorReason_LEDGER_UNCERTAIN
	noLedger    = e.ErrorReason_LEDGER_UNAVAILABLE
	deferred    = e.ErrorReason_POD_DEFERRED
	away        = e.ErrorReason_PLUGIN_AWAY
	failed      = e.ErrorReason_PLUGIN_FAILED
	served      = e.ErrorReason_RESOURCE_SERVED
	inUse       = e.ErrorReason_RESOURCE_IN_USE
	refused     = e.ErrorReason_NOT_PERMITTED
	unserved    = e.ErrorReason_NOT_SUPPORTED
	corrupt     = e.ErrorReason_DATA_CORRUPT
)

// Methods are the reasons of each method besides those of every method.
var Methods = map[string][]e.ErrorReason{
	"berth.admission.v1.AdmissionService/Admit": {
		invalid, unsupported, idUsed, specDiffers, ownerDiffer, notOwner, e.ErrorReason_ALLOCATIONS_CONTRADICT,
		condition, deferred, uncertain, noLedger,
	},
	"berth.admission.v1.AdmissionService/Resize": {
		invalid, noPod, idUsed, ownerDiffer, notOwner, unknown, e.ErrorReason_STATE_MOVED, uncertain, noLedger,
	},
	"berth.admission.v1.AdmissionService/Defragment": {invalid, unsupported, specDiffers},
	"berth.admission.v1.AdmissionService/RemovePod":  {invalid, ownerDiffer, notOwner, condition, noLedger},
	"berth.admission.v1.AdmissionService/SyncPods":   {invalid, unknown, notOwner, noLedger},

	"berth.allocation.v1.AllocationService/Allocate": {
		invalid, unsupported, noPod, noContainer, specDiffers, ownerDiffer, notOwner, e.ErrorReason_POD_REJECTED, deferred, away,
		uncertain, noLedger,
	},
	"berth.allocation.v1.AllocationService/Get":         {invalid, noPod, condition, uncertain},
	"berth.allocation.v1.AllocationService/List":        {invalid, compacted, notKept, unknown, corrupt},
	"berth.allocation.v1.AllocationService/GetRevision": {},
	"berth.allocation.v1.AllocationService/Watch":       {invalid, compacted},

	"berth.lifecycle.v1.LifecycleService/PreStartContainer": {
		invalid, noPod, noContainer, e.ErrorReason_CONTAINER_ID_BOUND, e.ErrorReason_CONTAINER_IDS_EXHAUSTED, noProcess, refused,
		notOwner, condition, failed, away, uncertain, noLedger,
	},
	"berth.lifecycle.v1.LifecycleService/PostStopContainer": {invalid, notOwner, noLedger},
	"berth.lifecycle.v1.LifecycleService/ReportMemory":      {invalid, notOwner, unknown},

	"berth.cpu.v1.CPUService/GetState":               {invalid, notKept, unknown, corrupt},
	"berth.cpu.v1.CPUService/GetTopologyHints":       {invalid, unsupported},
	"berth.cpu.v1.CPUService/GetAllocatable":         {},
	"berth.fit.v1.FitService/Fit":                    {invalid, unsupported, specDiffers, condition, notKept, unknown, corrupt},
	"berth.fit.v1.FitService/GetFreeResources":       {invalid, condition, notKept, unknown, corrupt},
	"berth.memory.v1.MemoryService/GetState":         {invalid, notKept, unknown, corrupt},
	"berth.memory.v1.MemoryService/GetTopologyHints": {invalid, unsupported},
	"berth.memory.v1.MemoryService/GetAllocatable":   {},

	"berth.device.v1.DeviceService/GetState":              {invalid, notKept, unknown, corrupt},
	"berth.device.v1.DeviceService/GetTopologyHints":      {invalid, unsupported},
	"berth.device.v1.DeviceService/GetAllocatable":        {},
	"berth.device.v1.DeviceService/ListResources":         {},
	"berth.device.v1.DeviceService/ForgetResource":        {invalid, e.ErrorReason_RESOURCE_NOT_FOUND, served, inUse, noLedger},
	"berth.device.v1.DeviceService/UpdatePluginResources": {invalid},

	"berth.topology.v1.TopologyService/GetPolicy":   {},
	"berth.topology.v1.TopologyService/SetPolicy":   {invalid, e.ErrorReason_SHARED_POOL_EMPTY, noLedger},
	"berth.topology.v1.TopologyService/Merge":       {invalid},
	"berth.topology.v1.TopologyService/GetHints":    {invalid, unsupported},
	"berth.topology.v1.TopologyService/GetAffinity": {invalid, noPod, noContainer, condition, uncertain},

	"berth.node.v1.NodeService/GetVersion":     {},
	"berth.node.v1.NodeService/GetMachine":     {},
	"berth.node.v1.NodeService/GetCapacity":    {},
	"berth.node.v1.NodeService/GetAllocatable": {},
	"berth.node.v1.NodeService/GetReservation": {},
	"berth.node.v1.NodeService/GetStatus":      {},
	"berth.node.v1.NodeService/GetConfig":      {},
	"berth.node.v1.NodeService/GetUsage":       {},
	"berth.node.v1.NodeService/SetHugePages":   {invalid, condition},
	"berth.node.v1.NodeService/Reload":         {invalid, e.ErrorReason_SHARED_POOL_EMPTY, noLedger},

	"berth.qos.v1.QOSService/GetQOSContainersInfo": {},
	"berth.qos.v1.QOSService/UpdateCgroups":        {},

	"berth.hint.v1.HintBusService/Register":      {invalid, refused, served, e.ErrorReason_PROVIDER_FAILED, noLedger},
	"berth.hint.v1.HintBusService/Unregister":    {invalid, e.ErrorReason_PROVIDER_NOT_FOUND, refused, noLedger},
	"berth.hint.v1.HintBusService/ListProviders": {},

	"berth.cgroup.v1.CgroupService/Create":          {invalid, condition},
	"berth.cgroup.v1.CgroupService/Destroy":         {invalid, condition},
	"berth.cgroup.v1.CgroupService/Update":          {invalid, condition, noCgroup},
	"berth.cgroup.v1.CgroupService/SetConfig":       {invalid, condition, noCgroup},
	"berth.cgroup.v1.CgroupService/ReduceCPULimits": {invalid, condition, noCgroup},
	"berth.cgroup.v1.CgroupService/Exists":          {invalid, condition},
	"berth.cgroup.v1.CgroupService/Validate":        {invalid, condition},
	"berth.cgroup.v1.CgroupService/GetConfig":       {invalid, condition, noCgroup, unserved},
	"berth.cgroup.v1.CgroupService/ListProcesses":   {invalid, condition},
	"berth.cgroup.v1.CgroupService/GetMemoryUsage":  {invalid, condition, noCgroup},
	"berth.cgroup.v1.CgroupService/Name":            {invalid},
	"berth.cgroup.v1.CgroupService/Plan":            {invalid, condition},
	"berth.cgroup.v1.CgroupService/List":            {},

	"berth.cgroup.v1.PodCgroupService/Exists":          {invalid},
	"berth.cgroup.v1.PodCgroupService/EnsureExists":    {invalid, noPod, uncertain},
	"berth.cgroup.v1.PodCgroupService/GetName":         {invalid},
	"berth.cgroup.v1.PodCgroupService/Destroy":         {invalid, condition},
	"berth.cgroup.v1.PodCgroupService/ReduceCPULimits": {invalid, condition},
	"berth.cgroup.v1.PodCgroupService/IsPodCgroup":     {},
	"berth.cgroup.v1.PodCgroupService/ListPods":        {},

	"berth.inspect.v1.InspectService/Dump":           {},
	"berth.inspect.v1.InspectService/StreamBundle":   {},
	"berth.inspect.v1.InspectService/StreamDump":     {},
	"berth.inspect.v1.InspectService/Check":          {},
	"berth.inspect.v1.InspectService/GetStartReport": {},
	"berth.inspect.v1.InspectService/GetTrace":       {invalid, e.ErrorReason_TRACE_NOT_FOUND},
	"berth.inspect.v1.InspectService/ListTraces":     {invalid},
	"berth.inspect.v1.InspectService/ListHistory":    {invalid, corrupt},
	"berth.inspect.v1.InspectService/Import": {invalid, specDiffers, e.ErrorReason_IMPORT_CONTRADICTS, condition, unserved,
		noLedger},
	"berth.inspect.v1.InspectService/Export": {invalid},
}
