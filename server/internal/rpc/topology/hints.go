package topology

import (
	"context"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/workload"
)

// Hinter requests the hints of all providers for a pod, or one of its containers, without
// planning; *admission.Engine implements it.
type Hinter interface {
	Hints(ctx context.Context, pod workload.Pod, container string) ([]hint.Reply, error)
}

// GetHints implements TopologyService.
func (s *service) GetHints(ctx context.Context, req *topologyv1.GetHintsRequest) (*topologyv1.GetHintsResponse, error) {
	pod, err := s.read.Pod(req.GetPod())
	if err != nil {
		return nil, err
	}
	replies, err := s.hinter.Hints(ctx, pod, req.GetContainerName())
	if err != nil {
		return nil, err
	}
	out := &topologyv1.GetHintsResponse{Providers: make([]*topologyv1.ProviderHints, len(replies))}
	for i, r := range replies {
		out.Providers[i] = &topologyv1.ProviderHints{Provider: r.Provider, TopologyHints: convert.Answers(r.Answers)}
	}
	return out, nil
}
