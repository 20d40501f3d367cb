package apiconformance

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
)

// notReached is why no row reaches a reason, and which test of which file checks it.
type notReached struct{ why, file, test string }

// unreached are the reasons that no row reaches: of one method, or of all.
var unreached = map[string]notReached{
	"LifecycleService/PreStartContainer CONTAINER_IDS_EXHAUSTED": {"needs many processes that live in cgroups of the kernel",
		"managers/admission/bindings_test.go", "TestIDsOfARuntime"},
	"AdmissionService/RemovePod PRECONDITION_FAILED": {"needs a container runtime with a container outside of its pod's cgroup",
		"server/internal/reconcile/outside_test.go", "TestRemovalEndsContainersOutside"},
	"FitService/Fit PRECONDITION_FAILED": {"needs a machine of the past that the configuration does not fit",
		"server/internal/rpc/fit/unfit_test.go", "TestUnfitMachine"},
	"FitService/GetFreeResources PRECONDITION_FAILED": {"needs a machine of the past that the configuration does not fit",
		"server/internal/rpc/fit/unfit_test.go", "TestUnfitMachine"},
	"OBJECT_NOT_FOUND": {"the reason of an error without a reason of its own; every object that a request names has one",
		"server/internal/rpc/hintbus/service_test.go", "TestUnregister"},
	"OBJECT_EXISTS":           {"as OBJECT_NOT_FOUND", "managers/errdefs/errdefs_test.go", "TestCodeOf"},
	"TEMPORARILY_UNAVAILABLE": {"needs a kernel or disk that fails", "server/internal/rpc/rpc_test.go", "TestErrorsBecomeStatuses"},
	"SHUTTING_DOWN": {"needs a berthd that is ending: only streams and calls of plugins outlive its last answers",
		"server/internal/rpc/allocation/watch_test.go", "TestStreamsEndWithBerth"},
	"TIMED_OUT": {"the client ends the call before it reads the error", "managers/admission/leaver_test.go",
		"TestCallerLeaves"},
	"CALL_CANCELED": {"the client ends the call before it reads the error", "managers/admission/leaver_test.go",
		"TestCallerLeaves"},
	"INTERNAL_ERROR": {"is a defect", "server/internal/rpc/rpc_test.go", "TestErrorsBecomeStatuses"},
}

// TestReasonsElsewhere: the tests that check the other reasons exist, and contain the reasons.
func TestReasonsElsewhere(t *testing.T) {
	t.Parallel()
	for name, at := range unreached {
		reason := name[strings.LastIndexByte(name, ' ')+1:]
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
				named = named || ok && text.Value == strconv.Quote(reason)
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
		r, err := n.admission.SyncPods(context.Background(), &admissionv1.SyncPodsRequest{Owner: owner, ActivePodUids: uids,
			KnownRevision: n.revision(), AllowEmpty: len(uids) == 0})
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
		if _, err := n.admission.RemovePod(n.ctx(),
			&admissionv1.RemovePodRequest{PodUid: uid, Owner: "one"}); reasonOf(t, err) != "OWNER_DIFFERS" {
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
