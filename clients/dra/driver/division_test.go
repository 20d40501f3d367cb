package driver

import (
	"context"
	"strings"
	"testing"

	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// lastPublished keeps what was published last.
type lastPublished struct{ resourceslice.DriverResources }

func (l *lastPublished) PublishResources(_ context.Context, r resourceslice.DriverResources) error {
	l.DriverResources = r
	return nil
}

// TestNothingIsCountedTwice: as long as the scheduler gives CPUs to pods that claims can have, no device is published, and the
// driver says why. It follows a kubelet that starts with another configuration.
func TestNothingIsCountedTwice(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	if err := p.Ready(); err == nil {
		t.Error("the driver is ready before it has published anything")
	}
	for _, c := range []struct{ sold, want string }{
		{sold: "2"},
		{sold: "5", want: "cpu is counted twice: the scheduler counts 5 as allocatable, and claims on dynamic resources can have 12 (dra.cpus of berthd), together more than the 16 of the node"},
		{sold: "16", want: "the scheduler counts 16 as allocatable"},
		{sold: "4"}, // pods get no more than 2, and nothing is counted twice
	} {
		p.sold = c.sold
		var out lastPublished
		if err := p.publish(t.Context(), &out, false); err != nil {
			t.Fatal(err)
		}
		ready, pools := p.Ready(), len(out.Pools)
		switch {
		case c.want == "" && (ready != nil || pools != 1 || len(out.Pools[node].Slices[0].Devices) != 2):
			t.Errorf("%s CPUs for pods: %v, %+v, expected two devices", c.sold, ready, out.Pools)
		case c.want != "" && (pools != 0 || !p.CountedTwice() || ready == nil || !strings.Contains(ready.Error(), c.want)):
			t.Errorf("%s CPUs for pods: %d pools, %v, expected none and %q", c.sold, pools, ready, c.want)
		}
	}
}
