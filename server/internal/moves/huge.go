package moves

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/reconcile"
)

// HugePages hold what moves of running containers with huge pages need. The kernel moves such a page to a free one
// of the new NUMA nodes. If there is none, a page of 2 MiB becomes one that the kernel makes of other memory there, and
// a page of 1 GiB stays where it is, and neither is an error. So free pages are compared before a move, and the pages of
// the processes after it.
type HugePages struct {
	// Move allows such moves.
	Move bool
	// Check returns whether the huge pages of a process can be read, and Read reads them, as
	// numamaps.Client does. nil if the tree shows no processes: then all of them have arrived.
	Check func(ctx context.Context, pid int) error
	Read  func(ctx context.Context, pid int) (cgroup.HugeBytes, error)
	// Free reads the free huge pages of the machine; nil if it is not this one.
	Free func() (cgroup.HugeBytes, error)
}

const (
	// readTimeout bounds how long the processes of a container are read. A process can make the kernel wait.
	readTimeout = 5 * time.Second
	// maxProcesses bounds how many processes of a container are read.
	maxProcesses = 4096
	// listings bounds how often processes are listed that were started while others were read.
	listings = 3
)

// hasHugePages returns whether a container has huge pages, or its pod as a whole.
func hasHugePages(pod *ledger.Pod, owner ledger.Owner) bool {
	return slices.ContainsFunc(pod.Claims, func(c ledger.Claim) bool {
		return c.Memory != nil && workload.Resource(c.Resource).IsHugePages() && (c.Owner == owner || c.Owner.Container == "")
	})
}

// readable refuses a move of huge pages that could not be seen to arrive.
func (m *Moves) readable(ctx context.Context, c runningContainer) error {
	if !c.huge || m.HugePages.Check == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	pids, err := m.Loop.Tree.Procs(ctx, c.name)
	if err != nil {
		return err
	}
	gone := map[int]bool{}
	for _, pid := range pids {
		switch err := m.HugePages.Check(ctx, pid); errdefs.ClassOf(err) {
		case errdefs.NotFound:
			gone[pid] = true
			continue
		case errdefs.Unsupported:
			return errdefs.Refuse(errdefs.Infeasible, "the huge pages of container %s cannot move while it runs: %w", c.Owner, err)
		default:
			if err != nil {
				return errdefs.Refuse(errdefs.ResizeDeferred, "the huge pages of container %s cannot move now: %w", c.Owner, err)
			}
		}
		return nil // one says enough: a container's processes differ little
	}
	if pids, err = m.Loop.Tree.Procs(ctx, c.name); err != nil {
		return err
	}
	if err := notHidden(c.name, pids, gone); err != nil {
		return errdefs.Refuse(errdefs.ResizeDeferred, "the huge pages of container %s cannot move now: %w", c.Owner, err)
	}
	return nil
}

// notHidden checks that none of a cgroup's processes is one that /proc did not show. Such a process has ended, unless the
// cgroup still has it: with another pid namespace, or with the option hidepid, /proc does not show all processes.
func notHidden(name cgroup.Name, pids []int, gone map[int]bool) error {
	for _, pid := range pids {
		if gone[pid] {
			return errdefs.Unavailablef("cgroup %s has process %d, which /proc does not show to berthd's second process", name, pid)
		}
	}
	return nil
}

// hugePages reads where the huge pages of a container's processes are. A process that is started meanwhile has no
// other pages than the one that has started it.
func (m *Moves) hugePages(ctx context.Context, name cgroup.Name) (cgroup.HugeBytes, error) {
	out := cgroup.HugeBytes{}
	if m.HugePages.Read == nil {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	read, gone := map[int]bool{}, map[int]bool{}
	for range listings {
		pids, err := m.Loop.Tree.Procs(ctx, name)
		if err == nil {
			err = notHidden(name, pids, gone)
		}
		if err != nil {
			return nil, err
		}
		pids = slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return read[pid] })
		if len(pids) == 0 {
			break
		}
		if len(read)+len(pids) > maxProcesses {
			return nil, errdefs.Unavailablef("cgroup %s has more than %d processes, of which berthd reads the huge pages of none", name,
				maxProcesses)
		}
		for _, pid := range pids {
			read[pid] = true
			pages, err := m.HugePages.Read(ctx, pid)
			if errdefs.ClassOf(err) == errdefs.NotFound {
				gone[pid] = true
				continue
			}
			if err != nil {
				return nil, err
			}
			out.Add(pages)
		}
	}
	return m.once(ctx, name, out), nil
}

// once lowers amounts in which pages count once for each process that has mapped them. The kernel's counter of the
// cgroup has the sum. No node with pages gets none.
func (m *Moves) once(ctx context.Context, name cgroup.Name, pages cgroup.HugeBytes) cgroup.HugeBytes {
	meter, ok := m.Loop.Tree.(cgroup.Meter)
	if !ok {
		return pages
	}
	d, err := meter.Details(ctx, name)
	if err != nil {
		return pages
	}
	for size, nodes := range pages {
		var mapped uint64
		for _, bytes := range nodes {
			mapped += bytes
		}
		used, page := d.HugePageBytes[size], uint64(size)
		if used < page || mapped <= used {
			continue
		}
		for id, bytes := range nodes {
			hi, lo := bits.Mul64(bytes, used)
			part, _ := bits.Div64(hi, lo, mapped) // less than used, because bytes is at most mapped
			nodes[id] = (part + page - 1) / page * page
		}
	}
	return pages
}

// on returns how many bytes of some pages are on some nodes.
func on(pages map[int]uint64, nodes numa.Mask) (sum uint64) {
	for id, bytes := range pages {
		if nodes.Contains(id) {
			sum += bytes
		}
	}
	return sum
}

// pagesArrived returns which huge pages of a container are not on its memory nodes; empty if all are.
func (m *Moves) pagesArrived(ctx context.Context, c runningContainer) (stays string, err error) {
	pages, err := m.hugePages(ctx, c.name)
	if err != nil {
		return "", err
	}
	var stay []string
	for _, size := range slices.Sorted(maps.Keys(pages)) {
		for _, id := range slices.Sorted(maps.Keys(pages[size])) {
			if bytes := pages[size][id]; bytes > 0 && !c.mems.Contains(id) {
				stay = append(stay, fmt.Sprintf("%d of %s on NUMA node %d", bytes/uint64(size), cgroup.HugePageLabel(size), id))
			}
		}
	}
	if len(stay) == 0 {
		return "", nil
	}
	return fmt.Sprintf("huge pages of container %s stay where they are, and are not on NUMA nodes %s: %s. "+
		"These nodes have too few free ones, or a device has pinned them", c.Owner, c.mems, strings.Join(stay, ", ")), nil
}

// checkRoom refuses a move to NUMA nodes where the kernel has too few free huge pages for the amounts of running
// containers. Their pages that are there already need no others.
func (m *Moves) checkRoom(ctx context.Context, move *ledger.Move, running []runningContainer) error {
	if m.HugePages.Free == nil || !slices.ContainsFunc(running, func(c runningContainer) bool { return c.huge }) {
		return nil
	}
	var free cgroup.HugeBytes
	for i := range move.To {
		to := &move.To[i]
		size, err := workload.HugePageSize(workload.Resource(to.Resource))
		if err != nil || to.Memory == nil || partOfPod(move, to) {
			continue
		}
		owners := slices.DeleteFunc(slices.Clone(running), func(c runningContainer) bool {
			return to.Owner.Container != "" &&
				c.Owner != to.Owner
		})
		nodes, need := arrives(move.From[i].Memory, to.Memory)
		if need == 0 || len(owners) == 0 {
			continue
		}
		if free == nil {
			if free, err = m.HugePages.Free(); err != nil {
				return err
			}
		}
		have := on(free[size], nodes)
		if need > have {
			need = m.lacks(ctx, owners, size, nodes, to.Memory)
		}
		if need > have {
			return errdefs.Refuse(errdefs.ResizeDeferred,
				"%s would move to NUMA nodes %s: free pages of %s needed there: %d; the kernel has %d, because other programs use the rest",
				to.Owner, nodes, to.Resource, need/uint64(size), have/uint64(size))
		}
		take(free[size], nodes, need)
	}
	return nil
}

// partOfPod returns whether a claim is a part of one that its pod has as a whole.
func partOfPod(m *ledger.Move, c *ledger.Claim) bool {
	return c.Owner.Container != "" && slices.ContainsFunc(m.To, func(o ledger.Claim) bool {
		return o.Owner.Container == "" && o.Resource == c.Resource && o.Memory != nil
	})
}

// arrives returns the nodes of the blocks of a claim, and the most that they may get more. Pages of several nodes may be on any of
// them, so all may arrive if the blocks leave a node.
func arrives(from, to []ledger.Block) (nodes numa.Mask, bytes uint64) {
	amount := func(blocks []ledger.Block, id int) (sum uint64) {
		for _, b := range blocks {
			if b.Nodes.Contains(id) {
				sum += b.On(numa.Of(id))
			}
		}
		return sum
	}
	var all uint64
	for _, b := range to {
		nodes = nodes.Union(b.Nodes)
		all += b.Bytes
	}
	if slices.ContainsFunc(from, func(b ledger.Block) bool { return !b.Nodes.IsSubsetOf(nodes) }) {
		return nodes, all
	}
	for id := range nodes.All() {
		now, then := amount(from, id), amount(to, id)
		bytes += then - min(then, now)
	}
	return nodes, bytes
}

// lacks returns how many bytes of some blocks are not used on their nodes by processes of some containers.
func (m *Moves) lacks(ctx context.Context, owners []runningContainer, size int64, nodes numa.Mask, blocks []ledger.Block) (bytes uint64) {
	for _, b := range blocks {
		bytes += b.Bytes
	}
	for _, c := range owners {
		if pages, err := m.hugePages(ctx, c.name); err == nil {
			bytes -= min(bytes, on(pages[size], nodes))
		}
	}
	return bytes
}

// take lowers what is free on some nodes.
func take(free map[int]uint64, nodes numa.Mask, bytes uint64) {
	for id := range nodes.All() {
		n := min(free[id], bytes)
		if n > 0 {
			free[id] -= n
			bytes -= n
		}
	}
}

// migrateAgain lets the kernel move again what has stayed, by another change of the container's memory nodes: it moves
// pages only then, and leaves those that something uses for a moment. The next pass corrects the nodes if one of the
// two changes fails.
func (m *Moves) migrateAgain(ctx context.Context, c runningContainer) {
	err := m.Loop.Turn(ctx, func(reconcile.Turn) (err error) {
		if c.held.IsSubsetOf(c.mems) || !m.attempt(c.Owner) {
			return nil
		}
		for _, mems := range []numa.Mask{c.held.Union(c.mems), c.mems} {
			_, failed := m.Loop.Tree.Ensure(ctx, cgroup.Node{Name: c.name, Values: cgroup.Values{Cpuset: cgroup.Cpuset{Mems: mems}}})
			err = errors.Join(err, failed)
		}
		return err
	})
	if err != nil {
		m.Loop.Log.DebugContext(ctx, "moving memory again failed", "container", c.Owner.String(), "error", err)
	}
}

// attempt reports whether it is time for another attempt at the memory of a container, and notes it.
func (m *Moves) attempt(owner ledger.Owner) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.Loop.Now()
	if last, tried := m.attempts[owner]; tried && now.Sub(last) < protocol.MoveRetryInterval {
		return false
	}
	maps.DeleteFunc(m.attempts, func(_ ledger.Owner, last time.Time) bool {
		return now.Sub(last) > 2*protocol.MoveRetryInterval // it does not move any more
	})
	m.attempts[owner] = now
	return true
}

// forgetAttempts is called when the memory of a container has arrived.
func (m *Moves) forgetAttempts(owner ledger.Owner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.attempts, owner)
}
