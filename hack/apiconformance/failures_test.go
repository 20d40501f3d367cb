package apiconformance

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	errorsv1 "github.com/berthd/berth/api/berth/errors/v1"
	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/hack/testing/script"
)

// failure is a call that fails with a reason.
type failure struct {
	method string // without its package
	reason errorsv1.ErrorReason
	// request prepares the node, and makes the request.
	request func(n *node) proto.Message
	// agent makes the call as the user with the role agent, in place of root.
	agent bool
}

// is is a request that needs no preparation.
func is(m proto.Message) func(*node) proto.Message {
	return func(*node) proto.Message { return m }
}

// each makes a row for each of several methods.
func each(methods []string, reason errorsv1.ErrorReason, request func(n *node) proto.Message) (rows []failure) {
	for _, m := range methods {
		rows = append(rows, failure{method: m, reason: reason, request: request})
	}
	return rows
}

func admission(p *typesv1.Pod) *admissionv1.AdmitRequest { return admit("", p) }

func allocate(p *typesv1.Pod) *allocationv1.AllocateRequest {
	return &allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_Pod{Pod: p}, ContainerName: "main"}
}

func allocateUID(uid, container string) *allocationv1.AllocateRequest {
	return &allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: uid}, ContainerName: container}
}

func get(uid string) *allocationv1.GetRequest {
	return &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}}
}

func affinity(uid, container string) *topologyv1.GetAffinityRequest {
	return &topologyv1.GetAffinityRequest{Subject: &topologyv1.GetAffinityRequest_PodUid{PodUid: uid}, ContainerName: container}
}

func resize(uid, id, cpu string, revision uint64) *admissionv1.ResizeRequest {
	return &admissionv1.ResizeRequest{PodUid: uid, AdmissionId: id, IfRevision: revision, Containers: []*admissionv1.ContainerResources{{
		ContainerName: "main", Resources: &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": cpu}},
	}}}
}

func start(uid, container, id string) *lifecyclev1.PreStartContainerRequest {
	return &lifecyclev1.PreStartContainerRequest{PodUid: uid, ContainerName: container, ContainerId: id}
}

func syncRequest(n *node, revision uint64) *admissionv1.SyncPodsRequest {
	return &admissionv1.SyncPodsRequest{ActivePodUids: []string{"a", "b"}, KnownRevision: revision}
}

func cpuFile(pods ...*typesv1.Pod) *inspectv1.ImportRequest {
	return &inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: []byte(imported), Pods: pods}
}

// claiming is a pod that berth does not support.
func claiming() *typesv1.Pod {
	p := burstable("claims")
	p.Spec.ResourceClaims = []*typesv1.PodResourceClaim{{Name: "gpu"}}
	return p
}

// wants returns a pod that requests a device.
func wants(uid, resource string) *typesv1.Pod {
	r := map[string]string{"cpu": "1", "memory": "16Mi", resource: "1"}
	return pod(uid, r, r)
}

var (
	removals = []string{"AdmissionService/RemovePod"}
	syncs    = []string{"AdmissionService/SyncPods"}
)

// named returns requests with the name of a cgroup, for every method that takes one.
func named(name string) map[string]proto.Message {
	return map[string]proto.Message{
		"CgroupService/Create":          &cgroupv1.CreateRequest{Name: name},
		"CgroupService/Destroy":         &cgroupv1.DestroyRequest{Name: name},
		"CgroupService/Update":          &cgroupv1.UpdateRequest{Name: name, Resources: limits},
		"CgroupService/SetConfig":       &cgroupv1.SetConfigRequest{Name: name, Resources: limits},
		"CgroupService/ReduceCPULimits": &cgroupv1.ReduceCPULimitsRequest{Name: name},
		"CgroupService/Exists":          &cgroupv1.ExistsRequest{Name: name},
		"CgroupService/Validate":        &cgroupv1.ValidateRequest{Name: name},
		"CgroupService/GetConfig":       &cgroupv1.GetConfigRequest{Name: name},
		"CgroupService/ListProcesses":   &cgroupv1.ListProcessesRequest{Name: name},
		"CgroupService/GetMemoryUsage":  &cgroupv1.GetMemoryUsageRequest{Name: name},
		"CgroupService/Plan":            &cgroupv1.PlanRequest{Name: name, Resources: limits},
	}
}

// onCgroups are rows of all methods with the name of a cgroup, but for some.
func onCgroups(reason errorsv1.ErrorReason, name string, but ...string) (rows []failure) {
	for method, request := range named(name) {
		skip := false
		for _, b := range but {
			skip = skip || b == method
		}
		if !skip {
			rows = append(rows, failure{method: method, reason: reason, request: is(request)})
		}
	}
	return rows
}

// memoryOn0 is the report of a container that may use memory of NUMA node 0.
func memoryOn0(id string, revision uint64) proto.Message {
	return &lifecyclev1.ReportMemoryRequest{ContainerId: id, Revision: revision, MemoryNodes: &typesv1.NUMANodeSet{Ids: []uint32{0}}}
}

// invalids have an invalid request for every method that can have one.
func invalids() (rows []failure) {
	policy := &topologyv1.SetPolicyRequest{TopologyPolicy: ptr("loose")}
	for method, request := range map[string]proto.Message{
		"AdmissionService/Admit":              &admissionv1.AdmitRequest{},
		"AdmissionService/Resize":             &admissionv1.ResizeRequest{},
		"AdmissionService/Defragment":         &admissionv1.DefragmentRequest{},
		"NodeService/SetHugePages":            &nodev1.SetHugePagesRequest{},
		"AdmissionService/RemovePod":          &admissionv1.RemovePodRequest{},
		"AdmissionService/SyncPods":           &admissionv1.SyncPodsRequest{ActivePodUids: []string{"a", "b"}},
		"AllocationService/Allocate":          &allocationv1.AllocateRequest{},
		"AllocationService/Get":               &allocationv1.GetRequest{},
		"AllocationService/List":              &allocationv1.ListRequest{PageSize: 100_000},
		"AllocationService/Watch":             &allocationv1.WatchRequest{Types: []allocationv1.EventType{99}},
		"LifecycleService/PreStartContainer":  &lifecyclev1.PreStartContainerRequest{},
		"LifecycleService/PostStopContainer":  &lifecyclev1.PostStopContainerRequest{},
		"LifecycleService/ReportMemory":       &lifecyclev1.ReportMemoryRequest{},
		"CPUService/GetTopologyHints":         &cpuv1.GetTopologyHintsRequest{},
		"MemoryService/GetTopologyHints":      &memoryv1.GetTopologyHintsRequest{},
		"DeviceService/GetTopologyHints":      &devicev1.GetTopologyHintsRequest{},
		"DeviceService/ForgetResource":        &devicev1.ForgetResourceRequest{},
		"DeviceService/UpdatePluginResources": &devicev1.UpdatePluginResourcesRequest{},
		"TopologyService/SetPolicy":           policy,
		"TopologyService/Merge":               &topologyv1.MergeRequest{Policy: "loose"},
		"TopologyService/GetHints":            &topologyv1.GetHintsRequest{},
		"TopologyService/GetAffinity":         &topologyv1.GetAffinityRequest{},
		"HintBusService/Register":             &hintv1.RegisterRequest{},
		"HintBusService/Unregister":           &hintv1.UnregisterRequest{},
		"CgroupService/Name":                  &cgroupv1.NameRequest{},
		"PodCgroupService/Exists":             &cgroupv1.PodCgroupServiceExistsRequest{},
		"PodCgroupService/EnsureExists":       &cgroupv1.EnsureExistsRequest{},
		"PodCgroupService/GetName":            &cgroupv1.GetNameRequest{},
		"PodCgroupService/Destroy":            &cgroupv1.PodCgroupServiceDestroyRequest{},
		"PodCgroupService/ReduceCPULimits":    &cgroupv1.PodCgroupServiceReduceCPULimitsRequest{},
		"InspectService/GetTrace":             &inspectv1.GetTraceRequest{},
		"InspectService/ListTraces":           &inspectv1.ListTracesRequest{PageSize: 100_000},
		"InspectService/ListHistory":          &inspectv1.ListHistoryRequest{PageSize: 100_000},
		"CPUService/GetState":                 &cpuv1.GetStateRequest{At: &typesv1.Moment{}},
		"FitService/Fit":                      &fitv1.FitRequest{},
		"FitService/GetFreeResources":         &fitv1.GetFreeResourcesRequest{At: &typesv1.Moment{}},
		"MemoryService/GetState":              &memoryv1.GetStateRequest{At: &typesv1.Moment{}},
		"DeviceService/GetState":              &devicev1.GetStateRequest{At: &typesv1.Moment{}},
		"InspectService/Import":               &inspectv1.ImportRequest{},
		"InspectService/Export":               &inspectv1.ExportRequest{},
	} {
		rows = append(rows, failure{method: method, reason: errorsv1.ErrorReason_REQUEST_INVALID, request: is(request)})
	}
	return append(rows, onCgroups(errorsv1.ErrorReason_REQUEST_INVALID, "/../etc")...)
}

// setting is a node with the calls that fail there, in order.
type setting struct {
	name, config string
	flags        []string
	disk         bool // the ledger is on a small disk of its own
	prepare      func(n *node)
	rows         []failure
}

// settings have every method with every reason that it can have, but for those in unreached.
func settings() []setting {
	return []setting{
		{
			name: "healthy", config: fmt.Sprintf("access: [{uid: %d, roles: [agent, provider], owners: [another]}]\nproviders: {external: {connect: 1s}}\n", unprivileged),
			// Pod a has CPUs and a device of its own, pod b shares CPUs, pod c is another owner's.
			prepare: func(n *node) {
				n.plugin()
				n.admitted(guaranteed("a", "2", "1"))
				n.admitted(burstable("b"))
				theirs := admit("of-c", burstable("c"))
				theirs.Owner = "another"
				if _, err := n.admission.Admit(n.ctx(), theirs); err != nil {
					n.t.Fatal(err)
				}
				serveProvider(n)
			},
			rows: slicesOf(invalids(), healthy()),
		},
		{
			name: "without deferrals", config: "verdicts: {deferred: false}\n", prepare: func(*node) {},
			rows: []failure{
				{method: "AdmissionService/Admit", reason: errorsv1.ErrorReason_POD_DEFERRED,
					request: is(admission(wants("w", "example.com/nobody")))},
				{method: "InspectService/Import", reason: errorsv1.ErrorReason_PRECONDITION_FAILED, request: is(cpuFile())},
			},
		},
		{
			name: "cgroups of others", flags: []string{"--cgroup-root", "/"}, prepare: func(*node) {},
			rows: onCgroups(errorsv1.ErrorReason_PRECONDITION_FAILED, "/system.slice"),
		},
		{
			name: "pods without cgroups", flags: []string{"--cgroups-per-qos=false", "--enforce-node-allocatable="},
			prepare: func(n *node) { n.admitted(burstable("b")) },
			rows: []failure{
				{method: "LifecycleService/PreStartContainer", reason: errorsv1.ErrorReason_PRECONDITION_FAILED,
					request: func(*node) proto.Message {
						req := start("b", "main", "c1")
						req.Pid = int32(os.Getpid())
						return req
					}},
			},
		},
		{
			name: "the ledger was lost", config: "verdicts: {deferred: false}\n", prepare: func(n *node) {
				n.admitted(guaranteed("a", "2", ""))
				_ = n.berthd.End(os.Kill)
				if err := os.WriteFile(n.ledger(), []byte("damage"), 0o600); err != nil {
					n.t.Fatal(err)
				}
				n.start()
			},
			rows: []failure{
				{method: "AdmissionService/Admit", reason: errorsv1.ErrorReason_LEDGER_UNCERTAIN,
					request: is(admission(guaranteed("new", "2", "")))},
				{method: "AdmissionService/Resize", reason: errorsv1.ErrorReason_LEDGER_UNCERTAIN, request: is(resize("x", "", "1", 0))},
				{method: "AllocationService/Get", reason: errorsv1.ErrorReason_LEDGER_UNCERTAIN, request: is(get("x"))},
				{method: "AllocationService/Allocate", reason: errorsv1.ErrorReason_LEDGER_UNCERTAIN,
					request: is(allocateUID("x", "main"))},
				{method: "TopologyService/GetAffinity", reason: errorsv1.ErrorReason_LEDGER_UNCERTAIN, request: is(affinity("x", "main"))},
				{method: "LifecycleService/PreStartContainer", reason: errorsv1.ErrorReason_LEDGER_UNCERTAIN,
					request: is(start("x", "main", "c1"))},
				{method: "PodCgroupService/EnsureExists", reason: errorsv1.ErrorReason_LEDGER_UNCERTAIN,
					request: is(&cgroupv1.EnsureExistsRequest{PodUid: "x"})},
			},
		},
		{
			name: "all CPUs are held", prepare: func(n *node) { n.admitted(burstable("s")); n.admitted(guaranteed("all", "15", "")) },
			rows: []failure{
				{method: "TopologyService/SetPolicy", reason: errorsv1.ErrorReason_SHARED_POOL_EMPTY, request: is(strictly())},
				{method: "NodeService/Reload", reason: errorsv1.ErrorReason_SHARED_POOL_EMPTY, request: func(n *node) proto.Message {
					n.configure("cpu: {options: {strict-cpu-reservation: \"true\"}}\n")
					return &nodev1.ReloadRequest{}
				}},
				{method: "NodeService/Reload", reason: errorsv1.ErrorReason_REQUEST_INVALID, request: func(n *node) proto.Message {
					n.configure("cpu: {colour: red}\n")
					return &nodev1.ReloadRequest{}
				}},
			},
		},
		{
			name: "the ledger's file is cut", prepare: func(n *node) {
				n.admitted(burstable("p"))
				n.admitted(burstable("q"))
				if err := os.Truncate(n.ledger(), 2*int64(os.Getpagesize())); err != nil {
					n.t.Fatal(err)
				}
			},
			rows: []failure{
				{method: "InspectService/ListHistory", reason: errorsv1.ErrorReason_DATA_CORRUPT,
					request: is(&inspectv1.ListHistoryRequest{})},
				{method: "AllocationService/List", reason: errorsv1.ErrorReason_DATA_CORRUPT,
					request: func(n *node) proto.Message { return &allocationv1.ListRequest{At: n.earlier()} }},
				{method: "CPUService/GetState", reason: errorsv1.ErrorReason_DATA_CORRUPT,
					request: func(n *node) proto.Message { return &cpuv1.GetStateRequest{At: n.earlier()} }},
				{method: "FitService/Fit", reason: errorsv1.ErrorReason_DATA_CORRUPT, request: func(n *node) proto.Message {
					return &fitv1.FitRequest{At: n.earlier(), Pods: []*typesv1.Pod{burstable("fits")}}
				}},
				{method: "FitService/GetFreeResources", reason: errorsv1.ErrorReason_DATA_CORRUPT,
					request: func(n *node) proto.Message { return &fitv1.GetFreeResourcesRequest{At: n.earlier()} }},
				{method: "MemoryService/GetState", reason: errorsv1.ErrorReason_DATA_CORRUPT,
					request: func(n *node) proto.Message { return &memoryv1.GetStateRequest{At: n.earlier()} }},
				{method: "DeviceService/GetState", reason: errorsv1.ErrorReason_DATA_CORRUPT,
					request: func(n *node) proto.Message { return &devicev1.GetStateRequest{At: n.earlier()} }},
			},
		},
		{
			name: "the disk is full", disk: true, prepare: func(n *node) {
				n.pluginOf("example.com/tape")()
				n.admitted(burstable("p"))
				n.admitted(burstable("q"))
				serveProvider(n)
				if _, err := hintv1.NewHintBusServiceClient(n.conn).Register(n.ctx(),
					registration(n).(*hintv1.RegisterRequest)); err != nil {
					n.t.Fatal(err)
				}
				if _, err := lifecyclev1.NewLifecycleServiceClient(n.conn).PreStartContainer(n.ctx(),
					start("p", "main", "c1")); err != nil {
					n.t.Fatal(err)
				}
				n.fillDisk()
			},
			rows: unwritable(),
		},
	}
}

// earlier is the state before the last change.
func (n *node) earlier() *typesv1.Moment {
	return &typesv1.Moment{Moment: &typesv1.Moment_Revision{Revision: n.revision() - 1}}
}

// ledger is the ledger's file.
func (n *node) ledger() string {
	n.t.Helper()
	found, err := filepath.Glob(filepath.Join(n.root, "*", "ledger.db"))
	if err != nil || len(found) != 1 {
		n.t.Fatalf("ledgers: %q, %v", found, err)
	}
	return found[0]
}

// mountDisk has the ledger on a small disk, which lasts as long as the test.
func (n *node) mountDisk() {
	n.t.Helper()
	dir := filepath.Dir(n.ledger())
	_ = n.berthd.End(os.Kill)
	if err := syscall.Mount("berthtest", dir, "tmpfs", 0, "size=512k,mode=0700"); err != nil {
		n.t.Skipf("needs the right to mount a file system: %v", err)
	}
	n.t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			n.t.Error(err)
		}
	})
	n.start()
}

// fillDisk fills the disk of mountDisk and removes the ledger's file, so the next commit needs
// room for a new one.
func (n *node) fillDisk() {
	n.t.Helper()
	file := n.ledger()
	f, err := os.OpenFile(filepath.Join(filepath.Dir(file), "filler"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		n.t.Fatal(err)
	}
	if err := errors.Join(f.Close(), os.Remove(file)); err != nil {
		n.t.Fatal(err)
	}
}

func slicesOf(lists ...[]failure) (all []failure) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// strictly keeps the reserved CPUs from containers that share CPUs.
func strictly() *topologyv1.SetPolicyRequest {
	return &topologyv1.SetPolicyRequest{CpuOptions: &topologyv1.Values{Values: map[string]string{"strict-cpu-reservation": "true"}}}
}

func unwritable() []failure {
	const r = errorsv1.ErrorReason_LEDGER_UNAVAILABLE
	return slicesOf([]failure{
		{method: "AdmissionService/Admit", reason: r, request: is(admission(burstable("new")))},
		{method: "AllocationService/Allocate", reason: r, request: is(allocate(burstable("new")))},
		{method: "AdmissionService/Resize", reason: r, request: is(resize("p", "", "300m", 0))},
		{method: "LifecycleService/PreStartContainer", reason: r, request: is(start("q", "main", "c2"))},
		{method: "LifecycleService/PostStopContainer", reason: r, request: is(&lifecyclev1.PostStopContainerRequest{ContainerId: "c1"})},
		{method: "DeviceService/ForgetResource", reason: r, request: is(&devicev1.ForgetResourceRequest{Resource: "example.com/tape"})},
		{method: "TopologyService/SetPolicy", reason: r, request: is(strictly())},
		{method: "NodeService/Reload", reason: r, request: func(n *node) proto.Message {
			n.configure("cpu: {options: {strict-cpu-reservation: \"true\"}}\n")
			return &nodev1.ReloadRequest{}
		}},
		{method: "InspectService/Import", reason: r, request: is(cpuFile(guaranteed("a", "2", ""), guaranteed("b", "4", "")))},
		{method: "HintBusService/Register", reason: r, request: func(n *node) proto.Message {
			m := registration(n).(*hintv1.RegisterRequest)
			m.Index = 5
			return m
		}},
		{method: "HintBusService/Unregister", reason: r, request: is(&hintv1.UnregisterRequest{Provider: "slots"})},
	}, each(removals, r, is(&admissionv1.RemovePodRequest{PodUid: "q"})),
		each(syncs, r, func(n *node) proto.Message {
			return &admissionv1.SyncPodsRequest{KnownRevision: n.revision(), AllowEmpty: true}
		}))
}

// theirs are requests about a pod of another owner.
func theirs(reason errorsv1.ErrorReason, agent bool, uid, owner string) []failure {
	a, l, r := admission(burstable(uid)), allocate(burstable(uid)), resize(uid, "", "300m", 0)
	a.Owner, l.Owner, r.Owner = owner, owner, owner
	rows := slicesOf([]failure{
		{method: "AdmissionService/Admit", reason: reason, request: is(a)},
		{method: "AllocationService/Allocate", reason: reason, request: is(l)},
		{method: "AdmissionService/Resize", reason: reason, request: is(r)},
	}, each(removals, reason, is(&admissionv1.RemovePodRequest{PodUid: uid, Owner: owner})))
	for i := range rows {
		rows[i].agent = agent
	}
	return rows
}

func healthy() []failure {
	const (
		unsupported = errorsv1.ErrorReason_UNSUPPORTED_POD_FIELD
		noPod       = errorsv1.ErrorReason_POD_NOT_FOUND
		noContainer = errorsv1.ErrorReason_CONTAINER_NOT_FOUND
		noCgroup    = errorsv1.ErrorReason_CGROUP_NOT_FOUND
		notOwner    = errorsv1.ErrorReason_OWNER_NOT_PERMITTED
		condition   = errorsv1.ErrorReason_PRECONDITION_FAILED
		unknown     = errorsv1.ErrorReason_REVISION_UNKNOWN
		notKept     = errorsv1.ErrorReason_HISTORY_NOT_KEPT
		compacted   = errorsv1.ErrorReason_REVISION_COMPACTED
		specDiffers = errorsv1.ErrorReason_POD_SPEC_DIFFERS
		refused     = errorsv1.ErrorReason_NOT_PERMITTED
		served      = errorsv1.ErrorReason_RESOURCE_SERVED
		idUsed      = errorsv1.ErrorReason_ADMISSION_ID_USED
	)
	later := func(n *node) uint64 { return n.revision() + 1000 }
	twins := func(n *node) {
		for _, uid := range []string{"twin-1", "twin-2"} {
			p := burstable(uid)
			p.Metadata.Name = "twin"
			n.admitted(p)
		}
	}
	first := &typesv1.Moment{Moment: &typesv1.Moment_Revision{Revision: 1}}
	last := &typesv1.Moment{Moment: &typesv1.Moment_Revision{Revision: math.MaxUint64}}
	rows := slicesOf(
		theirs(errorsv1.ErrorReason_OWNER_DIFFERS, false, "c", "third"),
		theirs(notOwner, true, "b", ""),
		onCgroups(noCgroup, extra, "CgroupService/Create", "CgroupService/Destroy", "CgroupService/Exists", "CgroupService/Validate",
			"CgroupService/Plan",
			"CgroupService/ListProcesses"),
		[]failure{
			{method: "AdmissionService/Admit", reason: unsupported, request: is(admission(claiming()))},
			{method: "AdmissionService/Admit", reason: condition,
				request: is(&admissionv1.AdmitRequest{
					Subject: &admissionv1.AdmitRequest_ResourceClaim{ResourceClaim: &admissionv1.ResourceClaim{
						Uid: "unclaimed", Name: "c", Devices: []*admissionv1.ClaimDevice{{Name: "place",
							Resources: map[string]string{"cpu": "1", "memory": "1Gi"}}},
					}}})},
			{method: "AllocationService/Allocate", reason: unsupported, request: is(allocate(claiming()))},
			{method: "CPUService/GetTopologyHints", reason: unsupported, request: is(&cpuv1.GetTopologyHintsRequest{Pod: claiming()})},
			{method: "AdmissionService/Defragment", reason: unsupported, request: is(&admissionv1.DefragmentRequest{Pod: claiming()})},
			{method: "FitService/Fit", reason: unsupported, request: is(&fitv1.FitRequest{Pods: []*typesv1.Pod{claiming()}})},
			{method: "MemoryService/GetTopologyHints", reason: unsupported,
				request: is(&memoryv1.GetTopologyHintsRequest{Pod: claiming()})},
			{method: "DeviceService/GetTopologyHints", reason: unsupported,
				request: is(&devicev1.GetTopologyHintsRequest{Pod: claiming()})},
			{method: "TopologyService/GetHints", reason: unsupported, request: is(&topologyv1.GetHintsRequest{Pod: claiming()})},

			{method: "NodeService/SetHugePages", reason: condition, request: is(&nodev1.SetHugePagesRequest{Pools: pools(0, 1)})},

			{method: "AdmissionService/Resize", reason: noPod, request: is(resize("none", "", "1", 0))},
			{method: "AllocationService/Allocate", reason: noPod, request: is(allocateUID("none", "main"))},
			{method: "AllocationService/Get", reason: noPod, request: is(get("none"))},
			{method: "TopologyService/GetAffinity", reason: noPod, request: is(affinity("none", "main"))},
			{method: "LifecycleService/PreStartContainer", reason: noPod, request: is(start("none", "main", "c0"))},
			{method: "PodCgroupService/EnsureExists", reason: noPod, request: is(&cgroupv1.EnsureExistsRequest{PodUid: "none"})},

			{method: "AllocationService/Allocate", reason: noContainer, request: is(allocateUID("a", "none"))},
			{method: "TopologyService/GetAffinity", reason: noContainer, request: is(affinity("a", "none"))},
			{method: "LifecycleService/PreStartContainer", reason: noContainer, request: is(start("a", "none", "c0"))},

			{method: "AdmissionService/Admit", reason: idUsed, request: is(admit("of-a", burstable("other")))},
			{method: "AdmissionService/Admit", reason: specDiffers, request: is(admission(burstable("a")))},
			{method: "AdmissionService/Defragment", reason: specDiffers, request: is(&admissionv1.DefragmentRequest{Pod: burstable("a")})},
			{method: "FitService/Fit", reason: specDiffers, request: is(&fitv1.FitRequest{Pods: []*typesv1.Pod{burstable("a")}})},
			{method: "AllocationService/Allocate", reason: specDiffers, request: is(allocate(burstable("a")))},
			{method: "AllocationService/Allocate", reason: errorsv1.ErrorReason_POD_REJECTED,
				request: is(allocate(guaranteed("large", "1000", "")))},
			{method: "AllocationService/Allocate", reason: errorsv1.ErrorReason_POD_DEFERRED,
				request: is(allocate(wants("w", "example.com/nobody")))},
			{method: "AllocationService/Allocate", reason: errorsv1.ErrorReason_PLUGIN_AWAY, request: func(n *node) proto.Message {
				n.pluginOf("example.com/tape")()
				return allocate(wants("w", "example.com/tape"))
			}},
			{method: "AdmissionService/Admit", reason: errorsv1.ErrorReason_ALLOCATIONS_CONTRADICT, request: func(n *node) proto.Message {
				view, err := n.allocation.Get(n.ctx(), get("a"))
				if err != nil {
					n.t.Fatal(err)
				}
				req := admission(guaranteed("thief", "2", ""))
				req.RunningAllocations = []*admissionv1.RunningAllocation{{ContainerName: "main",
					Cpus: view.GetPod().GetContainers()[0].GetCpus()}}
				return req
			}},

			{method: "AdmissionService/Resize", reason: unknown,
				request: func(n *node) proto.Message { return resize("b", "", "300m", later(n)) }},
			{method: "AdmissionService/Resize", reason: errorsv1.ErrorReason_STATE_MOVED, request: func(n *node) proto.Message {
				read := n.revision()
				if _, err := n.admission.Resize(n.ctx(), resize("b", "first", "300m", read)); err != nil {
					n.t.Fatal(err)
				}
				return resize("b", "", "400m", read)
			}},
			{method: "AdmissionService/Resize", reason: idUsed, request: is(resize("b", "first", "500m", 0))},
			{method: "AllocationService/Get", reason: condition, request: func(n *node) proto.Message {
				twins(n)
				return &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodName{PodName: "twin"}}
			}},
			{method: "TopologyService/GetAffinity", reason: condition, request: is(&topologyv1.GetAffinityRequest{
				Subject: &topologyv1.GetAffinityRequest_PodName{PodName: "twin"}, ContainerName: "main",
			})},
			{method: "AllocationService/Watch", reason: compacted, request: func(n *node) proto.Message {
				return &allocationv1.WatchRequest{FromRevision: later(n)}
			}},
			{method: "AllocationService/Watch", reason: compacted, request: is(&allocationv1.WatchRequest{FromRevision: 1})},
			{method: "AllocationService/List", reason: compacted, request: func(n *node) proto.Message {
				page, err := n.allocation.List(n.ctx(), &allocationv1.ListRequest{PageSize: 1})
				for i := 0; err == nil && i < 20; i++ { // each admission makes another revision, and each list keeps one
					n.admitted(burstable(fmt.Sprint("page", i)))
					_, err = n.allocation.List(n.ctx(), &allocationv1.ListRequest{PageSize: 1})
				}
				if err != nil {
					n.t.Fatal(err)
				}
				return &allocationv1.ListRequest{PageSize: 1, PageToken: page.GetNextPageToken()}
			}},

			{method: "LifecycleService/PreStartContainer", reason: errorsv1.ErrorReason_CONTAINER_ID_BOUND,
				request: func(n *node) proto.Message {
					if _, err := lifecyclev1.NewLifecycleServiceClient(n.conn).PreStartContainer(n.ctx(),
						start("a", "main", "c1")); err != nil {
						n.t.Fatal(err)
					}
					return start("b", "main", "c1")
				}},
			{method: "LifecycleService/PreStartContainer", reason: errorsv1.ErrorReason_PROCESS_NOT_FOUND, agent: true,
				request: func(*node) proto.Message {
					req := start("c", "main", "c2")
					req.Pid = 1 << 30 // above the kernel's largest
					return req
				}},
			{method: "LifecycleService/PreStartContainer", reason: refused, agent: true, request: func(*node) proto.Message {
				req := start("c", "main", "c3")
				req.Pid = int32(os.Getpid())
				return req
			}},
			{method: "LifecycleService/PreStartContainer", reason: notOwner, agent: true, request: is(start("a", "main", "c4"))},
			{method: "LifecycleService/PostStopContainer", reason: notOwner, agent: true,
				request: is(&lifecyclev1.PostStopContainerRequest{ContainerId: "c1"})},
			{method: "LifecycleService/ReportMemory", reason: notOwner, agent: true,
				request: is(&lifecyclev1.ReportMemoryRequest{ContainerId: "c1"})},
			{method: "LifecycleService/ReportMemory", reason: unknown,
				request: func(n *node) proto.Message { return memoryOn0("c1", later(n)) }},
			{method: "LifecycleService/PreStartContainer", reason: errorsv1.ErrorReason_PLUGIN_FAILED,
				request: func(n *node) proto.Message {
					p, _ := n.pluginWith(script.Config{Resource: "example.com/sour", PreStart: true})
					p.Behave(script.PreStart, script.Refuse)
					n.admitted(wants("sour", "example.com/sour"))
					return start("sour", "main", "c5")
				}},
			{method: "LifecycleService/PreStartContainer", reason: errorsv1.ErrorReason_PLUGIN_AWAY, request: func(n *node) proto.Message {
				_, end := n.pluginWith(script.Config{Resource: "example.com/gone", PreStart: true})
				n.admitted(wants("gone", "example.com/gone"))
				end()
				n.eventually("the plugin is away", func() bool {
					return n.resource("example.com/gone").GetPluginState() != typesv1.PluginState_PLUGIN_STATE_CONNECTED
				})
				return start("gone", "main", "c6")
			}},

			{method: "DeviceService/ForgetResource", reason: errorsv1.ErrorReason_RESOURCE_NOT_FOUND,
				request: is(&devicev1.ForgetResourceRequest{Resource: "example.com/none"})},
			{method: "DeviceService/ForgetResource", reason: errorsv1.ErrorReason_RESOURCE_IN_USE,
				request: is(&devicev1.ForgetResourceRequest{Resource: gpu})},
			{method: "DeviceService/ForgetResource", reason: served, request: func(n *node) proto.Message {
				n.pluginOf("example.com/card")
				return &devicev1.ForgetResourceRequest{Resource: "example.com/card"}
			}},
			{method: "HintBusService/Register", reason: served, request: func(n *node) proto.Message {
				m := registration(n).(*hintv1.RegisterRequest)
				m.Resources = []string{gpu}
				return m
			}},
			{method: "HintBusService/Register", reason: refused, request: func(n *node) proto.Message {
				m := registration(n).(*hintv1.RegisterRequest)
				m.Mode = hintv1.Mode_MODE_REQUIRED
				return m
			}},
			{method: "HintBusService/Register", reason: errorsv1.ErrorReason_PROVIDER_FAILED, request: func(n *node) proto.Message {
				m := registration(n).(*hintv1.RegisterRequest)
				m.Endpoint = filepath.Join(n.root, "berth.sock") // it serves no provider
				return m
			}},
			{method: "HintBusService/Unregister", reason: errorsv1.ErrorReason_PROVIDER_NOT_FOUND,
				request: is(&hintv1.UnregisterRequest{Provider: "none"})},
			{method: "HintBusService/Unregister", reason: refused, agent: true, request: func(n *node) proto.Message {
				if _, err := hintv1.NewHintBusServiceClient(n.conn).Register(n.ctx(),
					registration(n).(*hintv1.RegisterRequest)); err != nil {
					n.t.Fatal(err)
				}
				return &hintv1.UnregisterRequest{Provider: "slots"}
			}},

			{method: "CgroupService/GetConfig", reason: errorsv1.ErrorReason_NOT_SUPPORTED,
				request: is(&cgroupv1.GetConfigRequest{Name: "/node/kubepods", Resource: "example.com/none"})},
			{method: "PodCgroupService/Destroy", reason: condition, request: is(&cgroupv1.PodCgroupServiceDestroyRequest{PodUid: "a"})},
			{method: "PodCgroupService/ReduceCPULimits", reason: condition,
				request: is(&cgroupv1.PodCgroupServiceReduceCPULimitsRequest{PodUid: "a"})},

			{method: "AllocationService/List", reason: notKept, request: is(&allocationv1.ListRequest{At: first})},
			{method: "CPUService/GetState", reason: notKept, request: is(&cpuv1.GetStateRequest{At: first})},
			{method: "FitService/Fit", reason: notKept, request: is(&fitv1.FitRequest{At: first, Pods: []*typesv1.Pod{burstable("fits")}})},
			{method: "FitService/GetFreeResources", reason: notKept, request: is(&fitv1.GetFreeResourcesRequest{At: first})},
			{method: "MemoryService/GetState", reason: notKept, request: is(&memoryv1.GetStateRequest{At: first})},
			{method: "DeviceService/GetState", reason: notKept, request: is(&devicev1.GetStateRequest{At: first})},
			{method: "AllocationService/List", reason: unknown, request: is(&allocationv1.ListRequest{At: last})},
			{method: "CPUService/GetState", reason: unknown, request: is(&cpuv1.GetStateRequest{At: last})},
			{method: "FitService/Fit", reason: unknown, request: is(&fitv1.FitRequest{At: last, Pods: []*typesv1.Pod{burstable("fits")}})},
			{method: "FitService/GetFreeResources", reason: unknown, request: is(&fitv1.GetFreeResourcesRequest{At: last})},
			{method: "MemoryService/GetState", reason: unknown, request: is(&memoryv1.GetStateRequest{At: last})},
			{method: "DeviceService/GetState", reason: unknown, request: is(&devicev1.GetStateRequest{At: last})},
			{method: "InspectService/GetTrace", reason: errorsv1.ErrorReason_TRACE_NOT_FOUND,
				request: is(&inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_AdmissionId{AdmissionId: "none"}})},
			{method: "InspectService/Import", reason: specDiffers, request: is(cpuFile(guaranteed("a", "3", ""),
				guaranteed("b", "4", "")))},
			{method: "InspectService/Import", reason: errorsv1.ErrorReason_NOT_SUPPORTED, request: is(&inspectv1.ImportRequest{
				Kind:  inspectv1.StateFileKind_STATE_FILE_KIND_DEVICE,
				State: []byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"a","ContainerName":"main","ResourceName":"example.com/gpu","DeviceIDs":["g0"],"AllocResp":""}],"RegisteredDevices":{}},"Checksum":1}`),
			})},
			{method: "InspectService/Import", reason: errorsv1.ErrorReason_IMPORT_CONTRADICTS, request: func(n *node) proto.Message {
				n.admitted(guaranteed("lost", "2", ""))
				state, err := n.inspect.Export(n.ctx(), &inspectv1.ExportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU})
				if err == nil {
					_, err = n.admission.RemovePod(n.ctx(), &admissionv1.RemovePodRequest{PodUid: "lost"})
				}
				if err != nil {
					n.t.Fatal(err)
				}
				n.admitted(guaranteed("next", "2", "")) // with the same CPUs
				return &inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: state.GetState(),
					Pods: []*typesv1.Pod{guaranteed("lost", "2", "")}}
			}},
		},
		each(syncs, unknown, func(n *node) proto.Message { return syncRequest(n, later(n)) }),
	)
	for _, s := range syncs {
		rows = append(rows, failure{method: s, reason: notOwner, agent: true,
			request: func(n *node) proto.Message { return syncRequest(n, n.revision()) }})
	}
	return rows
}
