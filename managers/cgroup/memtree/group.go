package memtree

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// The kernel's answers, in its words.
var (
	errAccess  = errors.New("permission denied")
	errBusy    = errors.New("device or resource busy")
	errInvalid = errors.New("invalid argument")
	errNoEntry = errors.New("no such file or directory")
	errNoSpace = errors.New("no space left on device")
	errRange   = errors.New("numerical result out of range")
)

// group is one cgroup. Its values are complete, except that on v2 its sets may
// be empty.
type group struct {
	name     cgroup.Name
	parent   *group
	children map[string]*group
	procs    map[int]*process
	values   cgroup.Values
	memory   int64 // in use
	lacks    string
	record   []byte // the claim record; nil for none
}

// newGroup has the kernel's default values.
func newGroup(parent *group, component string, f cgroup.Facts) *group {
	g := &group{parent: parent, children: map[string]*group{}, procs: map[int]*process{}}
	if parent != nil {
		g.name = append(slices.Clone(parent.name), component)
	}
	g.values = cgroup.Values{
		CPUQuotaUS:  new(cgroup.Unlimited),
		CPUPeriodUS: new(uint64(cgroup.DefaultPeriodUS)),
		MemoryBytes: new(cgroup.Unlimited),
		PIDs:        new(cgroup.Unlimited),
		HugePages:   map[int64]int64{},
		Frozen:      new(false),
	}
	for _, size := range f.HugePageSizes {
		g.values.HugePages[size] = cgroup.Unlimited
	}
	if f.Version == cgroup.V1 {
		g.values.CPUShares = new(uint64(1024))
		if f.SwapLimits {
			g.values.MemorySwapBytes = new(cgroup.Unlimited)
		}
		return g
	}
	g.values.CPUWeight = new(uint64(100))
	g.values.Unified = map[string]string{
		"memory.min": "0", "memory.low": "0", "memory.high": "max", "memory.oom.group": "0",
	}
	if f.SwapLimits {
		g.values.Unified["memory.swap.max"] = "max"
	}
	return g
}

// effective is what the kernel grants of the sets.
func (g *group) effective(f cgroup.Facts) cgroup.Cpuset {
	own := g.values.Cpuset
	if g.parent == nil || f.Version == cgroup.V1 {
		return own
	}
	above := g.parent.effective(f)
	own.CPUs, own.Mems = own.CPUs.Intersect(above.CPUs), own.Mems.Intersect(above.Mems)
	if own.CPUs.IsEmpty() {
		own.CPUs = above.CPUs
	}
	if own.Mems.IsEmpty() {
		own.Mems = above.Mems
	}
	return own
}

// takeOffline is v1's rule about CPUs and memory nodes that are not online.
func (g *group) takeOffline(have cgroup.Cpuset) {
	g.values.CPUs, g.values.Mems = g.values.CPUs.Intersect(have.CPUs), g.values.Mems.Intersect(have.Mems)
	if g.cutOff() {
		for _, p := range g.procs {
			for p.cpuset = g.parent; p.cpuset.cutOff(); {
				p.cpuset = p.cpuset.parent
			}
		}
	}
	for _, c := range g.children {
		c.takeOffline(have)
	}
}

// cutOff returns whether v1 lets no process be in the cgroup.
func (g *group) cutOff() bool { return g.values.CPUs.IsEmpty() || g.values.Mems.IsEmpty() }

// inherit fills empty sets from the parent, as v1 drivers must.
func (g *group) inherit() {
	if g.values.CPUs.IsEmpty() {
		g.values.CPUs = g.parent.values.CPUs
	}
	if g.values.Mems.IsEmpty() {
		g.values.Mems = g.parent.values.Mems
	}
}

// write puts one value after the other into force, in the order of the files,
// and stops at the first that the kernel refuses.
func (g *group) write(v cgroup.Values, f cgroup.Facts, machine cgroup.Cpuset) error {
	v = v.For(f)
	if have := *g.values.MemoryBytes; v.MemoryBytes != nil && above(g.memory, *v.MemoryBytes) && (have < 0 || have > *v.MemoryBytes) {
		return errdefs.Preconditionf("write \"%d\" to the memory limit of cgroup %s: %w", *v.MemoryBytes, g.name, cgroup.ErrBelowUse)
	}
	if err := g.writeSets(v.Cpuset, f, machine); err != nil {
		return err
	}
	if err := g.writeMemory(v, f); err != nil {
		return err
	}
	if err := g.writeCPU(v, f); err != nil {
		return err
	}
	if v.PIDs != nil {
		g.values.PIDs = v.PIDs
	}
	if v.Frozen != nil {
		g.values.Frozen = v.Frozen
	}
	for size, limit := range v.HugePages {
		g.values.HugePages[size] = limit
	}
	for _, name := range slices.Sorted(maps.Keys(v.Unified)) {
		if _, ok := g.values.Unified[name]; !ok || strings.Contains(name, "/") {
			return g.refused(name, v.Unified[name], errNoEntry)
		}
		g.values.Unified[name] = v.Unified[name]
	}
	return nil
}

func (g *group) writeSets(s cgroup.Cpuset, f cgroup.Facts, machine cgroup.Cpuset) error {
	if !s.CPUs.IsEmpty() {
		if err := g.checkCPUs(s.CPUs, f, machine); err != nil {
			return g.refused("cpuset.cpus", s.CPUs, err)
		}
		g.values.CPUs = s.CPUs
	}
	if !s.Mems.IsEmpty() {
		if err := g.checkMems(s.Mems, f, machine); err != nil {
			return g.refused("cpuset.mems", s.Mems, err)
		}
		g.values.Mems = s.Mems
	}
	return nil
}

func (g *group) checkCPUs(set cpuset.Set, f cgroup.Facts, machine cgroup.Cpuset) error {
	if !set.IsSubsetOf(machine.CPUs) {
		return errInvalid
	}
	if f.Version == cgroup.V2 {
		return nil
	}
	for _, c := range g.children {
		if !c.values.CPUs.IsSubsetOf(set) {
			return errBusy
		}
	}
	if g.parent != nil && !set.IsSubsetOf(g.parent.values.CPUs) {
		return errAccess
	}
	return nil
}

func (g *group) checkMems(set numa.Mask, f cgroup.Facts, machine cgroup.Cpuset) error {
	if !set.IsSubsetOf(machine.Mems) {
		return errInvalid
	}
	if f.Version == cgroup.V2 {
		return nil
	}
	for _, c := range g.children {
		if !c.values.Mems.IsSubsetOf(set) {
			return errBusy
		}
	}
	if g.parent != nil && !set.IsSubsetOf(g.parent.values.Mems) {
		return errAccess
	}
	return nil
}

func (g *group) writeMemory(v cgroup.Values, f cgroup.Facts) error {
	both := g.values.Merge(cgroup.Values{MemoryBytes: v.MemoryBytes, MemorySwapBytes: v.MemorySwapBytes})
	if both.MemorySwapBytes != nil && *both.MemorySwapBytes >= 0 &&
		(*both.MemoryBytes < 0 || *both.MemoryBytes > *both.MemorySwapBytes) {
		return g.refused("memory.memsw.limit_in_bytes", *both.MemorySwapBytes, errInvalid)
	}
	g.values.MemoryBytes, g.values.MemorySwapBytes = both.MemoryBytes, both.MemorySwapBytes
	return nil
}

func above(used, limit int64) bool { return limit >= 0 && used > limit }

func (g *group) writeCPU(v cgroup.Values, f cgroup.Facts) error {
	if s := v.CPUShares; s != nil {
		if *s < cgroup.MinShares || *s > cgroup.MaxShares {
			return g.refused("cpu.shares", *s, errInvalid)
		}
		g.values.CPUShares = s
	}
	if w := v.CPUWeight; w != nil {
		if *w < 1 || *w > 10000 {
			return g.refused("cpu.weight", *w, errRange)
		}
		g.values.CPUWeight = w
	}
	if v.CPUQuotaUS == nil && v.CPUPeriodUS == nil {
		return nil
	}
	next := g.values.Merge(cgroup.Values{CPUQuotaUS: v.CPUQuotaUS, CPUPeriodUS: v.CPUPeriodUS})
	if p := *next.CPUPeriodUS; p < 1000 || p > 1_000_000 {
		return g.refused("cpu.cfs_period_us", p, errInvalid)
	}
	if q := *next.CPUQuotaUS; q >= 0 && q < cgroup.MinQuotaUS || f.Version == cgroup.V1 && !g.quotaFits(next) {
		return g.refused("cpu.cfs_quota_us", q, errInvalid)
	}
	g.values.CPUQuotaUS, g.values.CPUPeriodUS = next.CPUQuotaUS, next.CPUPeriodUS
	return nil
}

// quotaFits is v1's rule: no group has a larger share of the CPU than the
// nearest one above it that has a quota.
func (g *group) quotaFits(next cgroup.Values) bool {
	limit := cgroup.Values{CPUQuotaUS: new(cgroup.Unlimited), CPUPeriodUS: new(uint64(1))}
	for p := g.parent; p != nil; p = p.parent {
		if *p.values.CPUQuotaUS >= 0 {
			limit = p.values
			break
		}
	}
	if exceeds(next, limit) {
		return false
	}
	if *next.CPUQuotaUS < 0 {
		next = limit
	}
	return g.childrenFit(next)
}

func (g *group) childrenFit(limit cgroup.Values) bool {
	for _, c := range g.children {
		if *c.values.CPUQuotaUS < 0 {
			if !c.childrenFit(limit) {
				return false
			}
		} else if exceeds(c.values, limit) {
			return false
		}
	}
	return true
}

// exceeds compares shares of the CPU; no quota inherits the limit.
func exceeds(v, limit cgroup.Values) bool {
	if *v.CPUQuotaUS < 0 || *limit.CPUQuotaUS < 0 {
		return false
	}
	aHi, aLo := bits.Mul64(uint64(*v.CPUQuotaUS), *limit.CPUPeriodUS)
	bHi, bLo := bits.Mul64(uint64(*limit.CPUQuotaUS), *v.CPUPeriodUS)
	return aHi > bHi || aHi == bHi && aLo > bLo
}

// refused is the error of a write.
func (g *group) refused(file string, value any, err error) error {
	return errdefs.Unavailablef("write %q to %s of cgroup %s: %w", fmt.Sprint(value), file, g.name, err)
}

// Nature tells how a process reacts to a kill.
type Nature int

const (
	// Mortal processes die when killed.
	Mortal Nature = iota
	// Forking processes fork once more before they die, unless frozen. A
	// loop that kills them one after the other never ends.
	Forking
	// Stuck processes do not die, like one that waits for a dead disk.
	Stuck
)

// process runs in exactly one group.
type process struct {
	pid    int
	nature Nature
	group  *group
	frozen bool
	huge   hugePages
	// cpuset is where v1 has moved it in the hierarchy of cpuset alone; nil for group.
	cpuset *group
}

// pids lists the processes of a group and of those below, ascending.
func (g *group) pids() []int {
	if g == nil {
		return nil
	}
	out := slices.Collect(maps.Keys(g.procs))
	for _, c := range g.children {
		out = append(out, c.pids()...)
	}
	slices.Sort(out)
	return out
}

// hugePages are the huge pages of one process, in bytes, and how many of them are pinned, by page size.
type hugePages struct {
	at     cgroup.HugeBytes
	pinned map[int64]uint64
}
