package reconcile

import (
	"context"
	"syscall"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/recovery"
)

// unreadable is a store whose claim records cannot be read.
type unreadable struct {
	cgroup.Records
	err error
}

func (u unreadable) ReadRecord(context.Context, cgroup.Name) ([]byte, error) { return nil, u.err }

// TestUnreadableRecords: what cannot be read for the moment is no damage; what can never be
// believed is.
func TestUnreadableRecords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err     error
		damaged bool
	}{
		{errdefs.Unavailablef("open: %w", syscall.EMFILE), false},
		{errdefs.Unavailablef("read: %w", syscall.EIO), false},
		{errdefs.Corruptf("noise"), true},
		{errdefs.PermissionDeniedf("it is owned by somebody else"), true},
	} {
		b, _, _ := recordBench(t)
		b.Loop.Records = unreadable{b.tree, c.err}
		all, _, err := b.ObservePods(t.Context())
		if (err == nil) != c.damaged || c.damaged && (len(all) != 1 || all[0].Record != recovery.Damaged) {
			t.Errorf("%v: %+v, %v", c.err, all, err)
		}
	}
}
