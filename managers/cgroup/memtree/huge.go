package memtree

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// SetFreeHugePages sets how many huge pages are free, by page size and node.
func (t *Tree) SetFreeHugePages(free cgroup.HugeBytes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free = cgroup.HugeBytes{}
	t.free.Add(free)
}

// FreeHugePages returns the free huge pages.
func (t *Tree) FreeHugePages() (cgroup.HugeBytes, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := cgroup.HugeBytes{}
	out.Add(t.free)
	return out, nil
}

// MapHugePages sets the huge pages that a process has mapped, of which some cannot move: pinned bytes of each size.
func (t *Tree) MapHugePages(pid int, pages cgroup.HugeBytes, pinned map[int64]uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := cgroup.HugeBytes{}
	at.Add(pages)
	t.procs[pid].huge = hugePages{at, maps.Clone(pinned)}
}

// HugePagesOf returns the huge pages that a process has mapped.
func (t *Tree) HugePagesOf(ctx context.Context, pid int) (cgroup.HugeBytes, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read the huge pages of process %d: %w", pid, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.procs[pid]
	if p == nil {
		return nil, errdefs.NotFoundf("there is no process %d", pid)
	}
	out := cgroup.HugeBytes{}
	out.Add(p.huge.at)
	return out, nil
}

// migrate is what the kernel does when the memory nodes of a group change: it moves huge pages of other nodes to free ones
// of the new nodes, and leaves those that are pinned, or for which there is no free one.
func (t *Tree) migrate(g *group) {
	if !t.facts.MovesMemory {
		return
	}
	mems := g.effective(t.facts).Mems
	for _, pid := range slices.Sorted(maps.Keys(g.procs)) {
		h := &g.procs[pid].huge
		for size, nodes := range h.at {
			stay := h.pinned[size]
			for _, from := range slices.Sorted(maps.Keys(nodes)) {
				if mems.Contains(from) {
					continue
				}
				keep := min(stay, nodes[from])
				stay -= keep
				t.movePages(size, nodes, from, mems, nodes[from]-keep)
			}
		}
	}
}

// movePages moves pages of one node to others.
func (t *Tree) movePages(size int64, nodes map[int]uint64, from int, mems numa.Mask, bytes uint64) {
	free := t.free[size]
	for to := range mems.All() {
		n := min(bytes, free[to])
		if n == 0 {
			continue
		}
		free[to] -= n
		free[from] += n
		nodes[from] -= n
		nodes[to] += n
		bytes -= n
	}
}
