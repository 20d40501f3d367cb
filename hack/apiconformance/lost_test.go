package apiconformance

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	qosv1 "github.com/berthd/berth/api/berth/qos/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// losing loses the next answer.
type losing struct {
	mu   sync.Mutex
	next bool          // guarded by mu
	lost proto.Message // guarded by mu: what berthd had answered
}

func (l *losing) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.next || err != nil {
		return err
	}
	l.next, l.lost = false, proto.Clone(reply.(proto.Message))
	proto.Reset(reply.(proto.Message))
	return status.Error(codes.DeadlineExceeded, "the answer is lost")
}

// mutation is a call of a method that changes something.
type mutation struct {
	// before makes the state in which the call is made.
	before func(n *node)
	// request makes the request, after before.
	request func(n *node) proto.Message
	// answer changes the first answer to the one that the repeated call has. nil: they are
	// equal.
	answer func(first proto.Message) proto.Message
	// code is the code of the repeated call if it is an error.
	code codes.Code
}

// pools requests huge pages of 2 MiB.
func pools(node uint32, count uint64) []*nodev1.HugePagePool {
	return []*nodev1.HugePagePool{{NumaNode: node, PageSizeBytes: 2 << 20, Count: count}}
}

func ptr[T any](v T) *T { return &v }

// imported is a state file of a kubelet with two pods.
const imported = `{"policyName":"static","defaultCpuSet":"0,4-7,11-15","entries":{"a":{"main":"1,9"},"b":{"main":"2-3,8,10"}},"checksum":88103633}`

// changed applies a change to a copy of an answer.
func changed[M proto.Message](change func(m M)) func(proto.Message) proto.Message {
	return func(first proto.Message) proto.Message {
		c := proto.Clone(first)
		change(c.(M))
		return c
	}
}

// mutations has every method that changes something.
var mutations = map[string]mutation{
	"/berth.admission.v1.AdmissionService/Admit": {
		request: func(*node) proto.Message { return admit("mine", guaranteed("a", "2", "1")) },
		answer:  changed(func(m *admissionv1.AdmitResponse) { m.Replayed = true }),
	},
	"/berth.admission.v1.AdmissionService/Resize": {
		before: func(n *node) { n.admitted(burstable("a")) },
		request: func(*node) proto.Message {
			return &admissionv1.ResizeRequest{PodUid: "a", AdmissionId: "grow", Containers: []*admissionv1.ContainerResources{{
				ContainerName: "main", Resources: &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": "300m"}},
			}}}
		},
		answer: changed(func(m *admissionv1.ResizeResponse) { m.Replayed = true }),
	},
	"/berth.admission.v1.AdmissionService/RemovePod": removal,
	"/berth.admission.v1.AdmissionService/SyncPods":  syncing,
	"/berth.allocation.v1.AllocationService/Allocate": {
		request: func(*node) proto.Message {
			return &allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_Pod{Pod: guaranteed("a", "2", "1")},
				ContainerName: "main"}
		},
	},
	"/berth.lifecycle.v1.LifecycleService/PreStartContainer": {
		before: func(n *node) { n.admitted(guaranteed("a", "2", "1")) },
		request: func(*node) proto.Message {
			return &lifecyclev1.PreStartContainerRequest{PodUid: "a", ContainerName: "main", ContainerId: "c1"}
		},
	},
	"/berth.lifecycle.v1.LifecycleService/PostStopContainer": {
		before: func(n *node) {
			n.admitted(guaranteed("a", "2", "1"))
			_, err := lifecyclev1.NewLifecycleServiceClient(n.conn).PreStartContainer(n.ctx(),
				&lifecyclev1.PreStartContainerRequest{PodUid: "a", ContainerName: "main", ContainerId: "c1"})
			if err != nil {
				n.t.Fatal(err)
			}
		},
		request: func(*node) proto.Message { return &lifecyclev1.PostStopContainerRequest{ContainerId: "c1"} },
		answer:  changed(func(m *lifecyclev1.PostStopContainerResponse) { m.Found = false }),
	},
	"/berth.lifecycle.v1.LifecycleService/ReportMemory": {
		before: func(n *node) {
			n.admitted(guaranteed("a", "2", "1"))
			if _, err := lifecyclev1.NewLifecycleServiceClient(n.conn).PreStartContainer(n.ctx(), start("a", "main", "c1")); err != nil {
				n.t.Fatal(err)
			}
		},
		request: func(n *node) proto.Message { return memoryOn0("c1", n.revision()) },
	},
	"/berth.topology.v1.TopologyService/SetPolicy": {
		request: func(*node) proto.Message { return &topologyv1.SetPolicyRequest{TopologyPolicy: ptr("restricted")} },
		answer:  changed(func(m *topologyv1.SetPolicyResponse) { m.Changed = false }),
	},
	"/berth.inspect.v1.InspectService/Import": {
		request: func(*node) proto.Message {
			return &inspectv1.ImportRequest{
				Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: []byte(imported),
				Pods: []*typesv1.Pod{guaranteed("a", "2", ""), guaranteed("b", "4", "")},
			}
		},
		answer: changed(func(m *inspectv1.ImportResponse) {
			for _, p := range m.GetPods() {
				p.Outcome = inspectv1.ImportOutcome_IMPORT_OUTCOME_KNOWN
			}
		}),
	},
	"/berth.hint.v1.HintBusService/Register": {before: serveProvider, request: registration},
	"/berth.hint.v1.HintBusService/Unregister": {
		before: func(n *node) {
			serveProvider(n)
			if _, err := hintv1.NewHintBusServiceClient(n.conn).Register(n.ctx(), registration(n).(*hintv1.RegisterRequest)); err != nil {
				n.t.Fatal(err)
			}
		},
		request: func(*node) proto.Message { return &hintv1.UnregisterRequest{Provider: "slots"} },
		code:    codes.NotFound,
	},
	"/berth.device.v1.DeviceService/ForgetResource": {
		before: func(n *node) {
			n.pluginOf("example.com/tape")()
			n.eventually("the plugin is away", func() bool {
				return n.resource("example.com/tape").GetPluginState() != typesv1.PluginState_PLUGIN_STATE_CONNECTED
			})
		},
		request: func(*node) proto.Message { return &devicev1.ForgetResourceRequest{Resource: "example.com/tape"} },
		code:    codes.NotFound,
	},
	// The machine is simulated, so nothing can be set.
	"/berth.node.v1.NodeService/SetHugePages": {request: func(*node) proto.Message {
		return &nodev1.SetHugePagesRequest{Pools: pools(0, 1), DryRun: true}
	}},
	"/berth.node.v1.NodeService/Reload": {request: func(*node) proto.Message { return &nodev1.ReloadRequest{} }},
	"/berth.qos.v1.QOSService/UpdateCgroups": {
		request: func(*node) proto.Message { return &qosv1.UpdateCgroupsRequest{} },
		answer:  changed(func(m *qosv1.UpdateCgroupsResponse) { m.Writes = nil }),
	},
	"/berth.cgroup.v1.CgroupService/Create": {
		request: func(*node) proto.Message { return &cgroupv1.CreateRequest{Name: extra, Resources: limits} },
		answer:  changed(func(m *cgroupv1.CreateResponse) { m.Writes = nil }),
	},
	"/berth.cgroup.v1.CgroupService/Destroy": {
		before:  createExtra,
		request: func(*node) proto.Message { return &cgroupv1.DestroyRequest{Name: extra} },
	},
	"/berth.cgroup.v1.CgroupService/Update": {
		before:  createExtra,
		request: func(*node) proto.Message { return &cgroupv1.UpdateRequest{Name: extra, Resources: limits} },
		answer:  changed(func(m *cgroupv1.UpdateResponse) { m.Writes = nil }),
	},
	"/berth.cgroup.v1.CgroupService/SetConfig": {
		before:  createExtra,
		request: func(*node) proto.Message { return &cgroupv1.SetConfigRequest{Name: extra, Resources: limits} },
		answer:  changed(func(m *cgroupv1.SetConfigResponse) { m.Writes = nil }),
	},
	"/berth.cgroup.v1.CgroupService/ReduceCPULimits": {
		before:  createExtra,
		request: func(*node) proto.Message { return &cgroupv1.ReduceCPULimitsRequest{Name: extra} },
		answer:  changed(func(m *cgroupv1.ReduceCPULimitsResponse) { m.Writes = nil }),
	},
	"/berth.cgroup.v1.PodCgroupService/EnsureExists": {
		before:  func(n *node) { n.admitted(burstable("a")) },
		request: func(*node) proto.Message { return &cgroupv1.EnsureExistsRequest{PodUid: "a"} },
		answer:  changed(func(m *cgroupv1.EnsureExistsResponse) { m.Created = false }),
	},
	"/berth.cgroup.v1.PodCgroupService/Destroy": {
		before:  createLeftover,
		request: func(*node) proto.Message { return &cgroupv1.PodCgroupServiceDestroyRequest{PodUid: "left"} },
		answer:  changed(func(m *cgroupv1.PodCgroupServiceDestroyResponse) { m.Names = nil }),
	},
	"/berth.cgroup.v1.PodCgroupService/ReduceCPULimits": {
		before:  createLeftover,
		request: func(*node) proto.Message { return &cgroupv1.PodCgroupServiceReduceCPULimitsRequest{PodUid: "left"} },
		answer:  changed(func(m *cgroupv1.PodCgroupServiceReduceCPULimitsResponse) { m.Writes = nil }),
	},
}

var (
	removal = mutation{
		before:  func(n *node) { n.admitted(guaranteed("a", "2", "1")) },
		request: func(*node) proto.Message { return &admissionv1.RemovePodRequest{PodUid: "a"} },
		answer:  changed(func(m *admissionv1.RemovePodResponse) { m.Removed, m.Released = false, nil }),
	}
	syncing = mutation{
		before: func(n *node) { n.admitted(guaranteed("a", "2", "1")); n.admitted(burstable("b")) },
		request: func(n *node) proto.Message {
			return &admissionv1.SyncPodsRequest{ActivePodUids: []string{"b"}, KnownRevision: n.revision()}
		},
		answer: changed(func(m *admissionv1.SyncPodsResponse) { m.RemovedPodUids = nil }),
	}
	limits = &typesv1.LinuxResources{MemoryLimitBytes: ptr(int64(64 << 20)), CpuShares: ptr(uint64(512))}
)

// extra is a cgroup of its own below that of the pods.
const extra = "/node/kubepods/extra"

func createExtra(n *node) {
	n.t.Helper()
	if _, err := cgroupv1.NewCgroupServiceClient(n.conn).Create(n.ctx(), &cgroupv1.CreateRequest{Name: extra}); err != nil {
		n.t.Fatal(err)
	}
}

// createLeftover makes the cgroup of a pod that is not admitted.
func createLeftover(n *node) {
	n.t.Helper()
	_, err := cgroupv1.NewCgroupServiceClient(n.conn).Create(n.ctx(), &cgroupv1.CreateRequest{Name: "/node/kubepods/burstable/podleft",
		Resources: limits})
	if err != nil {
		n.t.Fatal(err)
	}
}

// provider is a hint provider without hints.
type provider struct {
	hintv1.UnimplementedHintProviderServiceServer
}

func (provider) Commit(context.Context, *hintv1.CommitRequest) (*hintv1.CommitResponse, error) {
	return &hintv1.CommitResponse{}, nil
}

func serveProvider(n *node) {
	n.t.Helper()
	l, err := net.Listen("unix", filepath.Join(n.root, "slots.sock"))
	if err != nil {
		n.t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(n.root, "slots.sock"), 0o600); err != nil {
		n.t.Fatal(err)
	}
	g := grpc.NewServer()
	hintv1.RegisterHintProviderServiceServer(g, provider{})
	ended := make(chan struct{})
	go func() { defer close(ended); _ = g.Serve(l) }()
	n.t.Cleanup(func() { g.Stop(); <-ended })
}

func registration(n *node) proto.Message {
	return &hintv1.RegisterRequest{
		Provider: "slots", Endpoint: filepath.Join(n.root, "slots.sock"),
		Mode: hintv1.Mode_MODE_ADVISORY, Resources: []string{"example.com/slot"},
	}
}

// call calls a method by its descriptor.
func (n *node) call(method string, d protoreflect.MethodDescriptor, req proto.Message) (proto.Message, error) {
	n.t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.Output().FullName())
	if err != nil {
		n.t.Fatal(err)
	}
	reply := kind.New().Interface()
	return reply, n.conn.Invoke(n.ctx(), method, req, reply)
}

// TestLostAnswers loses the answer of every call that changes something, after it was
// committed, and repeats the call: the repeated call has the answer that docs/api.md
// promises, and changes nothing. The first answer had the revision of the change.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	all := methods(t)
	for method := range mutations {
		if all[method] == nil || reads(method) {
			t.Errorf("%s is no method, or reads only", method)
		}
	}
	for method, d := range all {
		if reads(method) {
			continue
		}
		m, ok := mutations[method]
		if !ok && d.IsStreamingServer() {
			continue // its end is an event, and a stream that breaks takes its last change back
		}
		if !ok {
			t.Errorf("%s changes something, and no row loses its answer", method)
			continue
		}
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "")
			n.plugin()
			if m.before != nil {
				m.before(n)
			}
			req, before := m.request(n), n.revision()
			n.losing.mu.Lock()
			n.losing.next = true
			n.losing.mu.Unlock()
			if _, err := n.call(method, d, req); status.Code(err) != codes.DeadlineExceeded {
				t.Fatalf("the answer was not lost: %v", err)
			}
			want := n.losing.lost
			state, revision := n.state(), n.revision()
			if f := d.Output().Fields().ByName("revision"); f == nil && revision != before {
				t.Errorf("the call has changed the ledger, and its answer has no revision")
			} else if f != nil && want.ProtoReflect().Get(f).Uint() != revision {
				t.Errorf("the answer has the revision %d, the ledger %d", want.ProtoReflect().Get(f).Uint(), revision)
			}
			if m.answer != nil {
				want = m.answer(want)
			}
			for range 2 {
				got, err := n.call(method, d, req)
				if status.Code(err) != m.code || err == nil && !proto.Equal(got, want) {
					t.Errorf("the repeated call has\n%v, %v, want\n%v, %s", got, err, want, m.code)
				}
			}
			if again := n.state(); again != state || n.revision() != revision {
				t.Errorf("the repeated call has changed something: revision %d, before %d\n%s\nbefore\n%s", n.revision(), revision, again,
					state)
			}
		})
	}
}

// TestLateRepeatUndoesNothing repeats a resize whose answer was lost after a later resize, also
// without if_revision: it is refused, and the pod keeps its size.
func TestLateRepeatUndoesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, "")
	n.admitted(burstable("a"))
	resize := func(id, cpu string) error {
		_, err := n.admission.Resize(n.ctx(), &admissionv1.ResizeRequest{PodUid: "a", AdmissionId: id,
			Containers: []*admissionv1.ContainerResources{{
				ContainerName: "main", Resources: &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": cpu}},
			}}})
		return err
	}
	n.losing.mu.Lock()
	n.losing.next = true
	n.losing.mu.Unlock()
	if err := resize("first", "300m"); status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("the answer was not lost: %v", err)
	}
	if err := resize("second", "200m"); err != nil {
		t.Fatal(err)
	}
	revision := n.revision()
	if err := resize("first", "300m"); status.Code(err) != codes.AlreadyExists || reasonOf(t, err) != "ADMISSION_ID_USED" {
		t.Errorf("repeated: %v", err)
	}
	got, err := n.allocation.Get(n.ctx(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	if cpu := got.GetPod().GetContainers()[0].GetResources().GetRequests()["cpu"]; cpu != "200m" || n.revision() != revision {
		t.Errorf("the pod requests %q at revision %d, which was %d", cpu, n.revision(), revision)
	}
}
