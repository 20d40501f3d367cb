// Package topology serves berth.topology.v1: the policy of the managers and its change, trial
// merges of the topology manager, and the affinities of admitted containers.
package topology

import (
	"context"
	"fmt"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
)

// Ledger gives the current view.
type Ledger interface{ View() *ledger.View }

type service struct {
	topologyv1.UnimplementedTopologyServiceServer
	policies Policies
	ledger   Ledger
	hinter   Hinter
	read     convert.Reader
}

// New makes the service. read reads the pods of requests.
func New(policies Policies, ledger Ledger, hinter Hinter, read convert.Reader) topologyv1.TopologyServiceServer {
	return &service{policies: policies, ledger: ledger, hinter: hinter, read: read}
}

// Merge implements TopologyService.
func (s *service) Merge(_ context.Context, req *topologyv1.MergeRequest) (*topologyv1.MergeResponse, error) {
	replies := make([]hint.Reply, len(req.GetProviders()))
	for i, p := range req.GetProviders() {
		answers, err := convert.ReadAnswers(fmt.Sprintf("providers[%d].topology_hints", i), p.GetTopologyHints())
		if err != nil {
			return nil, err
		}
		replies[i] = hint.Reply{Provider: p.GetProvider(), Answers: answers}
	}
	now, _ := s.policies.Policy()
	config := config.Config{}.With(now).TopologyConfig()
	if req.GetPolicy() != "" {
		config.Policy, config.Options = topology.Policy(req.GetPolicy()), req.GetOptions()
	} else if len(req.GetOptions()) > 0 {
		var vs errdefs.Violations
		vs.Addf("options", "expected none without a policy: they go with the configured one")
		return nil, vs.Err("request")
	}
	m := s.ledger.View().Machine()
	manager, err := topology.New(config, m.NodeMask(), m.Distances())
	if err != nil {
		return nil, err
	}
	result := manager.Merge(replies)
	return &topologyv1.MergeResponse{
		Hint: convert.Hint(&result.Affinity), Admit: result.Admit, Explanation: result.Text(),
	}, nil
}

// GetAffinity implements TopologyService.
func (s *service) GetAffinity(_ context.Context, req *topologyv1.GetAffinityRequest) (*topologyv1.GetAffinityResponse, error) {
	view := s.ledger.View()
	pod, err := convert.FindPod(view, req, convert.Names("container_name", req.GetContainerName()))
	if err != nil {
		return nil, err
	}
	pod, c, err := view.Find(ledger.Owner{Pod: pod.UID(), Container: req.GetContainerName()})
	if err != nil {
		return nil, err
	}
	return &topologyv1.GetAffinityResponse{Hint: convert.Hint(pod.Affinity(c.Name))}, nil
}
