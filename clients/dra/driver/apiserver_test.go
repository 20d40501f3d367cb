package driver

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// apiServer has the claims, and the slices of the node that were published.
type apiServer struct {
	claims map[string]*resourceapi.ResourceClaim // by namespace/name
	ready  corev1.ConditionStatus                // of the node; True if it is empty

	mu     sync.Mutex
	stored []resourceapi.ResourceSlice
}

func (a *apiServer) claim(_ context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	if c := a.claims[namespace+"/"+name]; c != nil {
		return c, nil
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), name)
}

func (a *apiServer) slices(context.Context) ([]resourceapi.ResourceSlice, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stored, nil
}

// storing is a publisher whose slices the API server gets.
type storing struct {
	Publisher
	api *apiServer
}

func (s storing) PublishResources(ctx context.Context, r resourceslice.DriverResources) error {
	var slices []resourceapi.ResourceSlice
	for name, pool := range r.Pools {
		for _, one := range pool.Slices {
			slices = append(slices, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: Name,
				Pool: resourceapi.ResourcePool{Name: name}, Devices: one.Devices}})
		}
	}
	s.api.mu.Lock()
	s.api.stored = slices
	s.api.mu.Unlock()
	return s.Publisher.PublishResources(ctx, r)
}

// Follow has the API server store what is published.
func (p *place) Follow(ctx context.Context, to Publisher) { p.Driver.Follow(ctx, storing{to, p.api}) }

// publish does what Follow does once, until the API server has the devices.
func (p *place) publish(ctx context.Context, to Publisher, compared bool) error {
	if err := p.measure(ctx, !compared); err != nil {
		return err
	}
	<-p.measuredAgain
	err := p.Driver.publish(ctx, storing{to, p.api}, true)
	p.judge(err, 1)
	if errors.Is(err, errUnconfirmed) {
		err = p.Driver.publish(ctx, storing{to, p.api}, false)
		p.judge(err, 2)
	}
	return err
}
