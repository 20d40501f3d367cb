package device

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// told formats a device's history as "Healthy@0 Unhealthy@5", in seconds.
func (b *bench) told(resource, id string) string {
	r, _ := b.inv.Snapshot().Resource(resource)
	var out []string
	for _, c := range r.History(id) {
		out = append(out, fmt.Sprintf("%s@%.0f", c.Health, c.At.Sub(epoch).Seconds()))
	}
	return strings.Join(out, " ")
}

func TestHealthHistory(t *testing.T) {
	t.Parallel()
	b := newBench(t, "1n1c")
	at := func(second int) time.Time { return epoch.Add(time.Duration(second) * time.Second) }
	s := b.inv.Registered(gpu, Options{}, at(0))
	b.inv.Listed(s, parse("a b!"), at(1))
	before := b.inv.Snapshot()
	b.inv.Listed(s, parse("a b!"), at(2))
	b.inv.Listed(s, parse("a! b c"), at(3))
	b.inv.Listed(s, parse("b"), at(4))
	b.inv.Gone(s, at(5))
	s = b.inv.Registered(gpu, Options{}, at(6))
	b.inv.Listed(s, parse("a b"), at(7))
	b.inv.Gone(s, at(8))
	b.inv.Expire(at(8).Add(2 * Grace))
	for id, want := range map[string]string{
		"a": "Healthy@1 Unhealthy@3 Missing@4 Healthy@7 Unhealthy@8 Missing@608",
		"b": "Unhealthy@1 Healthy@3 Unhealthy@5 Healthy@7 Unhealthy@8 Missing@608",
		"c": "Healthy@3 Missing@4",
		"d": "",
	} {
		if got := b.told(gpu, id); got != want {
			t.Errorf("device %s: %q, want %q", id, got, want)
		}
	}
	if r, _ := before.Resource(gpu); len(r.History("a")) != 1 || r.Health("a") != Healthy {
		t.Error("an earlier snapshot has changed")
	}
}

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, "1n1c")
	s := b.inv.Registered(gpu, Options{}, epoch)
	for i := range 3 * HistoryLength {
		b.inv.Listed(s, []Device{{ID: "flapping", Healthy: i%2 == 0}, {ID: fmt.Sprintf("new%04d", i)}},
			epoch.Add(time.Duration(i)*time.Second))
	}
	r, _ := b.inv.Snapshot().Resource(gpu)
	if h := r.History("flapping"); len(h) != HistoryLength || !h[len(h)-1].At.Equal(epoch.Add((3*HistoryLength-1)*time.Second)) {
		t.Errorf("%d changes, the last %v", len(h), h[len(h)-1])
	}
	for i := range 3 * missingKept {
		b.inv.Listed(s, []Device{{ID: fmt.Sprintf("x%04d", i)}}, epoch.Add(time.Hour+time.Duration(i)*time.Second))
	}
	r, _ = b.inv.Snapshot().Resource(gpu)
	if n := len(r.history); n != missingKept+1 {
		t.Errorf("%d devices are remembered, want %d", n, missingKept+1)
	}
	if len(r.History("x0767")) == 0 || len(r.History("x0766")) == 0 || len(r.History("x0500")) != 0 {
		t.Error("not the last ones are remembered")
	}
}

// TestHistoryEndsWithThePresent checks that after any life of a plugin the last
// entry of every device's history is its present health, and times never go back.
func TestHistoryEndsWithThePresent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		inv := NewInventory(nil, epoch)
		now := epoch
		s := inv.Registered(gpu, Options{}, now)
		ids := []string{"a", "b", "c"}
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "seconds")) * time.Second)
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 0:
				s = inv.Registered(gpu, Options{}, now)
			case 1:
				var list []Device
				for _, id := range rapid.SliceOfDistinct(rapid.SampledFrom(ids), rapid.ID[string]).Draw(t, "ids") {
					list = append(list, Device{ID: id, Healthy: rapid.Bool().Draw(t, "healthy")})
				}
				inv.Listed(s, list, now)
			case 2:
				inv.Gone(s, now)
			case 3:
				inv.Expire(now)
			}
			r, _ := inv.Snapshot().Resource(gpu)
			for _, id := range ids {
				h := r.History(id)
				if len(h) == 0 {
					if r.Health(id) != Missing {
						t.Fatalf("%s is %s and has no history", id, r.Health(id))
					}
					continue
				}
				if h[len(h)-1].Health != r.Health(id) {
					t.Fatalf("%s is %s, its history ends with %v", id, r.Health(id), h[len(h)-1])
				}
				if !slices.IsSortedFunc(h, func(a, b HealthChange) int { return a.At.Compare(b.At) }) {
					t.Fatalf("times of %s: %v", id, h)
				}
			}
		}
	})
}
