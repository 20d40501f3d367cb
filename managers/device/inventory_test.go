package device

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/ledger"
)

// counts prints a resource as "capacity/allocatable state".
func (s *Snapshot) counts(name string) string {
	r, ok := s.Resource(name)
	if !ok {
		return "unknown"
	}
	return fmt.Sprintf("%d/%d %s", r.Capacity(), r.Allocatable(), r.State)
}

func TestLifeOfAResource(t *testing.T) {
	t.Parallel()
	inv := NewInventory([]ledger.SeenResource{{Name: nic}}, epoch)
	now := epoch
	var first, second Session
	for _, step := range []struct {
		name  string
		event func()
		want  string
	}{
		{"nothing", func() {}, "unknown"},
		{"registered, no list yet", func() { first = inv.Registered(gpu, Options{Preferred: true}, now) }, "0/0 connected"},
		{"first list", func() { inv.Listed(first, parse("a b! c"), now) }, "3/2 connected"},
		{"shorter list", func() { inv.Listed(first, parse("a"), now) }, "1/1 connected"},
		{"empty list", func() { inv.Listed(first, nil, now) }, "0/0 connected"},
		{"two again", func() { inv.Listed(first, parse("b a"), now) }, "2/2 connected"},
		{"plugin stops", func() { inv.Gone(first, now) }, "2/0 stopped"},
		{"within the grace period", func() { now = now.Add(Grace); inv.Expire(now) }, "2/0 stopped"},
		{"a late list of the session", func() { inv.Listed(first, parse("x y z"), now) }, "2/0 stopped"},
		{"registered again: health comes with the list", func() { second = inv.Registered(gpu, Options{}, now) }, "2/0 connected"},
		{"list of the session before", func() { inv.Listed(first, parse("x y z"), now) }, "2/0 connected"},
		{"list", func() { inv.Listed(second, parse("a b c"), now) }, "3/3 connected"},
		{"end of the session before", func() { inv.Gone(first, now) }, "3/3 connected"},
		{"another plugin: devices stay until it lists", func() { first = inv.Registered(gpu, Options{}, now) }, "3/3 connected"},
		{"it ends before it lists", func() { inv.Gone(first, now) }, "3/0 stopped"},
		{"the grace period is over", func() { now = now.Add(Grace + 1); inv.Expire(now) }, "0/0 expired"},
		{"nothing more to expire", func() { now = now.Add(time.Hour); inv.Expire(now) }, "0/0 expired"},
		{"back", func() { first = inv.Registered(gpu, Options{}, now); inv.Listed(first, parse("a"), now) }, "1/1 connected"},
		{"nil session", func() { inv.Listed(Session{}, parse("x y"), now); inv.Gone(Session{Resource: gpu}, now) }, "1/1 connected"},
	} {
		step.event()
		if got := inv.Snapshot().counts(gpu); got != step.want {
			t.Fatalf("%s: got %s, want %s", step.name, got, step.want)
		}
	}
}

func TestExpect(t *testing.T) {
	t.Parallel()
	inv := NewInventory(nil, epoch)
	inv.Expect(gpu, epoch)
	if got := inv.Snapshot().counts(gpu); got != "0/0 expected" {
		t.Errorf("got %s", got)
	}
	inv.Listed(inv.Registered(gpu, Options{}, epoch), parse("a"), epoch)
	before := inv.Snapshot()
	inv.Expect(gpu, epoch)
	inv.Registered(nic, Options{}, epoch)
	inv.Expect(nic, epoch)
	if got := inv.Snapshot(); got.counts(gpu) != before.counts(gpu) || got.counts(nic) != "0/0 connected" {
		t.Errorf("gpu %s, nic %s", got.counts(gpu), got.counts(nic))
	}
	inv.Expect("s.io/other", epoch)
	if gone := inv.Expire(epoch.Add(Grace + 1)); !slices.Equal(gone, []string{"s.io/other"}) {
		t.Errorf("expired %q", gone)
	}
}

// TestForget: a forgotten resource leaves no trace, a retired one has
// no capacity and nothing to wait for; a plugin that is connected keeps its resource.
func TestForget(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		forget func(*Inventory) bool
		want   string
	}{
		"forgotten": {func(inv *Inventory) bool { return inv.Forget(gpu) }, ""},
		"retired":   {func(inv *Inventory) bool { return inv.Retire(gpu, epoch.Add(time.Minute)) }, "0/0 expired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inv := NewInventory(nil, epoch)
			if row.forget(inv) {
				t.Error("an unknown one is forgotten")
			}
			session := inv.Registered(gpu, Options{}, epoch)
			inv.Listed(session, parse("a b"), epoch)
			if row.forget(inv) || inv.Snapshot().counts(gpu) != "2/2 connected" {
				t.Errorf("connected: %s", inv.Snapshot().counts(gpu))
			}
			inv.Gone(session, epoch.Add(time.Second))
			r, _ := inv.Snapshot().Resource(gpu)
			if !r.Away.Equal(epoch.Add(time.Second)) {
				t.Errorf("away since %v", r.Away)
			}
			before := inv.Snapshot()
			if !row.forget(inv) {
				t.Error("is not forgotten")
			}
			<-before.Superseded()
			r, known := inv.Snapshot().Resource(gpu)
			if known != (row.want != "") || known && (inv.Snapshot().counts(gpu) != row.want || !r.Away.IsZero() || r.Awaited()) {
				t.Errorf("%+v, known %v", r, known)
			}
			if _, ok := inv.Snapshot().Expiry(); ok {
				t.Error("something will expire")
			}
			if inv.Listed(session, parse("a"), epoch) || inv.Gone(session, epoch) {
				t.Error("the session of before still counts")
			}
			again := inv.Registered(gpu, Options{}, epoch.Add(time.Hour))
			if again == session || !inv.Listed(again, parse("c"), epoch.Add(time.Hour)) || inv.Snapshot().counts(gpu) != "1/1 connected" {
				t.Errorf("again: %s", inv.Snapshot().counts(gpu))
			}
		})
	}
}

func TestFailsBeforeItsFirstList(t *testing.T) {
	t.Parallel()
	inv := NewInventory(nil, epoch)
	inv.Gone(inv.Registered(gpu, Options{}, epoch), epoch)
	if got := inv.Snapshot().counts(gpu); got != "0/0 stopped" {
		t.Errorf("got %s", got)
	}
}

func TestSeenBeforeARestart(t *testing.T) {
	t.Parallel()
	inv := NewInventory([]ledger.SeenResource{{Name: nic}, {Name: gpu}}, epoch)
	s := inv.Snapshot()
	if s.counts(gpu) != "0/0 expected" || s.counts(nic) != "0/0 expected" {
		t.Errorf("gpu %s, nic %s", s.counts(gpu), s.counts(nic))
	}
	if at, ok := s.Expiry(); !ok || !at.Equal(epoch.Add(Grace)) {
		t.Errorf("expiry %v, %v", at, ok)
	}
	inv.Listed(inv.Registered(gpu, Options{}, epoch), parse("a"), epoch)
	if got := inv.Expire(epoch.Add(Grace + 1)); !slices.Equal(got, []string{nic}) {
		t.Errorf("expired %q", got)
	}
	if _, ok := inv.Snapshot().Expiry(); ok {
		t.Error("something more will expire")
	}
}

func TestDuplicates(t *testing.T) {
	t.Parallel()
	inv := NewInventory(nil, epoch)
	list := parse("b@1 a! b@0! a a@1")
	inv.Listed(inv.Registered(gpu, Options{}, epoch), list, epoch)
	r, _ := inv.Snapshot().Resource(gpu)
	if want := parse("a@1 b@0!"); !slices.Equal(r.Devices, want) {
		t.Errorf("got %+v, want the last of each: %+v", r.Devices, want)
	}
	if !slices.Equal(list, parse("b@1 a! b@0! a a@1")) {
		t.Error("the caller's list was changed")
	}
}

func TestSnapshotsDoNotChange(t *testing.T) {
	t.Parallel()
	inv := NewInventory(nil, epoch)
	s := inv.Registered(gpu, Options{}, epoch)
	inv.Listed(s, parse("a b"), epoch)
	old := inv.Snapshot()
	select {
	case <-old.Superseded():
		t.Fatal("superseded without an event")
	default:
	}
	inv.Listed(s, parse("c!"), epoch)
	if old.counts(gpu) != "2/2 connected" {
		t.Errorf("the old snapshot says %s", old.counts(gpu))
	}
	<-old.Superseded()
	if next := inv.Snapshot(); next.Revision() != old.Revision()+1 {
		t.Errorf("revision %d after %d", next.Revision(), old.Revision())
	}
}

// model is the inventory in plain words: one resource at a time, no snapshots.
type model struct {
	state   State
	since   time.Time
	session Session
	devices map[string]bool // healthy by id
	live    bool
}

func TestInventoryAgainstAModel(t *testing.T) {
	t.Parallel()
	names := []string{"a.io/a", "b.io/b", "c.io/c"}
	rapid.Check(t, func(rt *rapid.T) {
		now := epoch
		inv := NewInventory([]ledger.SeenResource{{Name: names[0]}}, now)
		want := map[string]*model{names[0]: {state: Expected, since: now}}
		var sessions []Session
		session := func(rt *rapid.T) (Session, *model, bool) {
			if len(sessions) == 0 {
				return Session{Resource: names[0]}, want[names[0]], false
			}
			s := rapid.SampledFrom(sessions).Draw(rt, "session")
			m := want[s.Resource]
			if m == nil {
				return s, nil, false
			}
			return s, m, m.state == Connected && m.session == s
		}
		rt.Repeat(map[string]func(*rapid.T){
			"register": func(rt *rapid.T) {
				name := rapid.SampledFrom(names).Draw(rt, "name")
				s := inv.Registered(name, Options{}, now)
				if slices.Contains(sessions, s) {
					rt.Fatalf("session %v twice", s)
				}
				sessions = append(sessions, s)
				m := want[name]
				if m == nil {
					m = &model{}
					want[name] = m
				}
				m.state, m.since, m.session = Connected, now, s
			},
			"list": func(rt *rapid.T) {
				s, m, counts := session(rt)
				ids := rapid.MapOf(rapid.StringMatching("[a-d]"), rapid.Bool()).Draw(rt, "devices")
				var list []Device
				for id, healthy := range ids {
					list = append(list, Device{ID: id, Healthy: healthy})
				}
				if got := inv.Listed(s, list, epoch); got != counts {
					rt.Fatalf("list taken: %v, want %v", got, counts)
				}
				if counts {
					m.devices, m.live = ids, true
				}
			},
			"gone": func(rt *rapid.T) {
				s, m, counts := session(rt)
				if got := inv.Gone(s, now); got != counts {
					rt.Fatalf("end taken: %v, want %v", got, counts)
				}
				if counts {
					m.state, m.since, m.live = Stopped, now, false
				}
			},
			"forget": func(rt *rapid.T) {
				name := rapid.SampledFrom(names).Draw(rt, "name")
				m := want[name]
				away := m != nil && m.state != Connected
				if rapid.Bool().Draw(rt, "keeps its name") {
					if got := inv.Retire(name, now); got != away {
						rt.Fatalf("%s is retired: %v, want %v", name, got, away)
					}
					if away {
						m.state, m.devices = Expired, nil
					}
					return
				}
				if got := inv.Forget(name); got != away {
					rt.Fatalf("%s is forgotten: %v, want %v", name, got, away)
				}
				if away {
					delete(want, name)
				}
			},
			"time": func(rt *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(rt, "seconds")) * time.Second)
				var expired []string
				for _, name := range names {
					m := want[name]
					if m != nil && (m.state == Stopped || m.state == Expected) && now.Sub(m.since) > Grace {
						m.state, m.since, m.devices = Expired, now, nil
						expired = append(expired, name)
					}
				}
				if got := inv.Expire(now); !slices.Equal(got, expired) {
					rt.Fatalf("expired %q, want %q", got, expired)
				}
			},
			"": func(rt *rapid.T) {
				snap := inv.Snapshot()
				known := []string{}
				for r := range snap.Resources() {
					known = append(known, r.Name)
				}
				wantKnown := []string{}
				for _, name := range names {
					m := want[name]
					if m == nil {
						continue
					}
					wantKnown = append(wantKnown, name)
					healthy := 0
					for _, h := range m.devices {
						if h && m.live {
							healthy++
						}
					}
					w := fmt.Sprintf("%d/%d %s", len(m.devices), healthy, m.state)
					if got := snap.counts(name); got != w {
						rt.Fatalf("%s is %s, want %s", name, got, w)
					}
				}
				if !reflect.DeepEqual(known, wantKnown) {
					rt.Fatalf("known %q, want %q", known, wantKnown)
				}
			},
		})
	})
}
