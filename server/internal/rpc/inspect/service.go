// Package inspect serves berth.inspect.v1: the stored ledger, the findings of its check,
// the traces of admissions, and import and export of a kubelet's state files. Only Import
// changes anything.
package inspect

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/decisions"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/importer"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/kubelet"
)

// Ledger gives the current view, and the history that led to it; history.Ledger implements it.
type Ledger interface {
	View() *ledger.View
	Entries(ctx context.Context, below uint64, each func(*history.Entry, error) bool) error
	Omitted() uint64
}

// Importer imports state files; importer.Importer is the one there is.
type Importer interface {
	Import(ctx context.Context, req importer.Request) (importer.Result, error)
}

// Parts hold what the service works with.
type Parts struct {
	Ledger   Ledger
	Importer Importer
	// Read reads the pods of an import.
	Read convert.Reader
	// Settings returns the current settings of a kind's manager, in the words of a state file.
	Settings func(kubelet.Kind) kubelet.Settings
	// Kernel lists differences between the kernel and the ledger; may be nil.
	Kernel func() []check.Finding
	// Start describes the findings and actions of the daemon's start, in lines for people.
	Start func() []string
	// Recovered returns the start's decisions about pods.
	Recovered func() Recovered
	// Bundle returns a bundle without the history.
	Bundle func(ctx context.Context) (*bundle.Bundle, error)
}

type service struct {
	inspectv1.UnimplementedInspectServiceServer
	Parts
}

// New makes the service.
func New(parts Parts) inspectv1.InspectServiceServer { return &service{Parts: parts} }

// Dump implements InspectService.
func (s *service) Dump(context.Context, *inspectv1.DumpRequest) (*inspectv1.DumpResponse, error) {
	view := s.Ledger.View()
	entries, err := dumped(view)
	if err != nil {
		return nil, err
	}
	return &inspectv1.DumpResponse{Revision: view.Revision(), Entries: entries}, nil
}

// dumped returns everything in a view's ledger.
func dumped(view *ledger.View) ([]*inspectv1.Entry, error) {
	entries, err := journal.Dump(view)
	if err != nil {
		return nil, err
	}
	out := make([]*inspectv1.Entry, len(entries))
	for i, e := range entries {
		out[i] = &inspectv1.Entry{Bucket: e.Bucket, Key: e.Key, Value: string(e.Value)}
	}
	return out, nil
}

// partBytes is about how large a part of a dump is.
const partBytes = 1 << 20

// StreamDump implements InspectService.
func (s *service) StreamDump(_ *inspectv1.StreamDumpRequest, to grpc.ServerStreamingServer[inspectv1.StreamDumpResponse]) error {
	view := s.Ledger.View()
	entries, err := dumped(view)
	if err != nil {
		return err
	}
	part, size := &inspectv1.StreamDumpResponse{Revision: view.Revision()}, 0
	for _, e := range entries {
		if size > 0 && size+len(e.Value) > partBytes {
			if err := to.Send(part); err != nil {
				return err
			}
			part, size = &inspectv1.StreamDumpResponse{Revision: view.Revision()}, 0
		}
		part.Entries = append(part.Entries, e)
		size += len(e.Bucket) + len(e.Key) + len(e.Value)
	}
	return to.Send(part)
}

// Check implements InspectService.
func (s *service) Check(context.Context, *inspectv1.CheckRequest) (*inspectv1.CheckResponse, error) {
	view := s.Ledger.View()
	out := &inspectv1.CheckResponse{Revision: view.Revision(), StartReport: s.Start()}
	findings := check.View(view)
	if s.Kernel != nil {
		findings = append(findings, s.Kernel()...)
	}
	for _, f := range findings {
		out.Findings = append(out.Findings, finding(f))
	}
	return out, nil
}

func finding(f check.Finding) *inspectv1.Finding {
	return &inspectv1.Finding{Kind: convert.EnumOf[inspectv1.FindingKind](string(f.Kind)), Holder: convert.Ref(f.Owner), Text: f.Text}
}

// GetTrace implements InspectService. Of several explanations the newest counts.
func (s *service) GetTrace(_ context.Context, req *inspectv1.GetTraceRequest) (*inspectv1.GetTraceResponse, error) {
	view := s.Ledger.View()
	type name struct {
		field, value string
		find         func(string) (*ledger.Trace, bool)
	}
	given := slices.DeleteFunc([]name{
		{"admission_id", req.GetAdmissionId(), view.Trace},
		{"pod_uid", req.GetPodUid(), view.TraceOfPod},
		{"pod_name", req.GetPodName(), func(n string) (*ledger.Trace, bool) { return view.TraceOfName(convert.PodName(n)) }},
	}, func(n name) bool { return n.value == "" })
	if len(given) != 1 {
		var vs errdefs.Violations
		vs.Addf("admission_id", "expected exactly one of admission_id, pod_uid and pod_name")
		return nil, vs.Err("request")
	}
	n := given[0]
	if err := convert.Names(n.field, n.value).Err("request"); err != nil {
		return nil, err
	}
	t, ok := n.find(n.value)
	if !ok {
		return nil, errdefs.NotFoundf("no admission is remembered with %s %s", n.field, n.value).Coded(errdefs.TraceNotFound)
	}
	return &inspectv1.GetTraceResponse{Trace: decisions.Trace(s.Ledger.View(), t)}, nil
}
