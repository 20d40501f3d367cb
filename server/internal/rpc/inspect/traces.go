package inspect

import (
	"context"
	"strconv"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/convert/decisions"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

const (
	usualTraces = 100
	mostTraces  = 1000
)

// ListTraces implements InspectService. A page token is the number of the last trace of the
// page before.
func (s *service) ListTraces(_ context.Context, req *inspectv1.ListTracesRequest) (*inspectv1.ListTracesResponse, error) {
	var vs errdefs.Violations
	n := int(req.GetPageSize())
	if n > mostTraces {
		vs.Addf("page_size", "%d: expected at most %d", n, mostTraces)
	}
	if n == 0 {
		n = usualTraces
	}
	var below uint64
	if token := req.GetPageToken(); token != "" {
		var err error
		if below, err = strconv.ParseUint(token, 36, 64); err != nil {
			vs.Addf("page_token", "expected next_page_token of the page before")
		}
	}
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	view := s.Ledger.View()
	out := &inspectv1.ListTracesResponse{Revision: view.Revision()}
	var last uint64
	for number, t := range view.Traces() {
		if req.GetPageToken() != "" && number >= below || !wanted(t, req) {
			continue
		}
		if len(out.Traces) == n {
			out.NextPageToken = strconv.FormatUint(last, 36)
			break
		}
		short := *t
		short.Steps, short.Suggestions = nil, nil
		out.Traces, last = append(out.Traces, decisions.Trace(view, &short)), number
	}
	return out, nil
}

// wanted returns whether a trace passes the filters of a request.
func wanted(t *ledger.Trace, req *inspectv1.ListTracesRequest) bool {
	for _, f := range [][2]string{
		{req.GetPodUid(), t.Pod}, {req.GetNamespace(), t.Namespace}, {req.GetName(), t.Name}, {req.GetReason(), t.Reason},
	} {
		if f[0] != "" && f[0] != f[1] {
			return false
		}
	}
	return !req.GetRefused() || !t.Admitted
}
