package lifecycle_test

import (
	"context"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/internal/moves"
	"github.com/berthd/berth/server/internal/rpc/lifecycle"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine binds ids in a ledger and gives every container the same cgroup.
type engine struct {
	ledger  *ledger.Ledger
	pid     int
	reports map[string]moves.Report
}

func (e *engine) ReportMemory(id string, r moves.Report) bool {
	if _, ok := e.ledger.View().Binding(id); !ok {
		return false
	}
	if e.reports == nil {
		e.reports = map[string]moves.Report{}
	}
	e.reports[id] = r
	return true
}

func (e *engine) PreStart(ctx context.Context, owner ledger.Owner, id string, pid int) (admission.Started, error) {
	if _, _, err := e.ledger.View().Find(owner); err != nil {
		return admission.Started{}, err
	}
	if b, ok := e.ledger.View().Binding(id); ok && b.Owner != owner {
		return admission.Started{}, errdefs.Conflictf("container id %s belongs to %s already", id, b.Owner)
	}
	e.pid = pid
	b := ledger.Binding{ID: id, Owner: owner, CgroupPath: "/kubepods/poda/main", Own: true, Sequence: 1}
	view, err := e.ledger.Update(ctx, func(d *ledger.Draft) error { d.Bind(b); return nil })
	return admission.Started{Binding: b, View: view}, err
}

func (e *engine) PostStop(ctx context.Context, id string) (bool, error) {
	if _, ok := e.ledger.View().Binding(id); !ok {
		return false, nil
	}
	_, err := e.ledger.Update(ctx, func(d *ledger.Draft) error { d.Unbind(id); return nil })
	return true, err
}

func serve(t *testing.T) (lifecyclev1.LifecycleServiceClient, *engine) {
	t.Helper()
	e := &engine{ledger: ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("2n4c2t,mem=4Gi")})}
	pod := ledgertest.With(ledgertest.Pod("a", "main", "side"),
		ledgertest.Exclusive("main", "2-3"), ledgertest.Memory("main", "memory", "1", 1<<20))
	if _, err := e.ledger.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(pod); return nil }); err != nil {
		t.Fatal(err)
	}
	return lifecyclev1.NewLifecycleServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		lifecyclev1.RegisterLifecycleServiceServer(s, lifecycle.New(e, e.ledger, e))
	})), e
}

func TestLifeOfAContainer(t *testing.T) {
	t.Parallel()
	client, e := serve(t)
	got, err := client.PreStartContainer(t.Context(), &lifecyclev1.PreStartContainerRequest{
		PodUid: "a", ContainerName: "main", ContainerId: "c1", Pid: 4711,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &lifecyclev1.PreStartContainerResponse{CpusetCpus: &typesv1.CPUSet{List: "2-3"},
		CpusetMems: &typesv1.NUMANodeSet{Ids: []uint32{1}}, CgroupPath: "/kubepods/poda/main", Revision: 2}
	if !proto.Equal(got, want) || e.pid != 4711 {
		t.Errorf("got %v with pid %d, want %v with 4711", got, e.pid, want)
	}
	for _, found := range []bool{true, false} {
		got, err := client.PostStopContainer(t.Context(), &lifecyclev1.PostStopContainerRequest{ContainerId: "c1"})
		if err != nil || got.GetFound() != found || got.GetRevision() < 2 {
			t.Errorf("stop: %v, %v; want found %v", got, err, found)
		}
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	client, _ := serve(t)
	if _, err := client.PreStartContainer(t.Context(), &lifecyclev1.PreStartContainerRequest{PodUid: "a", ContainerName: "main",
		ContainerId: "taken"}); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		req  *lifecyclev1.PreStartContainerRequest
		want rpctest.Failure
	}{
		"nothing": {&lifecyclev1.PreStartContainerRequest{Pid: -1}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID",
			Fields:  []string{"pod_uid", "container_name", "container_id", "pid"},
			Message: "request is invalid: pod_uid: is required (and 3 more)",
		}},
		"id with a scheme": {&lifecyclev1.PreStartContainerRequest{PodUid: "a", ContainerName: "main", ContainerId: "containerd://c1"},
			rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"container_id"},
				Message: `request is invalid: container_id: "containerd://c1": expected 1 to 128 letters, digits, '-', '_' and '.'`,
			}},
		"long id": {&lifecyclev1.PreStartContainerRequest{PodUid: "a", ContainerName: "main", ContainerId: strings.Repeat("a", 129)},
			rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"container_id"},
				Message: `request is invalid: container_id: "` + strings.Repeat("a", 129) +
					`": expected 1 to 128 letters, digits, '-', '_' and '.'`,
			}},
		"unknown pod": {&lifecyclev1.PreStartContainerRequest{PodUid: "b", ContainerName: "main", ContainerId: "c1"}, rpctest.Failure{
			Code: codes.NotFound, Reason: "POD_NOT_FOUND", Message: "pod b is not admitted",
		}},
		"unknown container": {&lifecyclev1.PreStartContainerRequest{PodUid: "a", ContainerName: "who", ContainerId: "c1"}, rpctest.Failure{
			Code: codes.NotFound, Reason: "CONTAINER_NOT_FOUND", Message: `pod a has no container "who"`,
		}},
		"id of another": {&lifecyclev1.PreStartContainerRequest{PodUid: "a", ContainerName: "side", ContainerId: "taken"}, rpctest.Failure{
			Code: codes.Aborted, Reason: "STATE_MOVED", Message: "container id taken belongs to a/main already", Retry: true,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.PreStartContainer(t.Context(), row.req)
			row.want.Check(t, err)
		})
	}
	t.Run("stop without an id", func(t *testing.T) {
		t.Parallel()
		_, err := client.PostStopContainer(t.Context(), &lifecyclev1.PostStopContainerRequest{})
		rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"container_id"},
			Message: `request is invalid: container_id: "": expected 1 to 128 letters, digits, '-', '_' and '.'`,
		}.Check(t, err)
	})
}

// A report is stored if its container is bound. One that no kernel could show, or that is about another ledger, is refused.
func TestReportMemory(t *testing.T) {
	t.Parallel()
	client, e := serve(t)
	if _, err := client.PreStartContainer(t.Context(), &lifecyclev1.PreStartContainerRequest{PodUid: "a", ContainerName: "main",
		ContainerId: "c1"}); err != nil {
		t.Fatal(err)
	}
	now := e.ledger.View().Revision()
	node := func(id uint32, bytes uint64) *typesv1.NodeMemory {
		return &typesv1.NodeMemory{Resource: "memory", NumaNode: id, Bytes: bytes}
	}
	on1 := &typesv1.NUMANodeSet{Ids: []uint32{1}}
	for name, row := range map[string]struct {
		req   *lifecyclev1.ReportMemoryRequest
		found bool
		code  codes.Code
		field string
	}{
		"stored": {&lifecyclev1.ReportMemoryRequest{ContainerId: "c1", Revision: now, MemoryNodes: on1,
			NodeMemory: []*typesv1.NodeMemory{node(0, 0), node(1, 7)}}, true, codes.OK, ""},
		"not bound": {&lifecyclev1.ReportMemoryRequest{ContainerId: "c2", Revision: now, MemoryNodes: on1}, false, codes.OK, ""},
		"immovable": {&lifecyclev1.ReportMemoryRequest{ContainerId: "c1", Revision: now, ImmovableReason: "with cgroup v1"}, true,
			codes.OK, ""},
		"no id":    {&lifecyclev1.ReportMemoryRequest{Revision: now, MemoryNodes: on1}, false, codes.InvalidArgument, "container_id"},
		"no nodes": {&lifecyclev1.ReportMemoryRequest{ContainerId: "c1", Revision: now}, false, codes.InvalidArgument, "memory_nodes"},
		"a high node": {&lifecyclev1.ReportMemoryRequest{ContainerId: "c1", Revision: now, MemoryNodes: on1,
			NodeMemory: []*typesv1.NodeMemory{node(64, 1)}}, false, codes.InvalidArgument, "node_memory.numa_node"},
		"a node twice": {&lifecyclev1.ReportMemoryRequest{ContainerId: "c1", Revision: now, MemoryNodes: on1,
			NodeMemory: []*typesv1.NodeMemory{node(1, 1), node(1, 2)}}, false, codes.InvalidArgument, "node_memory.numa_node"},
		"much": {&lifecyclev1.ReportMemoryRequest{ContainerId: "c1", Revision: now, MemoryNodes: on1,
			NodeMemory: []*typesv1.NodeMemory{node(1, 1<<57+1)}}, false, codes.InvalidArgument, "node_memory.bytes"},
		"huge pages": {&lifecyclev1.ReportMemoryRequest{ContainerId: "c1", Revision: now, MemoryNodes: on1,
			NodeMemory: []*typesv1.NodeMemory{{Resource: "hugepages-2Mi"}}}, false, codes.InvalidArgument, "node_memory.resource"},
		"a long reason": {&lifecyclev1.ReportMemoryRequest{ContainerId: "c1", Revision: now, ImmovableReason: strings.Repeat("x", 257)},
			false, codes.InvalidArgument, "immovable_reason"},
		"control codes": {&lifecyclev1.ReportMemoryRequest{ContainerId: "c1", Revision: now, ImmovableReason: "\x1b[2J"}, false,
			codes.InvalidArgument, "immovable_reason"},
		"no revision": {&lifecyclev1.ReportMemoryRequest{ContainerId: "c1", MemoryNodes: on1, Revision: now + 1}, false,
			codes.FailedPrecondition, "not a revision of this ledger"},
	} {
		got, err := client.ReportMemory(t.Context(), row.req)
		if status.Code(err) != row.code || got.GetFound() != row.found || err != nil && !strings.Contains(err.Error(), row.field) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := client.ReportMemory(t.Context(), &lifecyclev1.ReportMemoryRequest{ContainerId: "c1", Revision: now, MemoryNodes: on1,
		NodeMemory: []*typesv1.NodeMemory{node(1, 7)}}); err != nil {
		t.Fatal(err)
	}
	if r := e.reports["c1"]; r.Revision != now || r.Nodes != numa.Of(1) || r.Bytes[1] != 7 || r.Immovable != "" {
		t.Errorf("stored: %v", r)
	}
}
