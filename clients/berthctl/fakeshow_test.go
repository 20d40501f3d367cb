package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
)

// traces are the explanations that the fake remembers.
func traces() []*typesv1.Trace {
	return []*typesv1.Trace{
		{
			AdmissionId: "ADMISSION1", PodUid: webUID, Namespace: "default", Name: "web", Revision: 11, Admitted: true,
			Steps: []*typesv1.TraceStep{
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED,
					Text: "requests that container app leaves out are taken from its limits: cpu 2"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED, ContainerName: "app", Provider: "device",
					Resource: "example.com/gpu", Answer: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS,
					Hints: []*typesv1.TopologyHint{hintOf(true, 0), hintOf(false, 0, 1)}, Omitted: 3},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED, ContainerName: "app", Provider: "cpu", Resource: "cpu",
					Answer: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT,
					Text:   "any of the nodes 0-1 that have 2 together; one node is preferred"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED, ContainerName: "app", Provider: "memory", Resource: "memory",
					Answer: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_NO_PREFERENCE},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_MERGED, ContainerName: "app", Affinity: hintOf(true, 0),
					Hints: []*typesv1.TopologyHint{hintOf(false, 0, 1)}, Text: "node 0 is preferred by all"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED, ContainerName: "app", Provider: "device",
					Resource: "example.com/gpu", Claim: gpuClaim(webUID, "app")},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED, ContainerName: "app", Provider: "cpu", Resource: "cpu",
					Claim: cpuClaim(webUID, "app", "1-2")},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_PREPARED, ContainerName: "app", Provider: "device",
					Resource: "example.com/gpu"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_PLACED, Text: "cgroup /kubepods/pod" + webUID},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_COMMITTED},
			},
		},
		{
			AdmissionId: "ADMISSION9", PodUid: otherUID, Namespace: "default", Name: "big", Revision: 12,
			DecideTime: timestamppb.New(testNow.Add(-90 * time.Second)),
			Reason:     "TopologyAffinityError", Message: "Resources cannot be allocated with Topology locality",
			Steps: []*typesv1.TraceStep{
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED, ContainerName: "app", Provider: "device",
					Resource: "example.com/gpu", Answer: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE,
					Text: "2 devices are needed, and 1 is free"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_MERGED, ContainerName: "app",
					Text: "example.com/gpu cannot be given; policy restricted refuses"},
				{
					Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_REFUSED, ContainerName: "app",
					Text: "Resources cannot be allocated with Topology locality",
					Shortages: []*typesv1.Shortage{
						{Resource: "example.com/gpu", NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0, 1}}, Need: 2, Free: 1, Held: 3,
							Holders: []*typesv1.ContainerRef{{PodUid: webUID, ContainerName: "app"}, {PodUid: "gone"}}, MoreHolders: 2,
							Withheld: 1, Why: "unhealthy"},
						{Resource: "memory", NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0}}, Need: 6 << 30, Free: 5 << 30,
							Held: 1 << 20},
						{Resource: "example.com/nic", Need: 1, Why: "the plugin is away"},
					},
				},
			},
			Suggestions: []*typesv1.Suggestion{
				{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_REMOVAL, Text: "without pod default/web", RemovePodUids: []string{webUID},
					How: []string{"berthctl remove default/web"}},
				{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_REQUEST, Text: "with 1 example.com/gpu instead of 2 for container app",
					Requests: []*typesv1.RequestChange{{ContainerName: "app", Resource: "example.com/gpu", Current: 2, Proposed: 1}},
					How: []string{`resources: {limits: {example.com/gpu: "1"}, requests: {example.com/gpu: "1"}}   ` +
						"# container app; keep what else is there"}},
			},
			Tried: 9,
			Missing: []string{
				"example.com/gpu on NUMA nodes 0-1: 2 needed, 1 free, 3 held by default/web/app, gone and 2 more, 1 unhealthy",
				"memory on NUMA node 0: 6Gi needed, 5Gi free, 1Mi held", "example.com/nic: 1 needed, 0 free, the plugin is away",
			},
		},
		{
			AdmissionId: "ADMISSION4", PodUid: "44444444-0000-4000-8000-000000000004", Namespace: "default", Name: "notes", Revision: 12,
			Reason: "TopologyAffinityError", Message: "Resources cannot be allocated with Topology locality",
			Steps: []*typesv1.TraceStep{
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED, Text: "first"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED, Text: "second"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED, Text: "third"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED, Text: "fourth"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED, ContainerName: "app", Text: "fifth"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED, ContainerName: "app", Text: "sixth"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED, ContainerName: "app", Text: "seventh"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED, ContainerName: "app", Provider: "cpu", Resource: "cpu",
					Answer: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE, Text: "80 CPUs are needed, and 5 are free"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_MERGED, ContainerName: "app",
					Text: "cpu cannot be given; policy restricted refuses"},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_REFUSED, ContainerName: "app", Provider: "cpu", Resource: "cpu",
					Text: "not enough CPUs"},
			},
			Tried: 1, Missing: []string{"cpu cannot be given; policy restricted refuses"},
		},
		{
			AdmissionId: "ADMISSION3", PodUid: twinUID, Namespace: "default", Name: "early", Revision: 1,
			Message: "nothing exclusive is allocated yet",
			Steps: []*typesv1.TraceStep{{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_REFUSED,
				Text: "nothing exclusive is allocated yet"}},
		},
		{AdmissionId: "ADMISSION5", PodUid: "55555555-0000-4000-8000-000000000005", Namespace: "shop", Name: "cart", Revision: 1,
			Admitted: true},
		{AdmissionId: "ADMISSION6", PodUid: "66666666-0000-4000-8000-000000000006", Namespace: "shop", Name: "early", Revision: 1,
			Admitted: true},
	}
}

// traces are those of pods, and of claims if there are some: the newest first.
func (f *fake) traces() []*typesv1.Trace {
	all := traces()
	if !f.claims {
		return all
	}
	// A claim's name may be a pod's.
	return append([]*typesv1.Trace{
		{
			AdmissionId: "ADMISSION8", PodUid: "99999999-0000-4000-8000-000000000009", Namespace: "default", Name: "big", Revision: 12,
			ResourceClaim: true,
			Reason:        "UnexpectedAdmissionError",
			Message:       "Allocate failed due to not enough cpus available to satisfy request: requested=8, available=1, which is unexpected",
			Missing:       []string{"cpu on NUMA node 1: 8 needed, 1 free, 3 held by default/web/claim"},
			Steps: []*typesv1.TraceStep{{
				Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_REFUSED, ContainerName: "claim", Text: "not enough CPUs",
				Shortages: []*typesv1.Shortage{{Resource: "cpu", NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{1}}, Need: 8, Free: 1,
					Held: 3, Holders: []*typesv1.ContainerRef{{PodUid: claimUID, ContainerName: "claim"}}}},
			}},
		},
		{
			AdmissionId: "ADMISSION7", PodUid: claimUID, Namespace: "default", Name: "web", Revision: 10, Admitted: true,
			ResourceClaim: true,
			Steps: []*typesv1.TraceStep{
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED, ContainerName: "claim", Provider: "cpu", Resource: "cpu",
					Claim: cpuClaim(claimUID, "claim", "4-5")},
				{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_COMMITTED},
			},
		},
		{AdmissionId: "ADMISSION9", PodUid: "99999999-0000-4000-8000-00000000000a", Namespace: "shop", Name: "big", Revision: 9,
			ResourceClaim: true, Admitted: true},
	}, all...)
}

// placedTrace plans twice, the second time on the CPUs 4-5 with memory of both nodes.
func placedTrace() *typesv1.Trace {
	both := &typesv1.NUMANodeSet{Ids: []uint32{0, 1}}
	return &typesv1.Trace{Steps: []*typesv1.TraceStep{
		{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED, ContainerName: "app", Claim: cpuClaim("u-placed", "app", "6-7")},
		{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_REPLANNED},
		{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED, ContainerName: "app", Claim: cpuClaim("u-placed", "app", "4-5")},
		{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED, ContainerName: "app", Claim: &typesv1.Claim{
			PodUid: "u-placed", ContainerName: "app", Resource: "memory",
			Payload: &typesv1.Claim_Memory{Memory: &typesv1.MemoryClaim{Blocks: []*typesv1.MemoryBlock{{NumaNodes: both,
				Bytes: 4 << 30}}}},
		}},
		{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED, ContainerName: "app", Claim: &typesv1.Claim{
			PodUid: "u-placed", ContainerName: "app", Resource: "example.com/gpu",
			Payload: &typesv1.Claim_Device{Device: &typesv1.DeviceClaim{Devices: []*typesv1.Device{{Id: "gpu-1"}}}},
		}},
	}}
}

type fakeInspect struct {
	inspectv1.UnimplementedInspectServiceServer
	*fake
}

func (f fakeInspect) ListTraces(_ context.Context, req *inspectv1.ListTracesRequest) (*inspectv1.ListTracesResponse, error) {
	f.ask(req)
	out := &inspectv1.ListTracesResponse{Revision: 12}
	if req.GetReason() == "None" {
		return out, nil
	}
	for i, t := range f.traces() {
		wanted := (req.GetName() == "" || req.GetName() == t.GetName()) &&
			(req.GetNamespace() == "" || req.GetNamespace() == t.GetNamespace()) &&
			(req.GetPodUid() == "" || req.GetPodUid() == t.GetPodUid()) && !(req.GetRefused() && t.GetAdmitted())
		// A page has one trace, and its token is where the next begins.
		if !wanted || i < len(req.GetPageToken()) {
			continue
		}
		if len(out.GetTraces()) == 1 {
			out.NextPageToken = strings.Repeat("x", i)
			break
		}
		t.Steps, t.Suggestions = nil, nil
		out.Traces = append(out.Traces, t)
	}
	return out, nil
}

func (f fakeInspect) ListHistory(_ context.Context, req *inspectv1.ListHistoryRequest) (*inspectv1.ListHistoryResponse, error) {
	f.ask(req)
	if f.sick {
		return nil, errdefs.Unavailablef("the history is away")
	}
	out := &inspectv1.ListHistoryResponse{Revision: 12, Omitted: 3}
	for i, e := range historyEntries() {
		c := e.GetCaller()
		wanted := (req.GetName() == "" || req.GetName() == e.GetName()) &&
			(req.GetNamespace() == "" || req.GetNamespace() == e.GetNamespace()) &&
			(req.GetPodUid() == "" || req.GetPodUid() == e.GetPodUid()) && (req.GetVerdict() == 0 || req.GetVerdict() == e.GetVerdict()) &&
			(req.GetCall() == "" || req.GetCall() == e.GetCall()) && (req.CallerUid == nil || c != nil &&
			c.GetUid() == req.GetCallerUid()) &&
			(req.GetCallerName() == "" || c.GetName() == req.GetCallerName()) &&
			(req.GetUntilTime() == nil || e.GetTime().AsTime().Before(req.GetUntilTime().AsTime()))
		// A page has two entries at most, and its token is where the next begins.
		if !wanted || i < len(req.GetPageToken()) {
			continue
		}
		if len(out.GetEntries()) == min(2, int(req.GetPageSize())) {
			out.NextPageToken = strings.Repeat("x", i)
			break
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

// historyEntries are a refusal, an admission, a removal by berthd itself, a start, and an entry
// that is damaged; names of others are hostile.
func historyEntries() []*inspectv1.HistoryEntry {
	at := func(minutes int) *timestamppb.Timestamp {
		return timestamppb.New(testNow.Add(-time.Duration(minutes) * time.Minute).Add(123 * time.Millisecond))
	}
	agent := &inspectv1.HistoryCaller{Uid: 970, Gid: 970, Pid: 42, Name: "agent"}
	return []*inspectv1.HistoryEntry{
		{
			Number: 7, Time: at(1), Revision: 12, Call: "Admit", Caller: agent, PodUid: "u-big", Namespace: "default", Name: "big",
			Verdict: admissionv1.Verdict_VERDICT_REJECTED, Reason: "TopologyAffinityError",
			Message:     "Resources cannot be allocated\nwith Topology locality",
			AdmissionId: "id-2", RequestDigest: "d2", Duration: durationpb.New(1500 * time.Microsecond), Omitted: 3,
			Steps:   []*inspectv1.HistoryStep{{Step: "hints", Provider: "cpu", Duration: durationpb.New(120 * time.Microsecond)}},
			Request: `{"pod":{"uid":"u-big"}}`,
		},
		{
			Number: 6, Time: at(5), Revision: 12, Call: "Admit", Caller: &inspectv1.HistoryCaller{Name: "\x1b[31mevil"}, PodUid: webUID,
			Namespace: "default", Name: "web",
			Verdict: admissionv1.Verdict_VERDICT_ADMITTED, AdmissionId: "id-1",
		},
		{Number: 5, Time: at(6), Revision: 11, PodUid: "u-gone"},
		{Number: 4, Damage: "entry 4 of the history is damaged: checksum is 1, stored is 2"},
		{Number: 3, Time: at(60), Revision: 9, Call: "Start"},
	}
}

func (f fakeInspect) GetTrace(_ context.Context, req *inspectv1.GetTraceRequest) (*inspectv1.GetTraceResponse, error) {
	for _, t := range f.traces() {
		switch {
		case req.GetPodUid() == t.GetPodUid(), req.GetAdmissionId() == t.GetAdmissionId(),
			req.GetPodName() == t.GetNamespace()+"/"+t.GetName():
			return &inspectv1.GetTraceResponse{Trace: t}, nil
		}
	}
	return nil, errdefs.NotFoundf("no admission is remembered with %v", req)
}

// StreamBundle sends the bundle of docs/incident.md.
func (f fakeInspect) StreamBundle(_ *inspectv1.StreamBundleRequest, to grpc.ServerStreamingServer[inspectv1.StreamBundleResponse]) error {
	b, err := bundle.ReadFile("testdata/docs/incident.tar.gz")
	if err != nil {
		return err
	}
	for _, name := range bundle.Parts() {
		data, err := b.Encode(name)
		if err != nil {
			return err
		}
		if data == nil {
			continue
		}
		for _, part := range [][]byte{data[:len(data)/2], data[len(data)/2:]} {
			if err := to.Send(&inspectv1.StreamBundleResponse{Name: name, Data: part}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f fakeInspect) StreamDump(_ *inspectv1.StreamDumpRequest, to grpc.ServerStreamingServer[inspectv1.StreamDumpResponse]) error {
	if err := to.Send(&inspectv1.StreamDumpResponse{Revision: 12, Entries: []*inspectv1.Entry{
		{Bucket: "meta", Key: "schema", Value: "1"},
	}}); err != nil {
		return err
	}
	return to.Send(&inspectv1.StreamDumpResponse{Revision: 12, Entries: []*inspectv1.Entry{
		{Bucket: "pods", Key: webUID,
			Value: `{"name":"web","namespace":"default","containers":[{"name":"log"},{"name":"app"}],"qos":"Guaranteed"}`},
	}})
}

func (fakeInspect) GetStartReport(context.Context, *inspectv1.GetStartReportRequest) (*inspectv1.GetStartReportResponse, error) {
	return &inspectv1.GetStartReportResponse{
		Pods: []*inspectv1.PodCase{{
			Uid: webUID, Namespace: "default", Name: "web", Found: "not in the ledger, claim record whole, processes run", Living: true,
			Kept: "app: CPUs 1-2 (exclusive)", Source: inspectv1.PodSource_POD_SOURCE_CLAIM_RECORD, Waits: true,
		}},
		Lines: []string{"ledger.db was damaged and is kept as ledger.db.damaged-1"},
	}, nil
}

func (f fakeInspect) Check(context.Context, *inspectv1.CheckRequest) (*inspectv1.CheckResponse, error) {
	if !f.sick {
		return &inspectv1.CheckResponse{Revision: 12}, nil
	}
	return &inspectv1.CheckResponse{
		Revision:    12,
		StartReport: []string{"ledger.db was damaged and is kept as ledger.db.damaged-1"},
		Findings: []*inspectv1.Finding{
			{Kind: inspectv1.FindingKind_FINDING_KIND_STRUCTURAL, Holder: &typesv1.ContainerRef{PodUid: webUID, ContainerName: "app"},
				Text: "CPU 2 is also held by gone/c"},
			{Kind: inspectv1.FindingKind_FINDING_KIND_POLICY, Holder: &typesv1.ContainerRef{PodUid: otherUID}, Text: "CPU 0 is reserved"},
		},
	}, nil
}

type fakeCPU struct {
	cpuv1.UnimplementedCPUServiceServer
	*fake
}

func (f fakeCPU) GetState(context.Context, *cpuv1.GetStateRequest) (*cpuv1.GetStateResponse, error) {
	reserved, ofClaims := "0", ""
	if f.claims {
		reserved, ofClaims = "0,4-7", "4-7"
	}
	return &cpuv1.GetStateResponse{
		Policy: "static", Options: map[string]string{"full-pcpus-only": "true"},
		All: &typesv1.CPUSet{List: "0-7"}, Reserved: &typesv1.CPUSet{List: reserved}, ResourceClaims: &typesv1.CPUSet{List: ofClaims},
		Shared: &typesv1.CPUSet{List: "0,3-7"}, Exclusive: &typesv1.CPUSet{List: "1-2"},
		Assignments: []*typesv1.Claim{cpuClaim(webUID, "app", "1-2")}, Revision: 12,
	}, nil
}

func (f fakeCPU) GetTopologyHints(_ context.Context, req *cpuv1.GetTopologyHintsRequest) (*cpuv1.GetTopologyHintsResponse, error) {
	if req.GetContainerName() == "log" {
		return &cpuv1.GetTopologyHintsResponse{}, nil
	}
	return &cpuv1.GetTopologyHintsResponse{TopologyHints: []*typesv1.TopologyHints{{
		Resource: "cpu", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS,
		Hints: []*typesv1.TopologyHint{hintOf(true, 0), hintOf(true, 1), hintOf(false, 0, 1)},
	}}}, nil
}

type fakeMemory struct {
	memoryv1.UnimplementedMemoryServiceServer
	*fake
}

func (f fakeMemory) GetState(context.Context, *memoryv1.GetStateRequest) (*memoryv1.GetStateResponse, error) {
	if f.empty {
		return &memoryv1.GetStateResponse{Policy: "None", Revision: 12}, nil
	}
	alone, both := &typesv1.NUMANodeSet{Ids: []uint32{0}}, &typesv1.NUMANodeSet{Ids: []uint32{0, 1}}
	reserved := uint64(0)
	if f.claims {
		reserved = 4 << 30
	}
	return &memoryv1.GetStateResponse{
		Policy: "Static", Revision: 12,
		Nodes: []*memoryv1.NodeState{
			{NumaNode: 0, Group: both, Blocks: 3, Resources: []*memoryv1.ResourceState{
				{Resource: "hugepages-2Mi", TotalBytes: 1 << 30, AllocatableBytes: 1 << 30, HeldBytes: 4 << 20, FreeBytes: 1<<30 - 4<<20},
				{Resource: "memory", TotalBytes: 16777216000, ReservedBytes: 1 << 30, AllocatableBytes: 14 << 30, HeldBytes: 14 << 30},
			}},
			{NumaNode: 1, Group: both, Blocks: 2, Resources: []*memoryv1.ResourceState{
				{Resource: "memory", TotalBytes: 16 << 30, ReservedBytes: reserved, AllocatableBytes: 16<<30 - reserved,
					HeldBytes: 3 << 30, FreeBytes: 13 << 30},
			}},
			{NumaNode: 2, Group: &typesv1.NUMANodeSet{Ids: []uint32{2}}},
		},
		Assignments: []*typesv1.Claim{
			{PodUid: webUID, ContainerName: "app", Provider: "memory", Resource: "hugepages-2Mi",
				Payload: &typesv1.Claim_Memory{Memory: &typesv1.MemoryClaim{Blocks: []*typesv1.MemoryBlock{{NumaNodes: alone,
					Bytes: 4 << 20}}}}},
			{PodUid: webUID, ContainerName: "app", Provider: "memory", Resource: "memory",
				Payload: &typesv1.Claim_Memory{Memory: &typesv1.MemoryClaim{Blocks: []*typesv1.MemoryBlock{{NumaNodes: both,
					Bytes: 16 << 30}}}}},
			{PodUid: "gone", Provider: "memory", Resource: "memory",
				Payload: &typesv1.Claim_Memory{Memory: &typesv1.MemoryClaim{Blocks: []*typesv1.MemoryBlock{{NumaNodes: both,
					Bytes: 1 << 30}}}}},
		},
	}, nil
}

func (f fakeMemory) GetTopologyHints(_ context.Context, req *memoryv1.GetTopologyHintsRequest) (*memoryv1.GetTopologyHintsResponse, error) {
	if req.GetContainerName() == "log" {
		return &memoryv1.GetTopologyHintsResponse{}, nil
	}
	return &memoryv1.GetTopologyHintsResponse{TopologyHints: []*typesv1.TopologyHints{{
		Resource: "memory", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS, Hints: []*typesv1.TopologyHint{hintOf(true, 1)},
	}}}, nil
}

type fakeDevice struct {
	devicev1.UnimplementedDeviceServiceServer
	*fake
}

func (f fakeDevice) resources() []*devicev1.Resource {
	if f.empty {
		return nil
	}
	return []*devicev1.Resource{
		{
			Name: "example.com/gpu", PluginState: typesv1.PluginState_PLUGIN_STATE_CONNECTED,
			Endpoint: "/var/lib/kubelet/device-plugins/gpu.sock",
			Capacity: 2, Allocatable: 1, InUse: 1, PreStartRequired: true,
			Devices: []*devicev1.DeviceState{
				{Device: &typesv1.Device{Id: "gpu-0", NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0}},
					Health: typesv1.Health_HEALTH_HEALTHY, HealthHistory: flapped()},
					Holders: []*typesv1.ContainerRef{{PodUid: webUID, ContainerName: "app"}}},
				{Device: &typesv1.Device{Id: "gpu-1", Health: typesv1.Health_HEALTH_UNHEALTHY}},
			},
		},
		{Name: "example.com/nic", PluginState: typesv1.PluginState_PLUGIN_STATE_EXPECTED},
	}
}

func (f fakeDevice) GetState(context.Context, *devicev1.GetStateRequest) (*devicev1.GetStateResponse, error) {
	return &devicev1.GetStateResponse{Resources: f.resources(), Revision: 12}, nil
}

func (f fakeDevice) ListResources(context.Context, *devicev1.ListResourcesRequest) (*devicev1.ListResourcesResponse, error) {
	out := &devicev1.ListResourcesResponse{Resources: f.resources()}
	for _, r := range out.GetResources() {
		r.Devices = nil
	}
	return out, nil
}

func (f fakeDevice) ForgetResource(_ context.Context, req *devicev1.ForgetResourceRequest) (*devicev1.ForgetResourceResponse, error) {
	if f.ask(req); req.GetResource() != "example.com/nic" {
		return nil, errdefs.Preconditionf("%s cannot be forgotten while it is held by container app of pod default/web (%s)",
			req.GetResource(), webUID)
	}
	return &devicev1.ForgetResourceResponse{}, nil
}

func (f fakeDevice) GetTopologyHints(_ context.Context, req *devicev1.GetTopologyHintsRequest) (*devicev1.GetTopologyHintsResponse, error) {
	if req.GetContainerName() == "log" {
		return &devicev1.GetTopologyHintsResponse{TopologyHints: []*typesv1.TopologyHints{
			{Resource: "example.com/nic", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_NO_PREFERENCE},
		}}, nil
	}
	return &devicev1.GetTopologyHintsResponse{TopologyHints: []*typesv1.TopologyHints{
		{Resource: "example.com/gpu", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE,
			Reason: "2 devices are needed, and 1 is free"},
	}}, nil
}

type fakeTopology struct {
	topologyv1.UnimplementedTopologyServiceServer
	*fake
}

func (f fakeTopology) GetPolicy(context.Context, *topologyv1.GetPolicyRequest) (*topologyv1.GetPolicyResponse, error) {
	scope := "container"
	if f.empty {
		scope = "pod"
	}
	return &topologyv1.GetPolicyResponse{
		Policy: "single-numa-node", Scope: scope, Options: map[string]string{"prefer-closest-numa-nodes": "true"},
		NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0, 1}}, Settings: fakeSettings(),
		Overridden: !f.empty, SetTime: timestamppb.New(time.Unix(1000, 0)),
	}, nil
}

// GetHints answers as the three managers do.
func (f fakeTopology) GetHints(ctx context.Context, req *topologyv1.GetHintsRequest) (*topologyv1.GetHintsResponse, error) {
	f.ask(req)
	device, _ := fakeDevice{fake: f.fake}.GetTopologyHints(ctx, &devicev1.GetTopologyHintsRequest{Pod: req.GetPod(),
		ContainerName: req.GetContainerName()})
	cpu, _ := fakeCPU{fake: f.fake}.GetTopologyHints(ctx, &cpuv1.GetTopologyHintsRequest{Pod: req.GetPod(),
		ContainerName: req.GetContainerName()})
	memory, _ := fakeMemory{fake: f.fake}.GetTopologyHints(ctx, &memoryv1.GetTopologyHintsRequest{Pod: req.GetPod(),
		ContainerName: req.GetContainerName()})
	return &topologyv1.GetHintsResponse{Providers: []*topologyv1.ProviderHints{
		{Provider: "device", TopologyHints: device.GetTopologyHints()},
		{Provider: "cpu", TopologyHints: cpu.GetTopologyHints()},
		{Provider: "memory", TopologyHints: memory.GetTopologyHints()},
	}}, nil
}

func (f fakeTopology) SetPolicy(_ context.Context, req *topologyv1.SetPolicyRequest) (*topologyv1.SetPolicyResponse, error) {
	f.ask(req)
	out := &topologyv1.SetPolicyResponse{
		Settings: fakeSettings(), Changed: req.TopologyPolicy != nil,
		SharedBefore: &typesv1.CPUSet{List: "0,4-7"}, SharedAfter: &typesv1.CPUSet{List: "0,4-7"},
		ReservedBefore: &typesv1.CPUSet{}, ReservedAfter: &typesv1.CPUSet{List: "0,1"},
	}
	if !req.GetDryRun() {
		out.Revision = 12
	}
	if f.empty {
		return out, nil
	}
	for fate, message := range []string{"", "", "app has 2 CPUs (exclusive) and would get no CPUs of its own",
		"Resources cannot be allocated with Topology locality"} {
		if fate > 0 {
			out.Pods = append(out.Pods, &topologyv1.PodFate{
				Namespace: "default", Name: "pod" + strconv.Itoa(fate), Fate: topologyv1.Fate(fate), Message: message,
			})
		}
	}
	out.Pods[2].Reason = "TopologyAffinityError"
	out.Pods[2].Grandfathered = []string{"CPUs 1 of u/app are reserved"}
	return out, nil
}

func fakeSettings() *topologyv1.PolicySettings {
	return &topologyv1.PolicySettings{
		TopologyPolicy: "restricted", TopologyScope: "pod", TopologyPlanning: "pod",
		CpuPolicy: "static", CpuOptions: map[string]string{"full-pcpus-only": "true"},
		MemoryPolicy: "Static", ReservedCpus: &typesv1.CPUSet{List: "0,1"}, SystemReserved: map[string]string{"memory": "1Gi", "cpu": "1"},
		ReservedMemory: []*topologyv1.ReservedMemory{{NumaNode: 0, Limits: map[string]string{"memory": "1Gi"}}},
		EvictionHard:   map[string]string{"memory.available": "100Mi"}, TopologyMaxNodes: 8,
	}
}

func (f fakeTopology) Merge(_ context.Context, req *topologyv1.MergeRequest) (*topologyv1.MergeResponse, error) {
	f.ask(req)
	for _, p := range req.GetProviders() {
		for _, a := range p.GetTopologyHints() {
			if a.GetKind() == typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE {
				return &topologyv1.MergeResponse{Explanation: "example.com/gpu cannot be given; policy restricted refuses"}, nil
			}
		}
	}
	return &topologyv1.MergeResponse{Admit: true, Hint: hintOf(true, 0), Explanation: "node 0 is preferred by all"}, nil
}

type fakeNode struct {
	nodev1.UnimplementedNodeServiceServer
	*fake
}

func (f fakeNode) Reload(_ context.Context, r *nodev1.ReloadRequest) (*nodev1.ReloadResponse, error) {
	switch {
	case f.sick:
		return nil, status.Error(codes.InvalidArgument, "berthd.yaml: log.level: expected debug, info, warn or error")
	case f.empty:
		return &nodev1.ReloadResponse{}, nil
	}
	return &nodev1.ReloadResponse{
		Revision: 12,
		Notes:    []string{"kubelet.yaml: evictionSoft changes nothing"},
		Changes: []*nodev1.FieldChange{
			{Field: "limits.call", OldValue: `"2m0s"`, NewValue: `"1m0s"`, Applied: true},
			{Field: "reserved.cpus", OldValue: `"0"`, NewValue: `"0-1"`,
				Reason: "container app of pod default/web (u1) has CPU 1 for itself: remove the pod and reload, or reserve other CPUs"},
			{Field: "strictState", NewValue: "true", Reason: "needs a restart: berthd looks for damage only at the start"},
		},
	}, nil
}

func (f fakeNode) SetHugePages(_ context.Context, r *nodev1.SetHugePagesRequest) (*nodev1.SetHugePagesResponse, error) {
	if f.sick {
		return nil, status.Error(codes.FailedPrecondition,
			"NUMA node 1 would have 20Mi of hugepages-2Mi, and pods have 32Mi there, and 0 are reserved: remove pods, or move them")
	}
	out := &nodev1.SetHugePagesResponse{}
	for _, p := range r.GetPools() {
		result := &nodev1.HugePagePoolResult{
			NumaNode: p.GetNumaNode(), PageSizeBytes: p.GetPageSizeBytes(), RequestedCount: p.GetCount(), CountBefore: 16,
			Count: min(p.GetCount(), 500),
		}
		if r.GetDryRun() {
			result.Count = result.GetCountBefore()
		}
		out.Pools = append(out.Pools, result)
	}
	return out, nil
}

func (f fakeNode) GetVersion(context.Context, *nodev1.GetVersionRequest) (*nodev1.GetVersionResponse, error) {
	return &nodev1.GetVersionResponse{Version: "v1.2.3", Commit: "c0ffee", GoVersion: "go1.26", Platform: "linux/amd64"}, nil
}

// fakeSnapshot is the machine with one core of one thread for each CPU.
var fakeSnapshot = func() []byte {
	shape, err := machine.ParseShape("1s2n4c")
	if err != nil {
		panic(err)
	}
	m, err := machine.New(shape)
	if err != nil {
		panic(err)
	}
	data, err := m.Marshal()
	if err != nil {
		panic(err)
	}
	return data
}()

func (f fakeNode) GetMachine(context.Context, *nodev1.GetMachineRequest) (*nodev1.GetMachineResponse, error) {
	out := &nodev1.GetMachineResponse{
		OfflineCpus: &typesv1.CPUSet{List: "8-9"}, OfflinePlaces: []*nodev1.CPU{{Cpu: 8, Core: 8, NumaNode: 1}}, Fingerprint: "f1",
		SnapshotJson: fakeSnapshot,
		Nodes: []*nodev1.NUMANode{
			{NumaNode: 0, Cpus: &typesv1.CPUSet{List: "0-3"}, MemoryBytes: 16777216000,
				HugePages: []*nodev1.HugePages{{PageSizeBytes: 2 << 20, Count: 512}, {PageSizeBytes: 1 << 30}},
				Distances: map[uint32]uint32{0: 10, 1: 21}},
			{NumaNode: 1, Cpus: &typesv1.CPUSet{List: "4-7"}, MemoryBytes: 16 << 30, Distances: map[uint32]uint32{0: 21, 1: 10}},
		},
	}
	for id := range uint32(8) {
		out.Cpus = append(out.Cpus, &nodev1.CPU{Cpu: id, Core: id - id%2, NumaNode: id / 4, UncoreCache: id / 4})
	}
	return out, nil
}

type fakeLister struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	*fake
}

func (f fakeLister) podResources() []*podresourcesv1.PodResources {
	zero := &podresourcesv1.TopologyInfo{Nodes: []*podresourcesv1.NUMANode{{ID: 0}}}
	return []*podresourcesv1.PodResources{
		{Namespace: "default", Name: "web", Containers: []*podresourcesv1.ContainerResources{
			{Name: "log"},
			{
				Name: "app", CpuIds: []int64{2, 1},
				Devices: []*podresourcesv1.ContainerDevices{{ResourceName: "example.com/gpu", DeviceIds: []string{"gpu-0", "gpu-1"},
					Topology: zero}},
				Memory: []*podresourcesv1.ContainerMemory{{MemoryType: "memory", Size: 1 << 30, Topology: zero}},
				DynamicResources: []*podresourcesv1.DynamicResource{{ClaimName: "train", ClaimNamespace: "default",
					ClaimResources: []*podresourcesv1.ClaimResource{
						{DriverName: "dra.berthd.github.io", PoolName: "n1", DeviceName: "numa-0",
							CdiDevices: []*podresourcesv1.CDIDevice{{Name: "dra.berthd.github.io/claim=u:left"}}},
						{DriverName: "dra.berthd.github.io", PoolName: "n1", DeviceName: "numa-1",
							CdiDevices: []*podresourcesv1.CDIDevice{{Name: "dra.berthd.github.io/claim=u:right"}}},
					}}},
			},
		}},
		{Namespace: "shop", Name: "twin", CpuIds: []int64{4, 5}, Containers: []*podresourcesv1.ContainerResources{{Name: "c",
			CpuIds: []int64{4}}}},
	}
}

func (f fakeLister) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	return &podresourcesv1.ListPodResourcesResponse{PodResources: f.podResources()}, nil
}

func (f fakeLister) Get(_ context.Context, req *podresourcesv1.GetPodResourcesRequest) (*podresourcesv1.GetPodResourcesResponse, error) {
	for _, p := range f.podResources() {
		if p.GetNamespace() == req.GetPodNamespace() && p.GetName() == req.GetPodName() {
			return &podresourcesv1.GetPodResourcesResponse{PodResources: p}, nil
		}
	}
	return nil, errdefs.NotFoundf("pod %s in namespace %s not found", req.GetPodName(), req.GetPodNamespace())
}

func (f fakeLister) GetAllocatableResources(context.Context,
	*podresourcesv1.AllocatableResourcesRequest) (*podresourcesv1.AllocatableResourcesResponse, error) {
	p := f.podResources()[0].GetContainers()[1]
	return &podresourcesv1.AllocatableResourcesResponse{CpuIds: []int64{1, 2, 3, 4, 5, 6, 7}, Devices: p.GetDevices(),
		Memory: p.GetMemory()}, nil
}
