package admission_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/topology"
)

// life is an engine through crashes and losses of its ledger, with what its agent
// knows.
type life struct {
	*fixture
	journal *ledgertest.Journal
	// living are the pods that were admitted and did not end, by their CPUs.
	living map[string]int64
	// sets are the CPUs that they run on.
	sets map[string]string
	// mark is a revision of this ledger with the pods that lived then; 0 is none.
	mark   uint64
	marked map[string]int64
	next   int
}

// begin starts on a journal, with the cgroups that are there.
func (l *life) begin(t *rapid.T, j *ledgertest.Journal) {
	pods, records := map[string]bool{}, map[string][]byte{}
	if l.fixture != nil {
		pods, records = l.cgroups.pods, l.cgroups.records
	}
	l.fixture, l.journal = build(t, topology.BestEffort, j), j
	l.cgroups.pods, l.cgroups.records = pods, records
}

// uids draws some of the living.
func (l *life) uids(t *rapid.T, label string) (out []string) {
	for _, uid := range slices.Sorted(maps.Keys(l.living)) {
		if rapid.IntRange(0, 2).Draw(t, label) > 0 {
			out = append(out, uid)
		}
	}
	return out
}

// one draws one of the living, or skips.
func (l *life) one(t *rapid.T) string {
	if len(l.living) == 0 {
		t.Skip("nobody lives")
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(l.living))).Draw(t, "uid")
}

// certain reports whether only a given pod may hold what is not known.
func (l *life) certain(uid string) bool {
	view := l.ledger.View()
	if view.Uncertain() != "" {
		return false
	}
	for s := range view.UnknownLivePods() {
		if !view.UnknownLive(uid) && s.UID != uid && s.Source == "" {
			return false
		}
	}
	return true
}

func (l *life) admitOne(t *rapid.T, uid string, cpus int64) {
	certain := l.certain(uid)
	_, known := l.ledger.View().Pod(uid)
	_, lived := l.living[uid]
	v := l.admit(t, guaranteed(uid, cpus, 0))
	switch {
	case v.Outcome == admission.Admitted:
		if cpus > 0 && !certain && !known {
			t.Fatalf("pod %s got %d CPUs that somebody unknown may hold", uid, cpus)
		}
		set := l.cpus(uid)
		if lived && cpus > 0 && l.sets[uid] != set {
			t.Fatalf("pod %s runs on CPUs %s and was given %s", uid, l.sets[uid], set)
		}
		l.living[uid], l.sets[uid] = cpus, set
		if !known {
			delete(l.marked, uid) // it comes after the mark, again
		}
	case v.Outcome == admission.Deferred && (certain || cpus == 0):
		t.Fatalf("pod %s is deferred although the state is certain: %s", uid, v.Message)
	case lived && certain:
		t.Fatalf("pod %s had its place and does not get it again: %s", uid, v.Message)
	}
}

// sync sends the living pods, of those that the agent knew when it made its list.
func (l *life) sync(t *rapid.T, list []string, known uint64, knew map[string]int64) {
	if _, err := l.Sync(context.Background(), admission.SyncRequest{Living: list, Known: known}); err != nil {
		t.Fatalf("Sync: %v", err)
	}
	view := l.ledger.View()
	for uid := range maps.Clone(l.living) {
		_, there := view.Pod(uid)
		_, mine := knew[uid]
		switch listed := slices.Contains(list, uid); {
		case mine && !listed:
			delete(l.living, uid)
			if there || l.cgroups.pods[uid] {
				t.Fatalf("pod %s is dead and here", uid)
			}
		case !there && !view.UnknownLive(uid):
			t.Fatalf("pod %s lives (listed: %v), and is neither known nor an unknown live pod", uid, listed)
		}
	}
	for uid := range l.cgroups.pods {
		if _, lives := l.living[uid]; !lives {
			t.Fatalf("the cgroup of %s is left", uid)
		}
	}
	if view.Uncertain() != "" {
		t.Fatalf("uncertain %q", view.Uncertain())
	}
}

// TestRandomLife: whatever happens to berth and its ledger, pods of which the agent
// reported as living keep their cgroups, and nothing is given out twice.
func TestRandomLife(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := &life{living: map[string]int64{}, sets: map[string]string{}}
		l.begin(t, ledgertest.NewJournal())
		t.Repeat(map[string]func(*rapid.T){
			"a new pod": func(t *rapid.T) {
				l.next++
				l.admitOne(t, fmt.Sprint("p", l.next), rapid.Int64Range(0, 3).Draw(t, "cpus"))
			},
			"again": func(t *rapid.T) {
				uid := l.one(t)
				l.admitOne(t, uid, l.living[uid])
			},
			"remove": func(t *rapid.T) {
				uid := l.one(t)
				if _, _, err := l.Remove(context.Background(), uid, admission.Scope{}); err != nil {
					t.Fatalf("%v", err)
				}
				if _, known := l.ledger.View().Pod(uid); known || l.ledger.View().UnknownLive(uid) {
					t.Fatalf("pod %s is known or an unknown live pod after its end", uid)
				}
				// The cgroup of a pod that was not known goes with the next sweep.
				delete(l.living, uid)
				delete(l.cgroups.pods, uid)
				delete(l.marked, uid)
			},
			"start": func(t *rapid.T) {
				uid := l.one(t)
				_, known := l.ledger.View().Pod(uid)
				_, err := l.PreStart(context.Background(), ledger.Owner{Pod: uid, Container: "main"}, "id-"+uid, 0)
				if known != (err == nil) {
					t.Fatalf("start a container of %s (known: %v): %v", uid, known, err)
				}
			},
			"crash": func(t *rapid.T) { l.begin(t, l.journal.Reopen()) },
			"lose the ledger": func(t *rapid.T) {
				l.begin(t, ledgertest.NewJournal())
				l.mark, l.marked = 0, nil
				if len(l.cgroups.pods) > 0 {
					if _, err := l.ledger.Update(context.Background(),
						func(d *ledger.Draft) error { d.SetUncertain("lost"); return nil }); err != nil {
						t.Fatalf("%v", err)
					}
				}
			},
			"mark": func(*rapid.T) {
				l.mark, l.marked = l.ledger.View().Revision(), maps.Clone(l.living)
			},
			"sync": func(t *rapid.T) { l.sync(t, l.uids(t, "lives"), l.ledger.View().Revision(), maps.Clone(l.living)) },
			"sync with a mark": func(t *rapid.T) {
				if l.mark == 0 || l.ledger.View().Uncertain() != "" {
					// While the state is uncertain, the list is all that is known of who lives.
					t.Skip("no mark")
				}
				var list []string
				for _, uid := range l.uids(t, "lives") {
					if _, knew := l.marked[uid]; knew {
						list = append(list, uid)
					}
				}
				// Who is not known to the ledger lives by the list alone.
				for uid := range l.living {
					if _, known := l.ledger.View().Pod(uid); !known && !slices.Contains(list, uid) {
						list = append(list, uid)
					}
				}
				l.sync(t, list, l.mark, l.marked)
			},
			"sync of another ledger": func(t *rapid.T) {
				before := l.ledger.View()
				_, err := l.Sync(context.Background(), admission.SyncRequest{Living: nil, Known: before.Revision() + 1})
				if errdefs.ClassOf(err) != errdefs.Precondition || l.ledger.View() != before {
					t.Fatalf("%v", err)
				}
			},
			"": func(t *rapid.T) {
				view := l.ledger.View()
				ledgertest.Check(t, l.ledger)
				var all cpuset.Set
				for uid, cpus := range l.living {
					set, err := cpuset.Parse(l.sets[uid])
					if err != nil || cpus > 0 && set.Overlaps(all) {
						t.Fatalf("pod %s runs on CPUs %s, and others, too: %v", uid, l.sets[uid], err)
					}
					if cpus > 0 {
						all = all.Union(set)
					}
					if !l.cgroups.pods[uid] {
						t.Fatalf("pod %s lives and has no cgroup", uid)
					}
					if _, known := view.Pod(uid); !known && !view.UnknownLive(uid) && view.Uncertain() == "" {
						t.Fatalf("pod %s lives, and is neither known nor an unknown live pod nor is the state uncertain", uid)
					}
					set, own, known := view.ContainerCPUs(ledger.Owner{Pod: uid, Container: "main"})
					if known && cpus > 0 && (!own || set.Len() != int(cpus)) {
						t.Fatalf("pod %s has %s, not %d CPUs of its own", uid, set, cpus)
					}
				}
				if len(l.cgroups.early) > 0 {
					t.Fatalf("killed too late: %v", l.cgroups.early)
				}
			},
		})
	})
}
