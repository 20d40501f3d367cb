// Package qos serves berth.qos.v1: the cgroups of the QoS classes. It makes no
// decisions.
package qos

import (
	"context"

	qosv1 "github.com/berthd/berth/api/berth/qos/v1"
	"github.com/berthd/berth/api/convert/cgroups"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/workload"
)

// Tiers updates the cgroups of the classes; *reconcile.Loop is the one there is.
type Tiers interface {
	UpdateTiers(ctx context.Context) ([]cgroup.Op, error)
	// HasTiers reports whether there are cgroups of QoS classes.
	HasTiers() bool
}

type service struct {
	qosv1.UnimplementedQOSServiceServer
	tiers  Tiers
	layout cgroup.Layout
}

// New makes the service.
func New(tiers Tiers, layout cgroup.Layout) qosv1.QOSServiceServer {
	return &service{tiers: tiers, layout: layout}
}

// GetQOSContainersInfo implements QOSService.
func (s *service) GetQOSContainersInfo(context.Context, *qosv1.GetQOSContainersInfoRequest) (*qosv1.GetQOSContainersInfoResponse, error) {
	out := &qosv1.GetQOSContainersInfoResponse{}
	if !s.tiers.HasTiers() {
		return out, nil
	}
	for class, field := range map[workload.QoSClass]*string{
		workload.Guaranteed: &out.Guaranteed, workload.Burstable: &out.Burstable, workload.BestEffort: &out.BestEffort,
	} {
		var err error
		if *field, err = s.layout.Literal(s.layout.Tier(class)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// UpdateCgroups implements QOSService.
func (s *service) UpdateCgroups(ctx context.Context, _ *qosv1.UpdateCgroupsRequest) (*qosv1.UpdateCgroupsResponse, error) {
	ops, err := s.tiers.UpdateTiers(ctx)
	return &qosv1.UpdateCgroupsResponse{Writes: cgroups.Writes(ops)}, err
}
