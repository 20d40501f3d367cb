package cgroup

import (
	"context"
	"math/bits"
	"slices"
)

// OpKind is the effect of an op.
type OpKind string

const (
	// Create makes a cgroup that is absent, or repairs one that is invalid.
	Create OpKind = "create"
	// Set writes values of a cgroup that is there.
	Set OpKind = "set"
)

// Write describes what an op does to one control file.
type Write struct {
	File string
	// Old is the text before, empty if unknown.
	Old string
	New string
}

// Op is one step on the way to the desired tree.
type Op struct {
	Kind OpKind
	Name Name
	// Values are exactly those that the op writes.
	Values Values
	// Writes lists the same values file by file, for people.
	Writes []Write
}

// Apply puts the ops into force in their order and stops at the first error,
// which names the cgroup.
func Apply(ctx context.Context, t Tree, ops []Op) error {
	for _, op := range ops {
		if _, err := t.Ensure(ctx, Node{Name: op.Name, Values: op.Values}); err != nil {
			return err
		}
	}
	return nil
}

// Diff returns the ops that turn the observed tree into the desired one. Only
// values that are present and differ are written; cgroups that are not desired
// stay as they are. No cgroup is removed: Tree.Remove does that, called by code that
// has recorded that the pod has ended.
//
// The kernel checks parents and children against each other, so the order is:
//
//  1. inner cgroups from the top down are created, or widened to hold both what
//     their children have now and what they will have;
//  2. leaves give up the CPUs and memory nodes that they lose, so that none is
//     in use by its old holder when its new one starts;
//  3. leaves are created and get their exact values;
//  4. inner cgroups from the bottom up get their exact values.
//
// A desired tree in which a child exceeds its parent cannot be made on v1, and
// a parent cannot become narrower than a child that is not desired. The
// kernel's refusal then ends Apply.
func Diff(desired []Node, seen *Snapshot) []Op {
	d := newDiffing(desired, seen)
	for _, n := range d.nodes {
		if n.inner {
			d.widen(n)
		}
	}
	for _, n := range d.nodes {
		if !n.inner && n.exists {
			d.set(n, d.shrink(n))
		}
	}
	for _, n := range d.nodes {
		if !n.inner {
			d.setExact(n)
		}
	}
	for _, n := range slices.Backward(d.nodes) {
		if n.inner {
			d.setExact(n)
		}
	}
	return d.ops
}

// diffing is one run of Diff.
type diffing struct {
	facts Facts
	nodes []*diffNode // parents first
	ops   []Op
}

// diffNode is a desired cgroup. have is its state after the ops so far.
type diffNode struct {
	name       Name
	have, want Values
	exists     bool
	inner      bool // something is below it, or will be
	lives      bool
}

func newDiffing(desired []Node, seen *Snapshot) *diffing {
	present := make([]*Observed, len(seen.Nodes))
	for i := range seen.Nodes {
		present[i] = &seen.Nodes[i]
	}
	slices.SortStableFunc(present, func(a, b *Observed) int { return a.Name.Compare(b.Name) })
	room := make([]diffNode, len(desired))
	d := &diffing{facts: seen.Facts, nodes: make([]*diffNode, len(desired))}
	for i := range desired {
		d.nodes[i] = &room[i]
		room[i].name, room[i].want = desired[i].Name, desired[i].Values.For(seen.Facts)
		room[i].lives = desired[i].Lives
	}
	slices.SortStableFunc(d.nodes, func(a, b *diffNode) int { return a.name.Compare(b.name) })
	// Both lists are in order, so what is below a name comes right behind it.
	for i, n := range d.nodes {
		for _, o := range d.nodes[i+1:] {
			if !o.name.Equal(n.name) {
				n.inner = o.name.Within(n.name)
				break
			}
		}
		for len(present) > 0 && present[0].Name.Compare(n.name) < 0 {
			present = present[1:]
		}
		for _, o := range present {
			if !o.Name.Equal(n.name) {
				if !o.Name.Within(n.name) {
					break
				}
				if n.inner = n.inner || o.State != Absent; n.inner {
					break
				}
			} else if n.exists = o.State == Valid; n.exists {
				n.have = o.Values.For(seen.Facts)
				n.revive(o.Values)
			}
		}
		if n.exists {
			n.completePairs()
		}
	}
	return d
}

// revive lets what lives run and fork again. A limit of no process at all is never
// desired.
func (n *diffNode) revive(seen Values) {
	if !n.lives {
		return
	}
	if seen.Frozen != nil && *seen.Frozen {
		n.want.Frozen = new(false)
	}
	if seen.PIDs == nil || *seen.PIDs != 0 {
		return
	}
	if n.have.PIDs = seen.PIDs; n.want.PIDs == nil {
		n.want.PIDs = new(Unlimited)
	}
}

// completePairs adds to the desired values those that the kernel keeps together
// with them: quota and period share a file on v2, and a v1 memory limit is held
// against that of memory and swap.
func (n *diffNode) completePairs() {
	pair(&n.want.CPUQuotaUS, n.want.CPUPeriodUS, n.have.CPUQuotaUS)
	pair(&n.want.CPUPeriodUS, n.want.CPUQuotaUS, n.have.CPUPeriodUS)
}

// pair keeps the present value if only the partner is desired.
func pair[A, B any](want **A, partner *B, have *A) {
	if *want == nil && partner != nil {
		*want = have
	}
}

// widen creates an inner node, or raises those of its values that bound its
// children's.
func (d *diffing) widen(n *diffNode) {
	if !n.exists {
		d.create(n)
		return
	}
	wide := Values{}
	if !n.want.CPUs.IsEmpty() && !d.inherits(n.have.CPUs.IsEmpty()) {
		wide.CPUs = n.want.CPUs.Union(n.have.CPUs)
	}
	if !n.want.Mems.IsEmpty() && !d.inherits(n.have.Mems.IsEmpty()) {
		wide.Mems = n.want.Mems.Union(n.have.Mems)
	}
	if moreQuota(n.want, n.have) {
		wide.CPUQuotaUS, wide.CPUPeriodUS = n.want.CPUQuotaUS, n.want.CPUPeriodUS
	}
	if moreMemory(n.want.MemoryBytes, n.have.MemoryBytes) {
		wide.MemoryBytes, wide.MemorySwapBytes = n.want.MemoryBytes, n.want.MemorySwapBytes
	}
	d.set(n, wide)
}

// inherits reports whether an empty set means all that the parent has, as on
// v2. On v1 it means nothing at all.
func (d *diffing) inherits(empty bool) bool { return empty && d.facts.Version == V2 }

// shrink gives what a leaf keeps of the CPUs and memory nodes it has.
func (d *diffing) shrink(n *diffNode) Values {
	kept := Values{Cpuset: Cpuset{
		CPUs: n.have.CPUs.Intersect(n.want.CPUs),
		Mems: n.have.Mems.Intersect(n.want.Mems),
	}}
	if d.inherits(n.have.CPUs.IsEmpty()) {
		kept.CPUs = n.want.CPUs
	}
	if d.inherits(n.have.Mems.IsEmpty()) {
		kept.Mems = n.want.Mems
	}
	return kept
}

// setExact gives a node its exact values.
func (d *diffing) setExact(n *diffNode) {
	if !n.exists {
		d.create(n)
		return
	}
	d.set(n, n.want)
}

func (d *diffing) create(n *diffNode) {
	d.ops = append(d.ops, Op{Kind: Create, Name: n.name, Values: n.want, Writes: d.writes(Values{}, n.want)})
	n.exists, n.have = true, n.want
}

// set writes those of the values that differ from what the node has.
func (d *diffing) set(n *diffNode, values Values) {
	change := values.changes(n.have)
	writes := d.writes(n.have, change)
	if len(writes) == 0 {
		return
	}
	d.ops = append(d.ops, Op{Kind: Set, Name: n.name, Values: change, Writes: writes})
	n.have = n.have.Merge(change)
}

func (d *diffing) writes(have, change Values) []Write {
	files := change.files(d.facts)
	if len(files) == 0 {
		return nil // as for nearly every node of a tree
	}
	before := have.files(d.facts)
	out := make([]Write, len(files))
	for i, f := range files {
		out[i] = Write{File: f.Name, New: f.Text}
		if at := slices.IndexFunc(before, func(o File) bool { return o.Name == f.Name }); at >= 0 {
			out[i].Old = before[at].Text
		}
	}
	return out
}

// changes returns those of the values that have does not hold already; values
// that the kernel keeps together stay together. Both are in the form of For.
func (v Values) changes(have Values) Values {
	out := Values{}
	keep(&out.CPUShares, v.CPUShares, have.CPUShares)
	keep(&out.CPUWeight, v.CPUWeight, have.CPUWeight)
	keep(&out.PIDs, v.PIDs, have.PIDs)
	keep(&out.Frozen, v.Frozen, have.Frozen)
	if differ(v.CPUQuotaUS, have.CPUQuotaUS) || differ(v.CPUPeriodUS, have.CPUPeriodUS) {
		out.CPUQuotaUS, out.CPUPeriodUS = v.CPUQuotaUS, v.CPUPeriodUS
	}
	if differ(v.MemoryBytes, have.MemoryBytes) || differ(v.MemorySwapBytes, have.MemorySwapBytes) {
		out.MemoryBytes, out.MemorySwapBytes = v.MemoryBytes, v.MemorySwapBytes
	}
	out.HugePages = changedEntries(v.HugePages, have.HugePages)
	out.Unified = changedEntries(v.Unified, have.Unified)
	if v.CPUs != have.CPUs {
		out.CPUs = v.CPUs
	}
	if v.Mems != have.Mems {
		out.Mems = v.Mems
	}
	return out
}

// differ reports whether a desired value is not in force.
func differ[T comparable](want, have *T) bool {
	return want != nil && (have == nil || *have != *want)
}

func keep[T comparable](to **T, want, have *T) {
	if differ(want, have) {
		*to = want
	}
}

func changedEntries[K, V comparable](want, have map[K]V) map[K]V {
	var out map[K]V
	for k, v := range want {
		if old, ok := have[k]; ok && old == v {
			continue
		}
		if out == nil {
			out = make(map[K]V)
		}
		out[k] = v
	}
	return out
}

// moreQuota reports whether a has more CPU time than b. No quota is the
// most.
func moreQuota(a, b Values) bool {
	if a.CPUQuotaUS == nil || b.CPUQuotaUS == nil || *b.CPUQuotaUS < 0 {
		return false
	}
	if *a.CPUQuotaUS < 0 {
		return true
	}
	aHi, aLo := bits.Mul64(uint64(*a.CPUQuotaUS), period(b))
	bHi, bLo := bits.Mul64(uint64(*b.CPUQuotaUS), period(a))
	return aHi > bHi || aHi == bHi && aLo > bLo
}

func period(v Values) uint64 {
	if v.CPUPeriodUS == nil {
		return DefaultPeriodUS
	}
	return *v.CPUPeriodUS
}

// moreMemory reports whether a has more than b.
func moreMemory(a, b *int64) bool {
	return a != nil && b != nil && *b >= 0 && (*a < 0 || *a > *b)
}
