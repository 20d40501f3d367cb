package moves

import (
	"context"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// shown has what the kernel shows of the memory of a cgroup.
type shown struct {
	cgroup.Tree
	details cgroup.Details
}

func (s shown) Usage(context.Context, cgroup.Name) (cgroup.Usage, error) { return s.details.Usage, nil }

func (s shown) Details(context.Context, cgroup.Name) (cgroup.Details, error) { return s.details, nil }

// Memory has arrived on node 1 if little of it is elsewhere. Files of a tmpfs that may be unmapped do not count, and memory that is not
// shown has not arrived.
func TestMigrated(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, row := range map[string]struct {
		details cgroup.Details
		stays   string
		class   errdefs.Class
	}{
		"all":       {details: cgroup.Details{MappedBytes: map[int]uint64{1: 64 * mib}}},
		"few bytes": {details: cgroup.Details{MappedBytes: map[int]uint64{0: 4 * mib, 1: 64 * mib}}},
		"a rest": {details: cgroup.Details{MappedBytes: map[int]uint64{0: 5 * mib, 1: 64 * mib}},
			stays: "5242880 of 72351744 bytes"},
		"unmapped files": {details: cgroup.Details{MappedBytes: map[int]uint64{0: 32 * mib, 1: 64 * mib}, UnmappedBytes: 30 * mib}},
		"and a rest": {details: cgroup.Details{MappedBytes: map[int]uint64{0: 32 * mib, 1: 64 * mib}, UnmappedBytes: 20 * mib},
			stays: "12582912 of"},
		"not shown": {class: errdefs.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, memtree.V2(), nil)
			b.Loop.Tree = shown{b.Loop.Tree, row.details}
			stays, err := b.migrated(t.Context(), runningContainer{name: cgroup.Name{"kubepods", "podx", "c"}, mems: numa.Of(1)})
			if (stays != "") != (row.stays != "") || !strings.Contains(stays, row.stays) || (err != nil) != (row.class != 0) ||
				err != nil && errdefs.ClassOf(err) != row.class {
				t.Errorf("%q, %v", stays, err)
			}
		})
	}
}
