// Package fit serves berth.fit.v1: what the NUMA nodes have left, and which pods fit. It changes nothing.
package fit

import (
	"context"
	"fmt"
	"strings"
	"time"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/fits"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/fit"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc"
)

// These bound the elements of a request.
const (
	maxResources = 256
	maxPods      = 256
	maxPending   = 4096
)

// Parts hold what the service reads.
type Parts struct {
	Ledger rpc.Past
	// Present is the present view with what running admissions and resizes have reserved, and the set that decides on it.
	Present func() (*ledger.View, *managerset.Set)
	// Managers returns the set that decides on a view, which may be one of the past.
	Managers func(view *ledger.View) (*managerset.Set, error)
	// Inventory returns what the device plugins have reported.
	Inventory func() *device.Snapshot
	// Read reads the pods of requests, and Admission is the engine's configuration.
	Read      convert.Reader
	Admission admission.Config
	// Mover says whether the memory of running pods can move.
	Mover live.Mover
	// Now is the clock: a missing resource may be registered until the end of the grace.
	Now func() time.Time
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
	if n := len(req.GetPendingPods()); n > maxPending {
		vs.Addf("pending_pods", "expected at most %d pods, got %d", maxPending, n)
	} else {
		for i, pod := range req.GetPendingPods() {
			if namespace, name, ok := strings.Cut(pod, "/"); !ok || namespace == "" || name == "" {
				vs.Addf(fmt.Sprintf("pending_pods[%d]", i), "expected NAMESPACE/NAME, got %.80q", pod)
			}
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
	set, err := s.Managers(view)
	if err != nil {
		return nil, err
	}
	return &fitv1.GetFreeResourcesResponse{
		Free: fits.FreeResources(view, set, s.Inventory(), fits.Counted{
			Owner: req.GetOwner(), Elsewhere: req.GetNumaResources(), Pending: req.GetPendingPods(),
		}),
	}, nil
}

// Fit implements FitService.
func (s *service) Fit(ctx context.Context, req *fitv1.FitRequest) (*fitv1.FitResponse, error) {
	var vs errdefs.Violations
	if n := len(req.GetPods()); n < 1 || n > maxPods {
		vs.Addf("pods", "expected 1 to %d pods, got %d", maxPods, n)
		return nil, vs.Err("request")
	}
	if n := req.GetMaxMoves(); n > live.MaxMoves {
		vs.Addf("max_moves", "expected at most %d, got %d", live.MaxMoves, n)
	}
	pods, uids := make([]workload.Pod, len(req.GetPods())), map[string]bool{}
	for i, m := range req.GetPods() {
		var err error
		if pods[i], err = s.Read.Pod(m); err != nil {
			return nil, fmt.Errorf("pods[%d]: %w", i, err)
		}
		if uids[pods[i].UID] {
			vs.Addf(fmt.Sprintf("pods[%d].metadata.uid", i), "%.80q is the uid of an earlier pod, too", pods[i].UID)
		}
		uids[pods[i].UID] = true
	}
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	search := fit.Search{MaxMoves: int(req.GetMaxMoves())}
	view, set := s.Present()
	if req.GetAt() == nil {
		search.Mover = s.Mover
	} else {
		var err error
		if view, err = rpc.ViewAt(ctx, s.Ledger, req.GetAt()); err != nil {
			return nil, err
		}
		if set, err = s.Managers(view); err != nil {
			return nil, err
		}
	}
	outcomes, limited, err := fit.Try(ctx, s.Admission, view, set, s.Now(), pods, search)
	if err != nil {
		return nil, err
	}
	return fits.Fit(fits.FreeResources(view, set, s.Inventory(), fits.Counted{}), outcomes, limited), nil
}
