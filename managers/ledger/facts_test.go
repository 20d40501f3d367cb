package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// drawHolder draws a pod that may hold CPUs, devices and memory, no matter who else
// holds them.
func drawHolder(t *rapid.T, uid string) *Pod {
	p := &Pod{AdmissionID: rapid.SampledFrom([]string{"", "x", "xy"}).Draw(t, "admission"),
		Pod: workload.Pod{UID: uid, Containers: []workload.Container{{Name: "i", Role: workload.Init}, {Name: "c"}}}}
	for _, c := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"", "i", "c"}), 0, 3, rapid.ID[string]).Draw(t, "owners") {
		owner := Owner{Pod: uid, Container: c}
		if rapid.Bool().Draw(t, "cpus") {
			set := cpuset.Of(rapid.SliceOfN(rapid.IntRange(0, 40), 1, 2).Draw(t, "set")...)
			use := rapid.SampledFrom([]CPUUse{CPUExclusive, CPUPod, CPUPodShared}).Draw(t, "use")
			p.Claims = append(p.Claims, Claim{Owner: owner, Resource: "cpu", CPUs: &CPUs{Set: set, Use: use}})
		}
		if rapid.Bool().Draw(t, "device") {
			p.Claims = append(p.Claims, Claim{Owner: owner, Resource: "d", Devices: &Devices{Devices: []Device{{ID: uid}}}})
		}
		if rapid.Bool().Draw(t, "memory") {
			block := Block{
				Nodes: rapid.SampledFrom([]numa.Mask{numa.Of(0), numa.Of(1), numa.Of(0, 1), numa.Of(1, 2)}).Draw(t, "nodes"),
				Bytes: rapid.OneOf(rapid.Uint64Range(0, 9), rapid.Just[uint64](math.MaxUint64-3)).Draw(t, "bytes"),
			}
			resource := rapid.SampledFrom([]string{"memory", "hugepages-2Mi"}).Draw(t, "resource")
			p.Claims = append(p.Claims, Claim{Owner: owner, Resource: resource, Memory: []Block{block}})
		}
	}
	slices.SortFunc(p.Claims, CompareClaims)
	if rapid.Bool().Draw(t, "moves") {
		p.Move = &Move{Held: slices.Clone(p.Claims)}
		for i := range p.Move.Held {
			switch c := &p.Move.Held[i]; {
			case c.CPUs != nil:
				c.CPUs = &CPUs{Set: c.CPUs.Set.Union(cpuset.Of(rapid.IntRange(0, 40).Draw(t, "held"))), Use: c.CPUs.Use}
			case c.Memory != nil:
				c.Memory = append(slices.Clone(c.Memory), Block{Nodes: numa.Of(2), Bytes: rapid.Uint64Range(0, 9).Draw(t, "held")})
			}
		}
	}
	return p
}

// TestFactsAreCarried: whatever drafts add, replace and remove, what follows from the
// pods is what a look at every pod gives, also where sums stop at their end and where
// pods hold the same CPUs.
func TestFactsAreCarried(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := Empty(Rules{Machine: machinetest.Build("4n2c")})
		for range rapid.IntRange(0, 10).Draw(t, "steps") {
			changes := map[string]*Pod{}
			for _, n := range rapid.SliceOfN(rapid.IntRange(0, 6), 0, 3).Draw(t, "changed") {
				uid := strconv.Itoa(n)
				changes[uid] = nil
				if rapid.IntRange(0, 2).Draw(t, "removed") > 0 {
					changes[uid] = drawHolder(t, uid)
				}
			}
			next := *v
			next.put(changes)
			if v = &next; rapid.Bool().Draw(t, "asked") {
				v.MemoryUse()
			}
			anew := *v
			anew.derive()
			got, want := v.facts, anew.facts
			if got.claims != want.claims || got.exclusive != want.exclusive || got.contested.IsEmpty() != want.contested.IsEmpty() {
				t.Fatalf("%d claims, CPUs %s, contested %s, want %d, %s, %s",
					got.claims, got.exclusive, got.contested, want.claims, want.exclusive, want.contested)
			}
			if got, want := maps.Collect(got.holders.All()), maps.Collect(want.holders.All()); !maps.Equal(got, want) {
				t.Fatalf("%d pods hold devices, want %d", len(got), len(want))
			}
			for _, id := range []string{"", "x", "xy", "xyz"} {
				var want []*Pod
				for p := range v.Pods() {
					if p.AdmissionID == id {
						want = append(want, p)
					}
				}
				if p, ok := v.Admitted(id); ok != (len(want) > 0) || ok && p != want[0] {
					t.Fatalf("admission %q brought %v %v, want one of %d", id, p, ok, len(want))
				}
			}
			if got, want := fmt.Sprint(heldOf(v)), fmt.Sprint(heldOf(&anew)); got != want {
				t.Fatalf("memory %s, want %s", got, want)
			}
		}
	})
}

func heldOf(v *View) []any {
	u := v.MemoryUse()
	return []any{u.Blocks, u.Groups, u.Held("memory"), u.Held("hugepages-2Mi")}
}

// TestTracesAreKept: the newest traces are kept as long as they are few and small
// enough, and those in the records of pods, which is found again for every commit here.
func TestTracesAreKept(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := Empty(Rules{})
		v.traces.limits = TraceLimits{rapid.IntRange(1, 4).Draw(t, "traces"), rapid.IntRange(1, 30).Draw(t, "bytes")}
		var model []keptTrace // by ascending number
		for range rapid.IntRange(0, 20).Draw(t, "commits") {
			d := NewDraft(v)
			sizes := map[*Trace]int{}
			explain := func(uid string) *Trace {
				trace := &Trace{Pod: uid}
				sizes[trace] = rapid.IntRange(1, 20).Draw(t, "size")
				return trace
			}
			for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, 4), 0, 2, rapid.ID[int]).Draw(t, "changed") {
				switch uid := strconv.Itoa(n); rapid.IntRange(0, 3).Draw(t, "do") {
				case 0:
					d.RemovePod(uid)
				case 1:
					d.PutTrace(explain(uid))
				case 2:
					d.PutPod(&Pod{Pod: workload.Pod{UID: uid}, Trace: explain(uid)})
				default: // the same trace
					if p, ok := v.Pod(uid); ok {
						d.PutPod(new(*p))
					}
				}
			}
			if d.Empty() {
				continue
			}
			old := v
			v = d.apply(v.generation + 1)
			TraceChanges(old, v, func(_ uint64, trace *Trace) int { return sizes[trace] })
			model = keepTraces(d, v, model)
			for i := range model {
				model[i].size = cmp.Or(model[i].size, sizes[model[i].trace])
			}
			var got []keptTrace
			for _, k := range v.traces.kept.All() {
				got = append(got, *k)
			}
			if !slices.Equal(got, model) {
				t.Fatalf("generation %d keeps %v, want %v", v.generation, got, model)
			}
		}
	})
}

// keepTraces adds what a draft explains, where it changes which traces there are, and
// leaves of all the newest and those of the pods that are in a view.
func keepTraces(d *Draft, v *View, all []keptTrace) (kept []keptTrace) {
	changed := false
	for _, uid := range ordered.Keys(d.changes.Pods) {
		p := d.changes.Pods[uid]
		old, ok := d.base.Pod(uid)
		if p != nil && (!ok || p.Trace != old.Trace) {
			all = append(slices.Clip(all), keptTrace{trace: p.Trace})
		}
		changed = changed || p == nil || !ok || p.Trace != old.Trace
	}
	for _, trace := range d.traces {
		all = append(slices.Clip(all), keptTrace{trace: trace})
	}
	if !changed && len(d.traces) == 0 {
		return all
	}
	newest, bytes := len(all), 0
	for newest > 0 && len(all)-newest < v.traces.limits.Count {
		bytes += all[newest-1].size
		if bytes > v.traces.limits.Bytes && newest < len(all) {
			break
		}
		newest--
	}
	for i, k := range all {
		if p, ok := v.Pod(k.trace.Pod); i >= newest || ok && p.Trace == k.trace {
			kept = append(kept, k)
		}
	}
	return kept
}
