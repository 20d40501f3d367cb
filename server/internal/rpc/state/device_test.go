package state_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/deviceplugin"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
	"github.com/berthd/berth/server/internal/rpc/state"
)

var (
	_ state.Plugins   = (*deviceplugin.Server)(nil)
	_ state.Inventory = (*device.Manager)(nil)
)

// inventory gives one snapshot.
type inventory struct{ *device.Snapshot }

func (i inventory) Inventory() *device.Snapshot { return i.Snapshot }

// plugins have their sockets by resource.
type plugins map[string]string

func (p plugins) Endpoint(resource string) string { return p[resource] }

// Forget knows only what has a socket, and forgets nothing of it.
func (p plugins) Forget(_ context.Context, resource string) error {
	switch {
	case resource == "example.com/nic":
		return nil
	case p[resource] != "":
		return errdefs.Preconditionf("%s is held", resource)
	}
	return errdefs.NotFoundf("no %s", resource)
}

// deviceHinter finds devices impossible, for whatever container.
type deviceHinter struct{ err error }

func (h deviceHinter) Hints(context.Context, workload.Pod, string) ([]hint.Reply, error) {
	return []hint.Reply{
		{Provider: "device", Answers: []hint.ResourceAnswer{{Resource: "example.com/gpu",
			Answer: hint.Answer{Kind: hint.Impossible, Reason: "all in use"}}}},
		{Provider: "cpu"},
	}, h.err
}

// serveDevices has a resource "example.com/gpu" of a connected plugin: g0 on node 0,
// held by two containers of a pod, g1 without topology, g2 unhealthy, and g9,
// which is held and no longer listed; "example.com/nic", whose plugin has not come
// back; and "example.com/tpu", whose plugin has sent no list yet.
func serveDevices(t *testing.T, err error) devicev1.DeviceServiceClient {
	t.Helper()
	start := time.Unix(1000, 0)
	inv := device.NewInventory([]ledger.SeenResource{{Name: "example.com/nic", LastSeen: start}}, start)
	session := inv.Registered("example.com/gpu", device.Options{PreStart: true}, start)
	inv.Listed(session, []device.Device{
		{ID: "g2"}, {ID: "g1", Healthy: true}, {ID: "g0", Healthy: true, Nodes: 1, Topology: true},
	}, start)
	inv.Registered("example.com/tpu", device.Options{}, start)
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("2n4c")})
	pod := ledgertest.With(ledgertest.Pod("a", "init:prepare", "main"),
		ledgertest.Devices("prepare", "example.com/gpu", "g0"), ledgertest.Devices("main", "example.com/gpu", "g0", "g9"))
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(pod); return nil }); err != nil {
		t.Fatal(err)
	}
	return devicev1.NewDeviceServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		devicev1.RegisterDeviceServiceServer(s, state.Devices(state.Parts{Ledger: history.Ledger{Ledger: l}, Hinter: deviceHinter{err}},
			inventory{inv.Snapshot()}, plugins{"example.com/gpu": "/plugins/gpu.sock"}))
	}))
}

// resources are the expected answers of every method, with devices of the first.
func resources(devices ...*devicev1.DeviceState) []*devicev1.Resource {
	return []*devicev1.Resource{
		{
			Name: "example.com/gpu", PluginState: typesv1.PluginState_PLUGIN_STATE_CONNECTED, Endpoint: "/plugins/gpu.sock",
			Capacity: 3, Allocatable: 2, InUse: 2, PreStartRequired: true, Devices: devices, Registration: 1,
		},
		{Name: "example.com/nic", PluginState: typesv1.PluginState_PLUGIN_STATE_EXPECTED, Awaited: true},
		{Name: "example.com/tpu", PluginState: typesv1.PluginState_PLUGIN_STATE_CONNECTED, Registration: 2, Awaited: true},
	}
}

var (
	g0 = &devicev1.DeviceState{
		Device: &typesv1.Device{Id: "g0", Health: typesv1.Health_HEALTH_HEALTHY, HealthHistory: first(typesv1.Health_HEALTH_HEALTHY),
			NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0}}},
		Holders: []*typesv1.ContainerRef{{PodUid: "a", ContainerName: "main"}, {PodUid: "a", ContainerName: "prepare"}},
	}
	g1 = &devicev1.DeviceState{Device: &typesv1.Device{Id: "g1", Health: typesv1.Health_HEALTH_HEALTHY,
		HealthHistory: first(typesv1.Health_HEALTH_HEALTHY)}}
	g2 = &devicev1.DeviceState{Device: &typesv1.Device{Id: "g2", Health: typesv1.Health_HEALTH_UNHEALTHY,
		HealthHistory: first(typesv1.Health_HEALTH_UNHEALTHY)}}
	g9 = &devicev1.DeviceState{Device: &typesv1.Device{Id: "g9"}, Holders: []*typesv1.ContainerRef{{PodUid: "a", ContainerName: "main"}}}
)

// first is the history of a device that was as it is since its first list.
func first(health typesv1.Health) []*typesv1.HealthChange {
	return []*typesv1.HealthChange{{Time: timestamppb.New(time.Unix(1000, 0)), Health: health}}
}

func TestDeviceResources(t *testing.T) {
	t.Parallel()
	client := serveDevices(t, nil)
	state, err := client.GetState(t.Context(), &devicev1.GetStateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if want := (&devicev1.GetStateResponse{Resources: resources(g0, g1, g2, g9), Revision: 1}); !proto.Equal(state, want) {
		t.Errorf("state\n\t%v\nwant\n\t%v", state, want)
	}
	list, err := client.ListResources(t.Context(), &devicev1.ListResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if want := (&devicev1.ListResourcesResponse{Resources: resources()}); !proto.Equal(list, want) {
		t.Errorf("list\n\t%v\nwant\n\t%v", list, want)
	}
	allocatable, err := client.GetAllocatable(t.Context(), &devicev1.GetAllocatableRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if want := (&devicev1.GetAllocatableResponse{Resources: resources(g0, g1)}); !proto.Equal(allocatable, want) {
		t.Errorf("allocatable\n\t%v\nwant\n\t%v", allocatable, want)
	}
}

func TestForgetResource(t *testing.T) {
	t.Parallel()
	client := serveDevices(t, nil)
	for resource, want := range map[string]codes.Code{
		"example.com/nic": codes.OK, "example.com/gpu": codes.FailedPrecondition, "example.com/other": codes.NotFound,
		"": codes.InvalidArgument,
	} {
		if _, err := client.ForgetResource(t.Context(), &devicev1.ForgetResourceRequest{Resource: resource}); status.Code(err) != want {
			t.Errorf("%q: %v, want %s", resource, err, want)
		}
	}
}

func TestDeviceHints(t *testing.T) {
	t.Parallel()
	pod := &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: "web", Uid: "w"},
		Spec:     &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "main"}}},
	}
	got, err := serveDevices(t, nil).GetTopologyHints(t.Context(), &devicev1.GetTopologyHintsRequest{Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	want := &devicev1.GetTopologyHintsResponse{TopologyHints: []*typesv1.TopologyHints{{
		Resource: "example.com/gpu", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE, Reason: "all in use",
	}}}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	_, err = serveDevices(t, nil).GetTopologyHints(t.Context(), &devicev1.GetTopologyHintsRequest{})
	rpctest.Failure{
		Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"pod"}, Message: "request is invalid: pod: is required",
	}.Check(t, err)
	_, err = serveDevices(t, errdefs.NotFoundf("no such container")).GetTopologyHints(t.Context(),
		&devicev1.GetTopologyHintsRequest{Pod: pod})
	rpctest.Failure{Code: codes.NotFound, Reason: "OBJECT_NOT_FOUND", Message: "no such container"}.Check(t, err)
}

// TestUpdatePluginResources: what Admit counts, for agents that count by themselves.
func TestUpdatePluginResources(t *testing.T) {
	t.Parallel()
	client := serveDevices(t, nil)
	for _, tt := range []struct {
		uid         string
		given, want map[string]string
		raised      []string
	}{
		{"a", nil, map[string]string{"example.com/gpu": "2", "example.com/nic": "0", "example.com/tpu": "0"}, nil},
		{"a", map[string]string{"example.com/gpu": "0", "cpu": "1500m"}, map[string]string{"example.com/gpu": "2", "cpu": "1500m"},
			[]string{"example.com/gpu"}},
		{"b", map[string]string{"example.com/gpu": "0"}, map[string]string{"example.com/gpu": "0"}, nil},
	} {
		got, err := client.UpdatePluginResources(t.Context(), &devicev1.UpdatePluginResourcesRequest{PodUid: tt.uid, Allocatable: tt.given})
		want := &devicev1.UpdatePluginResourcesResponse{Allocatable: tt.want, Raised: tt.raised, Revision: 1}
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("pod %s, %v: %v, %v, want %v", tt.uid, tt.given, got, err, want)
		}
	}
	_, err := client.UpdatePluginResources(t.Context(),
		&devicev1.UpdatePluginResourcesRequest{Allocatable: map[string]string{"example.com/gpu": "many"}})
	rpctest.Failure{
		Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"pod_uid", `allocatable["example.com/gpu"]`},
		Message: "request is invalid: pod_uid: is required (and 1 more)",
	}.Check(t, err)
}
