package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// errUnconfirmed means that the API server does not have the devices yet. The helper writes them in the background.
var errUnconfirmed = errors.New("the API server does not have the devices as they are now")

// tries is how often the API server is looked at before a publication counts as failed, without a known error.
const tries = 4

// retries are the pauses between two calls of the API server while it does not answer or does not have the devices. The nodes of a
// cluster do not call at the same time.
func retries() *wait.Backoff {
	return &wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 100, Cap: time.Minute}
}

// announce publishes what was measured, and compares it with what the API server has, until the context ends.
func (d *Driver) announce(ctx context.Context, p Publisher) {
	var retry <-chan time.Time
	var pauses *wait.Backoff
	logged, attempts := "", 0
	for {
		again := d.measuredAgain
		if retry != nil {
			again = nil // the next try publishes what was measured last
		}
		changed := false
		select {
		case <-again:
			changed = true
		case <-retry:
		case <-ctx.Done():
			return
		}
		if pauses == nil {
			pauses, attempts = retries(), 0
		}
		err := d.publish(ctx, p, changed)
		if ctx.Err() != nil {
			return
		}
		attempts++
		d.judge(err, attempts)
		if err == nil {
			retry, pauses, logged = nil, nil, ""
			continue
		}
		retry = time.After(pauses.Step())
		if text := err.Error(); text != logged && !errors.Is(err, errUnconfirmed) {
			logged = text
			d.Log.Warn("devices stay as they are published, until the API server answers", "error", err)
		}
	}
}

// publish compares the node with what was measured, if that is necessary, and publishes it, if it has changed or the API server has
// something else. An error means that the API server does not answer, or errUnconfirmed.
func (d *Driver) publish(ctx context.Context, p Publisher, changed bool) error {
	d.mu.Lock()
	wanted, uncompared, twice := d.wanted, d.uncompared, d.twice
	d.uncompared = false
	d.mu.Unlock()
	if wanted == nil {
		return nil
	}
	if uncompared {
		limited, cancel := context.WithTimeout(ctx, d.limit)
		defer cancel()
		list, err := d.compare(limited, wanted.allocatable, wanted.devices)
		if err != nil {
			d.mu.Lock()
			d.uncompared = true
			d.mu.Unlock()
			return err
		}
		twice = strings.Join(list, "; ")
		d.report(twice)
	}
	devices := wanted.devices
	if twice != "" {
		devices = nil
	}
	limited, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	have, err := d.Slices(limited) // before the helper, which waits for its own list without an end and without a reason
	if err != nil {
		return fmt.Errorf("read the published devices of node %s: %w", d.NodeName, err)
	}
	confirmed := d.matches(have, devices)
	if confirmed && !changed {
		return nil
	}
	var out resourceslice.DriverResources // without a pool, slices that are there are removed
	if len(devices) > 0 {
		out.Pools = map[string]resourceslice.Pool{d.NodeName: {Slices: []resourceslice.Slice{{Devices: devices}}}}
	}
	if err := p.PublishResources(ctx, out); err != nil {
		return err
	}
	if !confirmed {
		return errUnconfirmed
	}
	return nil
}

// matches reports whether slices of the node have exactly the devices.
func (d *Driver) matches(have []resourceapi.ResourceSlice, devices []resourceapi.Device) bool {
	if len(devices) == 0 {
		return len(have) == 0
	}
	return len(have) == 1 && have[0].Spec.Pool.Name == d.NodeName && resourceslice.DevicesDeepEqual(have[0].Spec.Devices, devices)
}

// judge stores the result of a publication for Ready. If the API server does not answer, it has what it had before.
func (d *Driver) judge(err error, attempts int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil && d.wanted != nil:
		d.published, d.unpublished, d.refusal = true, false, ""
	case errors.Is(err, errUnconfirmed):
		d.unpublished = d.unpublished || d.refusal != "" || attempts >= tries
	case err != nil && !d.published:
		d.refusal = fmt.Sprintf("%.500s", err)
	}
}

// report stores why nothing is published; empty if devices are. A change is logged.
func (d *Driver) report(twice string) {
	d.mu.Lock()
	before := d.twice
	d.twice = twice
	d.mu.Unlock()
	switch {
	case twice == before:
	case twice == "":
		d.Log.Info("nothing is counted twice any more; devices are published")
	default:
		d.Log.Error("no devices are published, because they would be counted twice", "node", d.NodeName, "reason", twice)
	}
}

// Ready returns why no claim can be allocated; nil if the API server has the devices.
func (d *Driver) Ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.twice != "":
		return errors.New(d.twice)
	case d.published && !d.unpublished:
		return nil
	case d.refusal != "":
		return fmt.Errorf("the devices of the node are not published: %s", d.refusal)
	case d.published:
		return errUnconfirmed
	}
	return errors.New("devices are not published yet")
}

// CountedTwice reports whether nothing is published because it would be counted twice.
func (d *Driver) CountedTwice() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.twice != ""
}
