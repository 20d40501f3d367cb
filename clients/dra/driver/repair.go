package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/berth"
)

// often is the time between two comparisons of the CDI files with what was written. A container whose file is missing does not start, and
// the kubelet tries again after 10 seconds at the earliest.
const often = 5 * time.Second

// repair writes the CDI files of prepared claims again that others have removed or changed, also with their directory.
func (d *Driver) repair(ctx context.Context) error {
	if err := d.enter(ctx); err != nil {
		return err
	}
	defer d.leave()
	if err := d.files.reopen(); errors.Is(err, errRemoved) {
		d.Fail(err)
		return err
	} else if err != nil {
		return err
	}
	var errs []error
	for _, uid := range slices.Sorted(maps.Keys(d.prepared)) {
		c := d.prepared[uid]
		changed, err := d.files.keep(fileName(uid), c.file)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err))
		case changed:
			d.Log.Warn("the CDI file of a claim was removed or changed, and is written again", "claim", c.Namespace+"/"+c.Name, "uid", uid)
		}
	}
	return errors.Join(errs...)
}

// prepareLost prepares claims again that berthd has, but whose CDI file was lost while no driver ran. The kubelet does not prepare them
// again.
func (d *Driver) prepareLost(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, d.limit)
	list, err := d.Client.Allocation().List(limited, &allocationv1.ListRequest{Owner: Owner})
	cancel()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range list.GetPods() {
		d.mu.Lock()
		_, prepared := d.prepared[p.GetUid()]
		d.mu.Unlock()
		if prepared || p.GetResourceClaimNodes() == nil {
			continue
		}
		if err := d.prepareAgain(ctx, admitted(p)); err != nil {
			errs = append(errs, fmt.Errorf("write the lost CDI file of claim %s/%s again: %w", p.GetNamespace(), p.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// prepareAgain prepares a claim as the API server has it, unless the kubelet has given it back meanwhile, or it is not as berthd has it:
// then forget releases it.
func (d *Driver) prepareAgain(ctx context.Context, have *claim) error {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	c, err := d.ReadClaim(ctx, have.Namespace, have.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if d.gone(have, c, nil) != "" || len(c.Status.ReservedFor) == 0 {
		return nil
	}
	wanted, err := d.readAllowed(ctx, c)
	if err != nil {
		return err
	}
	if err := d.enter(ctx); err != nil {
		return err
	}
	defer d.leave()
	if _, prepared := d.prepared[have.UID]; prepared {
		return nil
	}
	if _, err := d.Client.Allocation().Get(ctx,
		&allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: have.UID}}); berth.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	if _, err := d.prepareWanted(ctx, wanted); err != nil {
		return err
	}
	d.Log.Warn("the CDI file of a claim was lost, and is written again", "claim", have.Namespace+"/"+have.Name, "uid", have.UID)
	return nil
}

// keepFiles calls repair from time to time, until the context ends.
func (d *Driver) keepFiles(ctx context.Context) {
	tick := time.NewTicker(often)
	defer tick.Stop()
	logged := ""
	for {
		err := d.repair(ctx)
		if text := fmt.Sprint(err); err != nil && ctx.Err() == nil && text != logged {
			logged = text
			d.Log.Error("CDI files of claims cannot be written again", "error", err)
		} else if err == nil {
			logged = ""
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
