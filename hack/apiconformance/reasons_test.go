package apiconformance

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	errorsv1 "github.com/berthd/berth/api/berth/errors/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// failure is a call that fails with a reason.
type failure struct {
	reason errorsv1.ErrorReason
	code   codes.Code
	call   func(n *node) error
}

// failures are made on one node, in this order: pod a has CPUs and a device of its own, pod b
// shares CPUs.
var failures = []failure{
	{errorsv1.ErrorReason_REQUEST_INVALID, codes.InvalidArgument, func(n *node) error {
		_, err := n.admission.Admit(n.ctx(), &admissionv1.AdmitRequest{})
		return err
	}},
	{errorsv1.ErrorReason_REQUEST_INVALID, codes.InvalidArgument, func(n *node) error {
		_, err := n.admission.SyncPods(n.ctx(), &admissionv1.SyncPodsRequest{ActivePodUids: []string{"a", "b"}})
		return err
	}},
	{errorsv1.ErrorReason_UNSUPPORTED_POD_FIELD, codes.InvalidArgument, func(n *node) error {
		p := burstable("claims")
		p.Spec.ResourceClaims = []*typesv1.PodResourceClaim{{Name: "gpu"}}
		_, err := n.admission.Admit(n.ctx(), admit("", p))
		return err
	}},
	{errorsv1.ErrorReason_POD_NOT_FOUND, codes.NotFound, func(n *node) error {
		_, err := n.allocation.Get(n.ctx(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: "none"}})
		return err
	}},
	{errorsv1.ErrorReason_CONTAINER_NOT_FOUND, codes.NotFound, func(n *node) error {
		_, err := n.allocation.Allocate(n.ctx(), &allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "a"}, ContainerName: "none"})
		return err
	}},
	{errorsv1.ErrorReason_RESOURCE_NOT_FOUND, codes.NotFound, func(n *node) error {
		_, err := devicev1.NewDeviceServiceClient(n.conn).ForgetResource(n.ctx(), &devicev1.ForgetResourceRequest{Resource: "example.com/none"})
		return err
	}},
	{errorsv1.ErrorReason_RESOURCE_SERVED, codes.FailedPrecondition, func(n *node) error {
		n.pluginOf("example.com/tape")
		_, err := devicev1.NewDeviceServiceClient(n.conn).ForgetResource(n.ctx(), &devicev1.ForgetResourceRequest{Resource: "example.com/tape"})
		return err
	}},
	{errorsv1.ErrorReason_RESOURCE_IN_USE, codes.FailedPrecondition, func(n *node) error {
		_, err := devicev1.NewDeviceServiceClient(n.conn).ForgetResource(n.ctx(), &devicev1.ForgetResourceRequest{Resource: gpu})
		return err
	}},
	{errorsv1.ErrorReason_PROVIDER_NOT_FOUND, codes.NotFound, func(n *node) error {
		_, err := hintv1.NewHintBusServiceClient(n.conn).Unregister(n.ctx(), &hintv1.UnregisterRequest{Provider: "none"})
		return err
	}},
	{errorsv1.ErrorReason_TRACE_NOT_FOUND, codes.NotFound, func(n *node) error {
		_, err := n.inspect.GetTrace(n.ctx(), &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_AdmissionId{AdmissionId: "none"}})
		return err
	}},
	{errorsv1.ErrorReason_CGROUP_NOT_FOUND, codes.NotFound, func(n *node) error {
		_, err := cgroupv1.NewCgroupServiceClient(n.conn).GetConfig(n.ctx(), &cgroupv1.GetConfigRequest{Name: extra})
		return err
	}},
	{errorsv1.ErrorReason_CONTAINER_ID_BOUND, codes.AlreadyExists, func(n *node) error {
		lifecycle := lifecyclev1.NewLifecycleServiceClient(n.conn)
		if _, err := lifecycle.PreStartContainer(n.ctx(), &lifecyclev1.PreStartContainerRequest{PodUid: "a", ContainerName: "main", ContainerId: "c1"}); err != nil {
			return err
		}
		_, err := lifecycle.PreStartContainer(n.ctx(), &lifecyclev1.PreStartContainerRequest{PodUid: "b", ContainerName: "main", ContainerId: "c1"})
		return err
	}},
	{errorsv1.ErrorReason_ADMISSION_ID_USED, codes.AlreadyExists, func(n *node) error {
		_, err := n.admission.Admit(n.ctx(), admit("of-a", burstable("another")))
		return err
	}},
	{errorsv1.ErrorReason_POD_SPEC_DIFFERS, codes.FailedPrecondition, func(n *node) error {
		_, err := n.admission.Admit(n.ctx(), admit("", burstable("a")))
		return err
	}},
	{errorsv1.ErrorReason_OWNER_DIFFERS, codes.FailedPrecondition, func(n *node) error {
		_, err := n.admission.RemovePod(n.ctx(), &admissionv1.RemovePodRequest{PodUid: "a", Owner: "another"})
		return err
	}},
	{errorsv1.ErrorReason_POD_REJECTED, codes.FailedPrecondition, func(n *node) error {
		_, err := n.allocation.Allocate(n.ctx(), &allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_Pod{Pod: guaranteed("large", "1000", "")}, ContainerName: "main"})
		return err
	}},
	{errorsv1.ErrorReason_PRECONDITION_FAILED, codes.FailedPrecondition, func(n *node) error {
		_, err := cgroupv1.NewCgroupServiceClient(n.conn).Destroy(n.ctx(), &cgroupv1.DestroyRequest{Name: "/node/kubepods"})
		return err
	}},
	{errorsv1.ErrorReason_IMPORT_CONTRADICTS, codes.FailedPrecondition, func(n *node) error {
		n.admitted(guaranteed("gone", "2", ""))
		state, err := n.inspect.Export(n.ctx(), &inspectv1.ExportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU})
		if err != nil {
			return err
		}
		if _, err := n.admission.RemovePod(n.ctx(), &admissionv1.RemovePodRequest{PodUid: "gone"}); err != nil {
			return err
		}
		n.admitted(guaranteed("next", "2", "")) // with the same CPUs
		_, err = n.inspect.Import(n.ctx(), &inspectv1.ImportRequest{
			Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: state.GetState(), Pods: []*typesv1.Pod{guaranteed("gone", "2", "")},
		})
		return err
	}},
	{errorsv1.ErrorReason_ALLOCATIONS_CONTRADICT, codes.FailedPrecondition, func(n *node) error {
		view, err := n.allocation.Get(n.ctx(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: "a"}})
		if err != nil {
			return err
		}
		req := admit("", guaranteed("thief", "2", ""))
		req.RunningAllocations = []*admissionv1.RunningAllocation{{ContainerName: "main", Cpus: view.GetPod().GetContainers()[0].GetCpus()}}
		_, err = n.admission.Admit(n.ctx(), req)
		return err
	}},
	{errorsv1.ErrorReason_REVISION_UNKNOWN, codes.FailedPrecondition, func(n *node) error {
		_, err := n.admission.SyncPods(n.ctx(), &admissionv1.SyncPodsRequest{ActivePodUids: []string{"a", "b"}, KnownRevision: n.revision() + 1000})
		return err
	}},
	{errorsv1.ErrorReason_STATE_MOVED, codes.Aborted, func(n *node) error {
		resize := func(cpu string, revision uint64) error {
			_, err := n.admission.Resize(n.ctx(), &admissionv1.ResizeRequest{PodUid: "b", IfRevision: revision, Containers: []*admissionv1.ContainerResources{{
				ContainerName: "main", Resources: &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": cpu}},
			}}})
			return err
		}
		read := n.revision()
		if err := resize("300m", read); err != nil {
			return err
		}
		return resize("400m", read)
	}},
	{errorsv1.ErrorReason_REVISION_COMPACTED, codes.OutOfRange, func(n *node) error {
		page, err := n.allocation.List(n.ctx(), &allocationv1.ListRequest{PageSize: 1})
		if err != nil {
			return err
		}
		for i := range 20 { // each admission makes another revision, and each list keeps one
			n.admitted(burstable(fmt.Sprint("page", i)))
			if _, err := n.allocation.List(n.ctx(), &allocationv1.ListRequest{PageSize: 1}); err != nil {
				return err
			}
		}
		_, err = n.allocation.List(n.ctx(), &allocationv1.ListRequest{PageSize: 1, PageToken: page.GetNextPageToken()})
		return err
	}},
	{errorsv1.ErrorReason_NOT_SUPPORTED, codes.Unimplemented, func(n *node) error {
		_, err := cgroupv1.NewCgroupServiceClient(n.conn).GetConfig(n.ctx(), &cgroupv1.GetConfigRequest{Name: "/node/kubepods", Resource: "example.com/none"})
		return err
	}},
	{errorsv1.ErrorReason_DATA_CORRUPT, codes.DataLoss, func(n *node) error {
		_, err := n.inspect.Import(n.ctx(), &inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: []byte("{")})
		return err
	}},
	{errorsv1.ErrorReason_LIMIT_EXCEEDED, codes.ResourceExhausted, func(n *node) error {
		_, err := admissionv1.NewAdmissionServiceClient(n.dial("another user")).SyncPods(n.ctx(), &admissionv1.SyncPodsRequest{
			ActivePodUids: make([]string, 100_000), Owner: "another", KnownRevision: n.revision(), DryRun: true,
		})
		return err
	}},
	{errorsv1.ErrorReason_ROLE_MISSING, codes.PermissionDenied, func(n *node) error {
		_, err := inspectv1.NewInspectServiceClient(n.dial("another user")).Dump(n.ctx(), &inspectv1.DumpRequest{})
		return err
	}},
	{errorsv1.ErrorReason_OWNER_NOT_PERMITTED, codes.PermissionDenied, func(n *node) error {
		_, err := admissionv1.NewAdmissionServiceClient(n.dial("another user")).RemovePod(n.ctx(), &admissionv1.RemovePodRequest{PodUid: "a"})
		return err
	}},
}

// unreached says why no row reaches a reason, and which test of which file checks it.
type unreached struct{ why, file, test string }

// elsewhere are the reasons that no row reaches.
var elsewhere = map[errorsv1.ErrorReason]unreached{
	errorsv1.ErrorReason_OBJECT_NOT_FOUND:        {"the reason of an error without a reason of its own; every object that a request names has one", "server/internal/rpc/hintbus/service_test.go", "TestUnregister"},
	errorsv1.ErrorReason_OBJECT_EXISTS:           {"as OBJECT_NOT_FOUND", "managers/errdefs/errdefs_test.go", "TestCodeOf"},
	errorsv1.ErrorReason_PROCESS_NOT_FOUND:       {"needs processes in cgroups of the kernel", "server/internal/host/procfs/procfs_test.go", "TestUIDsOfNobody"},
	errorsv1.ErrorReason_CONTAINER_IDS_EXHAUSTED: {"needs many processes that live in cgroups of the kernel", "managers/admission/bindings_test.go", "TestIDsOfARuntime"},
	errorsv1.ErrorReason_SHARED_POOL_EMPTY:       {"needs a change of policy over pods of all CPUs", "managers/admission/reconfigure_test.go", "TestEmptySharedPoolIsRefused"},
	errorsv1.ErrorReason_TEMPORARILY_UNAVAILABLE: {"needs a kernel or disk that fails", "server/internal/rpc/rpc_test.go", "TestErrorsBecomeStatuses"},
	errorsv1.ErrorReason_POD_DEFERRED:            {"needs a pod that waits for something else than a plugin", "server/internal/rpc/allocation/service_test.go", "TestFailures"},
	errorsv1.ErrorReason_LEDGER_UNCERTAIN:        {"needs a ledger that was lost", "managers/admission/resizeclass_test.go", "TestLivingPodIsNotUnknown"},
	errorsv1.ErrorReason_PLUGIN_AWAY:             {"needs a plugin that is away", "server/internal/rpc/allocation/service_test.go", "TestFailures"},
	errorsv1.ErrorReason_LEDGER_UNAVAILABLE:      {"needs a disk that fails", "managers/ledger/ledger_test.go", "TestJournalFails"},
	errorsv1.ErrorReason_PLUGIN_FAILED:           {"needs a plugin that fails", "server/internal/deviceplugin/calls_test.go", "TestPreStart"},
	errorsv1.ErrorReason_PROVIDER_FAILED:         {"needs a provider that fails", "server/internal/hintproxy/life_test.go", "TestRegisterSomebodyElse"},
	errorsv1.ErrorReason_SHUTTING_DOWN:           {"needs a berthd that is ending", "server/internal/rpc/allocation/watch_test.go", "TestStreamsEndWithBerth"},
	errorsv1.ErrorReason_NOT_PERMITTED:           {"as OBJECT_NOT_FOUND; another user's provider", "server/internal/hintproxy/life_test.go", "TestRegistrationsBelongToUsers"},
	errorsv1.ErrorReason_TOO_MANY_CALLS:          {"needs a flood", "server/internal/rpc/slots_test.go", "TestSlots"},
	errorsv1.ErrorReason_TIMED_OUT:               {"the client ends the call before it reads the error", "managers/admission/leaver_test.go", "TestCallerLeaves"},
	errorsv1.ErrorReason_CALL_CANCELED:           {"the client ends the call before it reads the error", "managers/admission/leaver_test.go", "TestCallerLeaves"},
	errorsv1.ErrorReason_INTERNAL_ERROR:          {"is a defect", "server/internal/rpc/rpc_test.go", "TestErrorsBecomeStatuses"},
}

// TestReasonsElsewhere: the tests that check the other reasons exist, and contain the reasons.
func TestReasonsElsewhere(t *testing.T) {
	t.Parallel()
	for reason, at := range elsewhere {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", at.file), nil, 0)
		if err != nil {
			t.Errorf("%s: %v", reason, err)
			continue
		}
		named := false
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || f.Name.Name != at.test {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				text, ok := n.(*ast.BasicLit)
				named = named || ok && text.Value == strconv.Quote(reason.String())
				return true
			})
		}
		if !named {
			t.Errorf("%s: %s of %s does not check it", reason, at.test, at.file)
		}
	}
}

// reasonOf returns the reason of an error; it has exactly one ErrorInfo, of berth's domain.
func reasonOf(t *testing.T, err error) string {
	t.Helper()
	reason := ""
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			if reason != "" || info.GetDomain() != "berthd.github.io" || info.GetMetadata()["request_id"] == "" {
				t.Errorf("%v: ErrorInfo %v", err, info)
			}
			reason = info.GetReason()
		}
	}
	return reason
}

// TestReasons reaches the reasons of errors. Each reason is in a row, or has a reason why not.
func TestReasons(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs to act as another user, this is uid %d", os.Geteuid())
	}
	reached := map[errorsv1.ErrorReason]bool{}
	for _, f := range failures {
		reached[f.reason] = true
	}
	for number, name := range errorsv1.ErrorReason_name {
		r := errorsv1.ErrorReason(number)
		if _, ok := elsewhere[r]; number != 0 && reached[r] == ok {
			t.Errorf("%s: in a row %t, named as reached elsewhere %t", name, reached[r], ok)
		}
	}
	n := newNode(t, fmt.Sprintf("access: [{uid: %d, roles: [agent], owners: [another]}]\n", unprivileged))
	n.plugin()
	n.admitted(guaranteed("a", "2", "1"))
	n.admitted(burstable("b"))
	for i, f := range failures {
		err := f.call(n)
		if got := reasonOf(t, err); got != f.reason.String() || status.Code(err) != f.code {
			t.Errorf("row %d: %v with %q, want %s with %s", i, err, got, f.code, f.reason)
		}
	}
}

// TestTwoOwners: agents with owners of their own change only their own pods.
func TestTwoOwners(t *testing.T) {
	t.Parallel()
	n := newNode(t, "")
	for owner, uids := range map[string][]string{"one": {"a", "b"}, "two": {"c", "d"}} {
		for _, uid := range uids {
			req := admit("", burstable(uid))
			req.Owner = owner
			if r, err := n.admission.Admit(n.ctx(), req); err != nil || r.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
				t.Fatalf("%s of %s: %v, %v", uid, owner, r, err)
			}
		}
	}
	listed := func(owner string) (uids []string) {
		r, err := n.allocation.List(n.ctx(), &allocationv1.ListRequest{Owner: owner})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.GetPods() {
			uids = append(uids, p.GetUid())
		}
		return uids
	}
	want := func(owner, uids string) {
		t.Helper()
		if got := fmt.Sprint(listed(owner)); got != uids {
			t.Errorf("pods of %q: %s, want %s", owner, got, uids)
		}
	}
	want("one", "[a b]")
	want("two", "[c d]")
	want("", "[a b c d]")
	sync := func(owner string, uids ...string) []string {
		t.Helper()
		r, err := n.admission.SyncPods(context.Background(), &admissionv1.SyncPodsRequest{Owner: owner, ActivePodUids: uids, KnownRevision: n.revision(), AllowEmpty: len(uids) == 0})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetRemovedPodUids()
	}
	if removed := fmt.Sprint(sync("one", "a")); removed != "[b]" {
		t.Errorf("removed %s", removed)
	}
	if removed := fmt.Sprint(sync("three")); removed != "[]" {
		t.Errorf("an owner without pods removed %s", removed)
	}
	want("", "[a c d]")
	for _, uid := range []string{"c", "d"} {
		if _, err := n.admission.RemovePod(n.ctx(), &admissionv1.RemovePodRequest{PodUid: uid, Owner: "one"}); reasonOf(t, err) != "OWNER_DIFFERS" {
			t.Errorf("remove %s: %v", uid, err)
		}
	}
	want("two", "[c d]")
}

// TestPagesUnderChange: all pages are of the revision of the first one, whatever is admitted or
// removed between them.
func TestPagesUnderChange(t *testing.T) {
	t.Parallel()
	n := newNode(t, "")
	for i := range 7 {
		n.admitted(burstable(fmt.Sprint("p", i)))
	}
	var got []string
	revision, token := uint64(0), ""
	for i := 0; ; i++ {
		page, err := n.allocation.List(n.ctx(), &allocationv1.ListRequest{PageSize: 2, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			revision = page.GetRevision()
		} else if page.GetRevision() != revision {
			t.Errorf("page %d is of revision %d, the first one of %d", i, page.GetRevision(), revision)
		}
		for _, p := range page.GetPods() {
			got = append(got, p.GetUid())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
		if _, err := n.admission.RemovePod(n.ctx(), &admissionv1.RemovePodRequest{PodUid: fmt.Sprint("p", 6-i)}); err != nil {
			t.Fatal(err)
		}
		n.admitted(burstable(fmt.Sprint("between", i)))
	}
	if want := "[p0 p1 p2 p3 p4 p5 p6]"; fmt.Sprint(got) != want {
		t.Errorf("the pages have %v, want %s", got, want)
	}
}
