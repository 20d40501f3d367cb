package state

import (
	"context"

	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/allocations"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc"
)

// Inventory gives what the plugins have reported; *device.Manager implements it.
type Inventory interface{ Inventory() *device.Snapshot }

// Plugins speaks with the plugins; *deviceplugin.Server implements it.
type Plugins interface {
	// Endpoint returns the socket of a resource's plugin; empty if there is none.
	Endpoint(resource string) string
	// Forget deletes a resource without a plugin and without holders.
	Forget(ctx context.Context, resource string) error
}

type deviceService struct {
	devicev1.UnimplementedDeviceServiceServer
	Parts
	inventory Inventory
	plugins   Plugins
}

// Devices makes the device service.
func Devices(p Parts, inventory Inventory, plugins Plugins) devicev1.DeviceServiceServer {
	return &deviceService{Parts: p, inventory: inventory, plugins: plugins}
}

// GetState implements DeviceService.
func (s *deviceService) GetState(ctx context.Context, req *devicev1.GetStateRequest) (*devicev1.GetStateResponse, error) {
	view, err := rpc.ViewAt(ctx, s.Ledger, req.GetAt())
	if err != nil {
		return nil, err
	}
	out := &devicev1.GetStateResponse{Revision: view.Revision()}
	s.each(view, func(r *devicev1.Resource, known *device.Resource, h devicesInUse) {
		r.Devices = states(known, h)
		out.Resources = append(out.Resources, r)
	})
	return out, nil
}

// ListResources implements DeviceService.
func (s *deviceService) ListResources(context.Context, *devicev1.ListResourcesRequest) (*devicev1.ListResourcesResponse, error) {
	out := &devicev1.ListResourcesResponse{}
	s.each(s.Ledger.View(), func(r *devicev1.Resource, _ *device.Resource, _ devicesInUse) {
		out.Resources = append(out.Resources, r)
	})
	return out, nil
}

// GetAllocatable implements DeviceService.
func (s *deviceService) GetAllocatable(context.Context, *devicev1.GetAllocatableRequest) (*devicev1.GetAllocatableResponse, error) {
	out := &devicev1.GetAllocatableResponse{}
	s.each(s.Ledger.View(), func(r *devicev1.Resource, known *device.Resource, h devicesInUse) {
		for _, d := range states(known, h) {
			if d.GetDevice().GetHealth() == typesv1.Health_HEALTH_HEALTHY {
				r.Devices = append(r.Devices, d)
			}
		}
		out.Resources = append(out.Resources, r)
	})
	return out, nil
}

// each visits the known resources by name, in message form without devices.
func (s *deviceService) each(view *ledger.View, visit func(*devicev1.Resource, *device.Resource, devicesInUse)) {
	held := held(view)
	for r := range s.inventory.Inventory().Resources() {
		h := held[r.Name]
		visit(&devicev1.Resource{
			Name: r.Name, PluginState: allocations.PluginState(r.State), Endpoint: s.plugins.Endpoint(r.Name),
			Capacity: int64(r.Capacity()), Allocatable: int64(r.Allocatable()), InUse: int64(len(h)),
			PreStartRequired: r.Options.PreStart, PreferredAllocationAvailable: r.Options.Preferred,
			Registration: r.Registration(), Awaited: r.Awaited(),
		}, r, h)
	}
}

// ForgetResource implements DeviceService.
func (s *deviceService) ForgetResource(ctx context.Context, req *devicev1.ForgetResourceRequest) (*devicev1.ForgetResourceResponse, error) {
	if err := convert.Names("resource", req.GetResource()).Err("request"); err != nil {
		return nil, err
	}
	if err := s.plugins.Forget(ctx, req.GetResource()); err != nil {
		return nil, err
	}
	return &devicev1.ForgetResourceResponse{Revision: s.Ledger.View().Revision()}, nil
}

// UpdatePluginResources implements DeviceService.
func (s *deviceService) UpdatePluginResources(_ context.Context,
	req *devicev1.UpdatePluginResourcesRequest) (*devicev1.UpdatePluginResourcesResponse, error) {
	published, excess, vs := convert.Amounts("allocatable", req.GetAllocatable())
	if err := append(convert.Names("pod_uid", req.GetPodUid()), vs...).Err("request"); err != nil {
		return nil, err
	}
	if len(published) == 0 {
		published = s.inventory.Inventory().Allocatable()
	}
	view := s.Ledger.View()
	needed, raised := device.UpdatePublished(view, req.GetPodUid(), published)
	for _, r := range raised {
		delete(excess, workload.Resource(r))
	}
	return &devicev1.UpdatePluginResourcesResponse{
		Allocatable: convert.AmountTexts(needed, excess), Raised: raised, Revision: view.Revision(),
	}, nil
}

// GetTopologyHints implements DeviceService.
func (s *deviceService) GetTopologyHints(ctx context.Context, req *devicev1.GetTopologyHintsRequest) (*devicev1.GetTopologyHintsResponse,
	error) {
	answers, err := s.hints(ctx, req, device.Name)
	return &devicev1.GetTopologyHintsResponse{TopologyHints: answers}, err
}
