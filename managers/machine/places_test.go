package machine_test

import (
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// TestPlaces: the cores are {0,4}, {1,5}, {2,6} and {3,7}, two on each node. CPUs that go offline in any order are where
// they were; the machine with them is the one before.
func TestPlaces(t *testing.T) {
	t.Parallel()
	whole := machinetest.Build("2n2c2t")
	for _, list := range []string{"1", "5", "1,5", "0,4,2", "7", "1-7"} {
		off, err := cpuset.Parse(list)
		if err != nil {
			t.Fatal(err)
		}
		less, err := whole.Without(off)
		if err != nil {
			t.Fatal(err)
		}
		places := machine.Places(less, whole)
		again, err := less.With(places)
		if err != nil || len(places) != off.Len() || again.Fingerprint() != whole.Fingerprint() {
			t.Errorf("%s: %v, %+v, %v", list, places, again, err)
		}
	}
	if got := machine.Places(whole, whole); len(got) != 0 {
		t.Errorf("nothing is offline: %v", got)
	}
	// What is not present any more has no place, nor has what is on a node that is gone.
	if got := machine.Places(machinetest.Build("1n2c2t"), whole); len(got) != 0 {
		t.Errorf("gone: %v", got)
	}
	if _, err := whole.With([]machine.CPU{{ID: 1}}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("a CPU twice: %v", err)
	}
}
