package inspect

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/decisions"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/history"
)

const (
	usualHistory = 100
	mostHistory  = 1000
	// historyBytes is about the size of the largest page.
	historyBytes = 1 << 20
)

// ListHistory implements InspectService. A page token is the number of the last entry of the
// page before.
func (s *service) ListHistory(ctx context.Context, req *inspectv1.ListHistoryRequest) (*inspectv1.ListHistoryResponse, error) {
	var vs errdefs.Violations
	n := int(req.GetPageSize())
	if n > mostHistory {
		vs.Addf("page_size", "%d: expected at most %d", n, mostHistory)
	}
	if n == 0 {
		n = usualHistory
	}
	var below uint64
	if token := req.GetPageToken(); token != "" {
		var err error
		if below, err = strconv.ParseUint(token, 36, 64); err != nil || below == 0 {
			vs.Addf("page_token", "expected next_page_token of the page before")
		}
	}
	var from, until time.Time
	if t := req.GetFromTime(); t != nil {
		if from = t.AsTime(); t.CheckValid() != nil {
			vs.Addf("from_time", "expected a time of the years 1 to 9999")
		}
	}
	if t := req.GetUntilTime(); t != nil {
		if until = t.AsTime(); t.CheckValid() != nil {
			vs.Addf("until_time", "expected a time of the years 1 to 9999")
		}
	}
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	out := &inspectv1.ListHistoryResponse{Revision: s.Ledger.View().Revision(), Omitted: s.Ledger.Omitted()}
	size, last := 0, uint64(0)
	err := s.Ledger.Entries(ctx, below, func(e *history.Entry, damage error) bool {
		if damage == nil {
			if req.GetFromTime() != nil && e.Time.Before(from) {
				return false // older ones follow
			}
			at := e.Decided()
			if !recorded(e, req) || req.GetFromTime() != nil && at.Before(from) || req.GetUntilTime() != nil && !at.Before(until) {
				return true
			}
		} else if filtered(req) {
			return true
		}
		m := decisions.HistoryEntry(e, damage)
		if len(out.Entries) == n || len(out.Entries) > 0 && size+proto.Size(m) > historyBytes {
			out.NextPageToken = strconv.FormatUint(last, 36)
			return false
		}
		out.Entries, last = append(out.Entries, m), e.Number
		size += proto.Size(m)
		return ctx.Err() == nil
	})
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// filtered returns whether a request selects entries by what they contain, which is not known
// of damaged ones.
func filtered(req *inspectv1.ListHistoryRequest) bool {
	return req.GetPodUid() != "" || req.GetNamespace() != "" || req.GetName() != "" || req.GetReason() != "" || req.GetCall() != "" ||
		req.GetVerdict() != 0 || req.CallerUid != nil || req.GetCallerName() != ""
}

// recorded returns whether an entry passes the filters of a request, times aside.
func recorded(e *history.Entry, req *inspectv1.ListHistoryRequest) bool {
	if uid := req.GetPodUid(); uid != "" && !e.Concerns(uid) {
		return false
	}
	for _, f := range [][2]string{
		{req.GetNamespace(), e.Namespace}, {req.GetName(), e.Name}, {req.GetReason(), e.Reason}, {req.GetCall(), e.Call},
	} {
		if f[0] != "" && f[0] != f[1] {
			return false
		}
	}
	if v := req.GetVerdict(); v != 0 && convert.Word(v) != e.Verdict {
		return false
	}
	c := e.Caller
	return (req.CallerUid == nil || c != nil && c.UID == req.GetCallerUid()) &&
		(req.GetCallerName() == "" || c != nil && c.Name == req.GetCallerName())
}
