package output

import (
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

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
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

func TestRules(t *testing.T) {
	t.Parallel()
	zero := int64(0)
	for want, m := range map[string]proto.Message{
		`{"revision":18446744073709551615,"findings":[{"kind":"structural","holder":{"podUid":"u"},"text":"<a>"}]}`: &inspectv1.CheckResponse{
			Revision: 1<<64 - 1, Findings: []*inspectv1.Finding{{Kind: inspectv1.FindingKind_FINDING_KIND_STRUCTURAL,
				Holder: &typesv1.ContainerRef{PodUid: "u"}, Text: "<a>"}}},
		`{"items":[],"revision":0}`:                 &allocationv1.ListResponse{},
		`{"items":[],"revision":7,"sharedCpus":""}`: &allocationv1.ListResponse{Revision: 7, SharedCpus: &typesv1.CPUSet{}},
		`{"cpus":"0-3,8","sharing":"pod-exclusive"}`: &typesv1.CPUClaim{Cpus: &typesv1.CPUSet{List: "0-3,8"},
			Sharing: typesv1.CPUSharing_CPU_SHARING_POD_EXCLUSIVE},
		`{"sharing":"99"}`:                                       &typesv1.CPUClaim{Sharing: 99},
		`{"numaNodes":"0-2,5","bytes":0}`:                        &typesv1.MemoryBlock{NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0, 1, 2, 5}}},
		`{"time":"1970-01-01T00:00:07.5Z","health":"unhealthy"}`: &typesv1.HealthChange{Time: &timestamppb.Timestamp{Seconds: 7, Nanos: 5e8}, Health: typesv1.Health_HEALTH_UNHEALTHY},
		`{"pageSizeBytes":0,"limitBytes":0}`:                     &typesv1.HugepageLimit{LimitBytes: &zero},
		`{"pageSizeBytes":0}`:                                    &typesv1.HugepageLimit{},
		`{"retryAfter":"1.5s","revision":0,"replayed":false}`:    &admissionv1.AdmitResponse{RetryAfter: &durationpb.Duration{Seconds: 1, Nanos: 5e8}},
		`{"resource":"m","weights":{"2":1,"10":3},"need":4}`: &typesv1.CapacityThreshold{Resource: "m",
			Weights: map[uint32]uint64{10: 3, 2: 1}, Need: 4},
		`{"opaque":"AQI="}`: &typesv1.Claim{Payload: &typesv1.Claim_Opaque{Opaque: []byte{1, 2}}},
	} {
		got, err := JSON(m)
		if err != nil || string(got) != want {
			t.Errorf("got  %s, %v\nwant %s", got, err, want)
		}
	}
}

// printed are the messages that verbs print.
var printed = []proto.Message{
	&admissionv1.AdmitResponse{}, &admissionv1.ResizeResponse{}, &admissionv1.RemovePodResponse{}, &admissionv1.SyncPodsResponse{},
	&admissionv1.Simulation{}, &admissionv1.Replay{}, &fitv1.FitResponse{},
	&allocationv1.AllocateResponse{}, &allocationv1.ListResponse{}, &allocationv1.WatchResponse{}, &typesv1.PodAllocation{}, &typesv1.Pod{},
	&cgroupv1.ListResponse{}, &hintv1.ListProvidersResponse{}, &cpuv1.GetStateResponse{}, &memoryv1.GetStateResponse{},
	&devicev1.GetStateResponse{}, &devicev1.ListResourcesResponse{}, &devicev1.ForgetResourceResponse{},
	&inspectv1.DumpResponse{}, &inspectv1.CheckResponse{}, &inspectv1.GetStartReportResponse{}, &inspectv1.GetTraceResponse{},
	&inspectv1.ListTracesResponse{}, &inspectv1.ListHistoryResponse{}, &inspectv1.ImportResponse{}, &inspectv1.ExportResponse{},
	&lifecyclev1.PreStartContainerResponse{}, &lifecyclev1.PostStopContainerResponse{},
	&nodev1.GetMachineResponse{}, &nodev1.GetConfigResponse{}, &nodev1.GetStatusResponse{}, &nodev1.ReloadResponse{},
	&nodev1.GetAllocatableResponse{}, &nodev1.GetUsageResponse{},
	&topologyv1.GetPolicyResponse{}, &topologyv1.SetPolicyResponse{}, &topologyv1.MergeRequest{}, &topologyv1.MergeResponse{},
	&podresourcesv1.ListPodResourcesResponse{}, &podresourcesv1.GetPodResourcesResponse{}, &podresourcesv1.AllocatableResourcesResponse{},
}

// TestEveryField: a set field of every message that is printed is in the output.
func TestEveryField(t *testing.T) {
	t.Parallel()
	seen := map[protoreflect.FullName]bool{}
	var walk func(m protoreflect.Message)
	walk = func(m protoreflect.Message) {
		d := m.Descriptor()
		if seen[d.FullName()] {
			return
		}
		seen[d.FullName()] = true
		scalar := false
		switch m.Interface().(type) {
		case *typesv1.CPUSet, *typesv1.NUMANodeSet, *timestamppb.Timestamp, *durationpb.Duration:
			scalar = true
		}
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			one := m.New()
			switch {
			case f.IsList():
				list := one.Mutable(f).List()
				list.Append(sample(f, list.NewElement()))
			case f.IsMap():
				entries := one.Mutable(f).Map()
				entries.Set(sample(f.MapKey(), protoreflect.Value{}).MapKey(), sample(f.MapValue(), entries.NewValue()))
			default:
				one.Set(f, sample(f, one.NewField(f)))
			}
			raw, err := JSON(one.Interface())
			if err != nil {
				t.Errorf("%s: %v", f.FullName(), err)
				continue
			}
			var object map[string]any
			name := f.JSONName()
			if lists[d.FullName()] == f.Name() {
				name = "items"
			}
			if err := json.Unmarshal(raw, &object); !scalar && (err != nil || object[name] == nil) {
				t.Errorf("%s: %s, %v", f.FullName(), raw, err)
			}
			switch {
			case f.IsMap() && f.MapValue().Message() != nil:
				walk(one.Mutable(f).Map().NewValue().Message())
			case f.IsList() && f.Message() != nil:
				walk(one.Mutable(f).List().NewElement().Message())
			case !f.IsMap() && f.Message() != nil:
				walk(one.NewField(f).Message())
			}
		}
	}
	for _, m := range printed {
		walk(m.ProtoReflect())
	}
	for name, items := range lists {
		if !seen[name] {
			t.Errorf("the list %s is printed by no verb (%s)", name, items)
		}
	}
}

// TestKinds: a document has a kind and an apiVersion, and no message has a field that they would hide.
func TestKinds(t *testing.T) {
	t.Parallel()
	for _, m := range printed {
		for _, name := range []string{"kind", "apiVersion"} {
			if m.ProtoReflect().Descriptor().Fields().ByJSONName(name) != nil {
				t.Errorf("%s has a field %s", m.ProtoReflect().Descriptor().FullName(), name)
			}
		}
	}
	for want, m := range map[string]proto.Message{
		"PodAllocationList": &allocationv1.ListResponse{}, "AllocateResponse": &allocationv1.AllocateResponse{},
		"PodResourcesList": &podresourcesv1.ListPodResourcesResponse{},
	} {
		if got := Kind(m); got != want {
			t.Errorf("%T: kind %s, want %s", m, got, want)
		}
	}
}

// sample is a value that is not the zero value.
func sample(f protoreflect.FieldDescriptor, empty protoreflect.Value) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("x")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("x"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(1)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1)
	}
	return empty
}
