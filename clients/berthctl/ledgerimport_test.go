package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/managers/errdefs"
)

func (f fakeInspect) Import(_ context.Context, req *inspectv1.ImportRequest) (*inspectv1.ImportResponse, error) {
	f.ask(req)
	if o := req.GetOwner(); o != "" && o != "kubernetes" {
		return nil, errdefs.Invalidf("owner %q", o)
	}
	if req.GetKind() != inspectv1.StateFileKind_STATE_FILE_KIND_CPU {
		return nil, errdefs.Unsupportedf("import %s: not built yet", convert.Word(req.GetKind()))
	}
	out := &inspectv1.ImportResponse{Format: 2, Revision: 13, SharedCpus: sharedCPUs()}
	if len(req.GetPods()) == 0 {
		if !req.GetSkipUnknown() {
			return nil, errdefs.Preconditionf("the owner of of CPUs 1-2 of %s/app", webUID)
		}
		out.Skipped = []string{"CPUs 1-2 of " + webUID + "/app"}
		return out, nil
	}
	out.Pods = []*inspectv1.ImportedPod{{Pod: f.pods()[0], Outcome: inspectv1.ImportOutcome_IMPORT_OUTCOME_NEW}}
	out.Findings = []*inspectv1.Finding{{Kind: inspectv1.FindingKind_FINDING_KIND_POLICY,
		Holder: &typesv1.ContainerRef{PodUid: webUID, ContainerName: "app"}, Text: "CPUs 1 of it are reserved"}}
	out.Notes = []string{"the file is one of policy static,\nand berth runs under none"}
	return out, nil
}

func (f fakeInspect) Export(_ context.Context, req *inspectv1.ExportRequest) (*inspectv1.ExportResponse, error) {
	f.ask(req)
	return &inspectv1.ExportResponse{
		State: []byte(`{"policyName":"static"}`), Format: max(req.GetFormat(), 2), FileName: "cpu_manager_state", Revision: 12,
	}, nil
}

// importSteps are run by TestGolden.
var importSteps = []step{
	{args: "ledger import --kind cpu -f testdata/import/cpu_manager_state --pods testdata/import/pods"},
	{args: "ledger import --kind cpu -f testdata/import/cpu_manager_state --pods testdata/import/pods/web.yaml --dry-run"},
	{args: "ledger import --kind cpu -f testdata/import/cpu_manager_state --pods testdata/import/pods --owner kubernetes"},
	{args: "ledger import --kind cpu -f - --skip-unknown -o json", stdin: "{}"},
	{args: "ledger import --kind cpu -f - --skip-unknown", stdin: "{}"},
	{args: "ledger import --kind cpu -f -", stdin: "{}"},
	{args: "ledger import --kind memory -f -", stdin: "{}"},
	{args: "ledger import --kind cpu"},
	{args: "ledger import -f -"},
	{args: "ledger import --kind cpu -f nowhere"},
	{args: "ledger import --kind cpu -f - --pods testdata/import/nowhere", stdin: "{}"},
	{args: "ledger import --kind cpu -f - --pods testdata/import", stdin: "{}"},
	{args: "ledger import --kind cpu -f - --pods testdata/import/containers.json", stdin: "{}"},
	{args: "ledger import --kind cpu -f - --containers testdata/import/cpu_manager_state", stdin: "{}"},
	{args: "ledger export --kind cpu"},
	{args: "ledger export --kind cpu --format v3 -o yaml"},
	{args: "ledger export --kind cpu --format new"},
	{args: "ledger export"},
	{args: "ledger import --help"},
	{args: "ledger export --help"},
}

func TestImportSendsWhatTheFilesSay(t *testing.T) {
	t.Parallel()
	f := &fake{}
	r := invoke(t.Context(), f.start(t), "", strings.Fields("ledger import --kind cpu -f testdata/import/cpu_manager_state "+
		"--pods testdata/import/pods --containers testdata/import/containers.json --skip-unknown --dry-run")...)
	if r.code != command.ExitDone || len(f.asked) != 1 {
		t.Fatalf("%+v asked %v", r, f.asked)
	}
	state, err := os.ReadFile("testdata/import/cpu_manager_state")
	if err != nil {
		t.Fatal(err)
	}
	got := f.asked[0].(*inspectv1.ImportRequest)
	var uids []string
	for _, p := range got.GetPods() {
		uids = append(uids, p.GetMetadata().GetUid())
	}
	if strings.Join(uids, " ") != otherUID+" "+webUID {
		t.Errorf("pods %q", uids)
	}
	got.Pods = nil
	want := &inspectv1.ImportRequest{
		Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: state, SkipUnknown: true, DryRun: true,
		ContainerIds: map[string]*typesv1.ContainerRef{"c0ffee": {PodUid: webUID, ContainerName: "app"}},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestExportWritesAFile(t *testing.T) {
	t.Parallel()
	f := &fake{}
	path := filepath.Join(t.TempDir(), "state")
	r := invoke(t.Context(), f.start(t), "", "ledger", "export", "--kind", "cpu", "--format", "v2", "-f", path)
	text, err := os.ReadFile(path)
	if r.code != command.ExitDone || r.out != "" || err != nil || string(text) != `{"policyName":"static"}` {
		t.Errorf("%+v, %q, %v", r, text, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: want mode 0600, as the kubelet's", info, err)
	}
	if got := f.asked[0].(*inspectv1.ExportRequest); got.GetFormat() != 2 {
		t.Errorf("asked for %v", got)
	}
}
