package inspect

import (
	"context"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/convert/decisions"
	"github.com/berthd/berth/managers/recovery"
)

// Recovered tells what the last start decided about the pods.
type Recovered struct {
	Decisions []recovery.Decision
	// OlderCopy means that the ledger was older than the claim records of living pods.
	OlderCopy bool
}

// GetStartReport implements InspectService.
func (s *service) GetStartReport(context.Context, *inspectv1.GetStartReportRequest) (*inspectv1.GetStartReportResponse, error) {
	recovered := s.Recovered()
	return &inspectv1.GetStartReportResponse{
		Pods: decisions.PodCases(recovered.Decisions), OlderCopy: recovered.OlderCopy, Lines: s.Start(),
	}, nil
}
