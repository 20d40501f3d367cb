package rpc

import (
	"context"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
)

// Past gives the current state, and those of the past; history.Ledger implements it.
type Past interface {
	View() *ledger.View
	At(ctx context.Context, m history.Moment) (*ledger.View, error)
}

// ViewAt returns the state that a request names in its field "at"; without it the current one.
func ViewAt(ctx context.Context, p Past, at *typesv1.Moment) (*ledger.View, error) {
	if at == nil {
		return p.View(), nil
	}
	var vs errdefs.Violations
	var m history.Moment
	switch named := at.GetMoment().(type) {
	case *typesv1.Moment_Time:
		if m.Time = named.Time.AsTime(); named.Time.CheckValid() != nil {
			vs.Addf("at.time", "expected a time of the years 1 to 9999")
		}
	case *typesv1.Moment_Revision:
		if m.Revision = named.Revision; m.Revision == 0 {
			vs.Addf("at.revision", "expected a revision above 0")
		}
	default:
		vs.Addf("at", "expected a time or a revision")
	}
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	return p.At(ctx, m)
}
