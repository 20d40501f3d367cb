package reconcile

import (
	"context"
	"errors"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
)

// emptied is a tree in which a cgroup has no CPUs.
type emptied struct {
	*bench
	name cgroup.Name
}

func (e emptied) Observe(ctx context.Context, n cgroup.Name, depth int) (*cgroup.Snapshot, error) {
	if n.Equal(e.name) {
		return &cgroup.Snapshot{Nodes: []cgroup.Observed{{Name: n, State: cgroup.Valid}}}, nil
	}
	return e.bench.Observe(ctx, n, depth)
}

// TestScatter: processes are moved back twice, the second time in a pass. All cgroups are noted once, and again after a loss; a
// cgroup that is gone is forgotten, one without CPUs or that cannot be read stays.
func TestScatter(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	name, empty, gone := cgroup.Name{"one"}, cgroup.Name{"empty"}, cgroup.Name{"gone"}
	b.set("/one", cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Of(1), Mems: numa.Of(0)}})
	var s scatter
	var elsewhere []string
	gather := func(whole bool) error {
		return s.gather(t.Context(), emptied{b, empty}, whole, func(name string) { elsewhere = append(elsewhere, name) })
	}
	noted := 0
	all := func(note func(cgroup.Name)) { noted++; note(name); note(empty); note(gone) }
	s.emptied()
	s.noteAll(all)
	s.noteAll(all)
	if noted != 1 || len(s.all) != 3 || s.all[name.String()].settled || s.justLost {
		t.Fatalf("noted %d times: %+v", noted, s)
	}
	blind := errors.New("no processes are shown")
	b.blind["/one/cgroup.procs"] = blind
	if err := gather(false); !errors.Is(err, blind) || len(elsewhere) != 1 || s.all[name.String()].settled {
		t.Errorf("a cgroup that cannot be read: %v, elsewhere %q, %+v", err, elsewhere, s.all)
	}
	delete(b.blind, "/one/cgroup.procs")
	if err := gather(false); err != nil || !s.all[name.String()].settled || !s.all[empty.String()].settled || len(s.all) != 2 {
		t.Errorf("the first time: %v, %+v", err, s.all)
	}
	if err := gather(false); err != nil || len(s.all) != 2 {
		t.Errorf("beside a pass: %v, %+v", err, s.all)
	}
	if err := gather(true); err != nil || len(s.all) != 1 || !s.all[empty.String()].settled {
		t.Errorf("in a pass: %v, %+v", err, s.all)
	}
	s.emptied()
	if s.noteAll(all); noted != 2 || len(s.all) != 3 {
		t.Errorf("after a loss they are noted %d times: %+v", noted, s.all)
	}
}
