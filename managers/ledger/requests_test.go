package ledger

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/workload"
)

// TestRequestsAreTheSumOverThePods: whatever drafts add, replace and remove, and
// however many are committed, the sums and the holders of devices are what a look
// at every pod gives, also where sums end at the end of int64.
func TestRequestsAreTheSumOverThePods(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		uid := rapid.Custom(func(t *rapid.T) string { return strconv.Itoa(rapid.IntRange(0, 6).Draw(t, "uid")) })
		amounts := rapid.MapOfN(rapid.SampledFrom([]workload.Resource{workload.CPU, workload.Memory, "example.com/gpu"}),
			rapid.OneOf(rapid.Int64Range(0, 9), rapid.Just[int64](math.MaxInt64-3)), 0, 3)
		v := Empty(Rules{})
		for range rapid.IntRange(0, 10).Draw(t, "steps") {
			changes := map[string]*Pod{}
			for _, u := range rapid.SliceOfN(uid, 0, 3).Draw(t, "changed") {
				q := amounts.Draw(t, "requests")
				changes[u] = &Pod{QoS: rapid.SampledFrom(classes[:]).Draw(t, "class"), Pod: workload.Pod{
					UID: u, Containers: []workload.Container{{Name: "main", Requests: q}},
					Resources: &workload.Resources{Requests: workload.Quantities{workload.CPU: 7}},
				}}
				if rapid.Bool().Draw(t, "device") {
					changes[u].Claims = []Claim{{Devices: &Devices{Devices: []Device{{ID: u}}}}}
				}
				if rapid.Bool().Draw(t, "removed") {
					changes[u] = nil
				}
			}
			next := *v
			next.put(changes)
			v = &next
			if rapid.Bool().Draw(t, "committed") {
				v.facts.sums.known()
			}
			f := workload.Features{PodLevelResources: rapid.Bool().Draw(t, "feature")}
			except := rapid.OneOf(rapid.Just(""), uid).Draw(t, "except")
			want, count := workload.Quantities{}, 0
			var holders []*Pod
			for p := range v.Pods() {
				if p.UID() != except {
					workload.AddRequests(want, &p.Pod, f)
					count++
				}
				if p.holdsDevices() {
					holders = append(holders, p)
				}
			}
			if got, pods := v.Requests(f, except); !maps.Equal(got, want) || pods != count {
				t.Fatalf("%v of %d pods, want %v of %d", got, pods, want, count)
			}
			ofClass := map[workload.QoSClass]int64{workload.BestEffort: 0, workload.Burstable: 0, workload.Guaranteed: 0}
			for p := range v.Pods() {
				ofClass[p.QoS] = workload.Sum(ofClass[p.QoS], workload.EffectiveRequest(&p.Pod, f, workload.CPU))
			}
			ofClass["none"] = 0 // no pod has a class that does not exist
			for class, want := range ofClass {
				if got := v.ClassRequests(f).Of(class, workload.CPU); got != want {
					t.Fatalf("%s: %d, want %d", class, got, want)
				}
			}
			got := slices.SortedFunc(v.DeviceHolders(), func(a, b *Pod) int { return cmp.Compare(a.UID(), b.UID()) })
			if !slices.Equal(got, holders) {
				t.Fatalf("%d pods hold devices, want %d", len(got), len(holders))
			}
		}
	})
}
