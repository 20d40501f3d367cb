// Package fit serves berth.fit.v1: what the NUMA nodes have left. It changes nothing.
package fit

import (
	"context"
	"fmt"
	"slices"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/fit"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/server/internal/rpc"
)

// maxResources bounds the names in a request.
const maxResources = 256

// Parts are what the service reads.
type Parts struct {
	Ledger rpc.Past
	// Managers returns the set that decides on a view.
	Managers func(view *ledger.View) *managerset.Set
	// Inventory returns what the device plugins have reported.
	Inventory func() *device.Snapshot
}

type service struct {
	fitv1.UnimplementedFitServiceServer
	Parts
}

// New makes the service.
func New(p Parts) fitv1.FitServiceServer { return &service{Parts: p} }

// GetFreeResources implements FitService.
func (s *service) GetFreeResources(ctx context.Context, req *fitv1.GetFreeResourcesRequest) (*fitv1.GetFreeResourcesResponse, error) {
	var vs errdefs.Violations
	if n := len(req.GetNumaResources()); n > maxResources {
		vs.Addf("numa_resources", "expected at most %d names, got %d", maxResources, n)
	} else {
		for i, name := range req.GetNumaResources() {
			vs = append(vs, convert.Names(fmt.Sprintf("numa_resources[%d]", i), name)...)
		}
	}
	convert.Owner("owner", req.GetOwner(), &vs)
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	view, err := rpc.ViewAt(ctx, s.Ledger, req.GetAt())
	if err != nil {
		return nil, err
	}
	return &fitv1.GetFreeResourcesResponse{Free: s.free(view, req.GetOwner(), req.GetNumaResources())}, nil
}

// free is the answer about a view. elsewhere are resources of other programs on NUMA nodes.
func (s *service) free(view *ledger.View, owner string, elsewhere []string) *fitv1.FreeResources {
	set := s.Managers(view)
	nodes := fit.Nodes(view, set, s.Inventory())
	onNodes := func(resource string) bool {
		return slices.Contains(elsewhere, resource) || slices.ContainsFunc(nodes, func(n fit.Node) bool {
			return slices.ContainsFunc(n.Resources, func(r fit.Resource) bool { return r.Name == resource })
		})
	}
	return convert.FreeResources(view, set, nodes, fit.ExclusivePods(view, owner, onNodes))
}
