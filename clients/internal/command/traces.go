package command

import (
	"context"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
)

func (s *Session) AllTraces(ctx context.Context, req *inspectv1.ListTracesRequest) (*inspectv1.ListTracesResponse, error) {
	all := &inspectv1.ListTracesResponse{}
	for {
		page, err := s.Inspect().ListTraces(ctx, req)
		if err != nil {
			return nil, err
		}
		page.Traces = append(all.GetTraces(), page.GetTraces()...)
		if all, req.PageToken = page, page.GetNextPageToken(); req.GetPageToken() == "" {
			return all, nil
		}
	}
}
