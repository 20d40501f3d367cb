package app

import (
	"testing"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// TestReplaceNeedsV2: lost CPUs are replaced with cgroup v2 only.
func TestReplaceNeedsV2(t *testing.T) {
	t.Parallel()
	c := config.Default()
	for _, row := range []struct {
		onLost  string
		version cgroup.Version
		refused bool
	}{{config.LostReplace, cgroup.V1, true}, {config.LostReplace, cgroup.V2, false}, {config.LostReport, cgroup.V1, false}} {
		c.Hotplug.OnLost = row.onLost
		if err := refuseV1(c, row.version); (errdefs.ClassOf(err) == errdefs.Precondition) != row.refused {
			t.Errorf("%s with cgroup v%d: %v", row.onLost, row.version, err)
		}
	}
}
