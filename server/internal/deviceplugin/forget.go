package deviceplugin

import (
	"context"
	"time"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
)

// forgetAgain is the delay before the next attempt to delete a resource that a pod holds, or
// after a failed write of the ledger.
const forgetAgain = time.Minute

// Forget deletes a resource whose plugin is disconnected. Errors are of class NotFound for an
// unknown resource, Precondition while its plugin is connected or a pod holds devices, and
// Unavailable if the deletion cannot be stored.
func (s *Server) Forget(ctx context.Context, resource string) error {
	if _, known := s.Inventory.Snapshot().Resource(resource); !known {
		return errdefs.NotFoundf("no device plugin has registered for %.253q", resource).Coded(errdefs.ResourceNotFound)
	}
	if err := s.Memory.Forget(ctx, resource, func() error { return s.mayForget(resource) }); err != nil {
		return err
	}
	s.Inventory.Forget(resource)
	s.Log.InfoContext(ctx, "a device resource is forgotten", "resource", resource)
	return nil
}

// mayForget refuses the deletion while the resource's plugin is connected.
func (s *Server) mayForget(resource string) error {
	if r, ok := s.Inventory.Snapshot().Resource(resource); ok && r.State == device.Connected {
		return errdefs.Preconditionf("the device plugin for %s is connected, and would make it known again; end the plugin first",
			resource).Coded(errdefs.ResourceServed, "resource", resource)
	}
	return nil
}

// forgetAway deletes the resources whose plugins have been disconnected for ForgetAfter, unless a
// pod holds devices. It returns the time of the next check, or the zero time if there is none.
func (s *Server) forgetAway(ctx context.Context, snap *device.Snapshot) (next time.Time) {
	if s.ForgetAfter == 0 {
		return next
	}
	for r := range snap.Resources() {
		if r.Away.IsZero() {
			continue
		}
		due := r.Away.Add(s.ForgetAfter)
		if now := s.Now(); !now.Before(due) {
			if s.forgetOne(ctx, r.Name, now) {
				continue
			}
			due = now.Add(forgetAgain)
		}
		if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	return next
}

// forgetOne deletes a resource whose plugin has not come back, and reports whether it did.
func (s *Server) forgetOne(ctx context.Context, resource string, now time.Time) bool {
	err := s.Memory.Forget(ctx, resource, func() error { return s.mayForget(resource) })
	switch {
	case err == nil:
	case errdefs.ClassOf(err) == errdefs.Precondition:
		s.Log.DebugContext(ctx, "a device resource without a plugin is not forgotten yet", "resource", resource, "error", err)
		return false
	default:
		s.Log.WarnContext(ctx, "a device resource without a plugin cannot be forgotten", "resource", resource, "error", err)
		return false
	}
	if s.KeepName {
		s.Inventory.Retire(resource, now)
	} else {
		s.Inventory.Forget(resource)
	}
	s.Log.InfoContext(ctx, "a device resource is removed: its plugin did not come back, and no pod has any of its devices", "resource",
		resource, "after", s.ForgetAfter)
	return true
}
