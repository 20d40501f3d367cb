package journal_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// factRules are rules with all that a commit notes of them.
func factRules() ledger.Rules {
	r := rules()
	r.ReservedCPUs = cpuset.Of(0)
	r.Settings = map[string]string{"cpu.policy": `"static"`, "dra.cpus": `"4"`}
	r.Memory = []ledger.NodeMemory{{Node: 0, Resource: "memory", Total: 1 << 30, Allocatable: 1 << 30}}
	return r
}

func newHistory() *history.History { return history.New(history.Limits{Entries: 1000}, time.Now) }

func put(t *testing.T, l *ledger.Ledger, uid string) {
	t.Helper()
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod(uid, "c")); return nil }); err != nil {
		t.Fatal(err)
	}
}

// factJournal is a journal with some pods, made by a berthd that kept CPU 1 reserved.
func factJournal(t *testing.T) *ledgertest.Journal {
	t.Helper()
	r := factRules()
	r.ReservedCPUs = cpuset.Of(1)
	j := ledgertest.NewJournal()
	l, _ := ledgertest.Open(t, journal.Options{
		Journal: j, Rules: r, Epoch: 7, EpochID: someEpoch, BootID: someBoot, History: newHistory(),
	})
	put(t, l, "a")
	put(t, l, "b")
	return j.Reopen()
}

// TestDamagedFacts: a damaged fact about the last commit costs what it says, and nothing else: the
// ledger continues in its epoch, and the next commit has the fact again.
func TestDamagedFacts(t *testing.T) {
	t.Parallel()
	flip := func(v []byte) []byte { v = bytes.Clone(v); v[len(v)-3] ^= 1; return v }
	wrong := func(key string) func([]byte) []byte {
		return func([]byte) []byte { return journal.SealText(journal.BucketMeta, key, []byte("7")).Value }
	}
	sets := [][]string{factKeys, {"machine", "topology"}}
	for _, key := range factKeys {
		sets = append(sets, []string{key})
	}
	for _, set := range sets {
		for name, change := range map[string]func(key string) func([]byte) []byte{
			"flipped": func(string) func([]byte) []byte { return flip },
			"empty":   func(string) func([]byte) []byte { return func([]byte) []byte { return []byte{} } },
			"other":   wrong,
		} {
			t.Run(name+" "+strings.Join(set, " "), func(t *testing.T) {
				t.Parallel()
				j := factJournal(t)
				for _, key := range set {
					j.Alter(journal.BucketMeta, key, change(key))
				}
				lacks := func(keys ...string) bool {
					return slices.ContainsFunc(set, func(key string) bool { return slices.Contains(keys, key) })
				}
				next := factRules() // everything but the boot has changed
				next.Machine, next.ConfigDigest, next.Memory = machinetest.Build("2s1n8c2t"), "two", nil
				next.Settings = map[string]string{"cpu.policy": `"none"`}
				l, report, err := journal.Open(t.Context(), journal.Options{Journal: j, Rules: next, BootID: someBoot,
					History: newHistory()})
				if err != nil {
					t.Fatal(err)
				}
				v := l.View()
				if v.NumPods() != 2 || v.EpochID() != someEpoch || v.Uncertain() != "" || len(report.Damage)+len(report.Lost) > 0 {
					t.Errorf("%d pods, epoch %s, uncertain %q, report %+v", v.NumPods(), v.EpochID(), v.Uncertain(), report)
				}
				if len(report.Renewed) != len(set) {
					t.Errorf("renewed: %q", report.Renewed)
				}
				for i, key := range slices.DeleteFunc(slices.Clone(factKeys), func(key string) bool { return !slices.Contains(set, key) }) {
					if !strings.HasPrefix(report.Renewed[i], "meta/"+key+", ") {
						t.Errorf("%d. renewed %q, want %s", i, report.Renewed[i], key)
					}
				}
				derived := slices.Equal(set, []string{"machine"})
				noRule := slices.Equal(set, []string{"boot-id"}) || slices.Equal(set, []string{"settings"})
				if (len(report.Settings) == 2) == lacks("config", "settings") {
					t.Errorf("changed settings: %v", report.Settings)
				}
				if report.MachineChanged != (!lacks("machine") || derived) || report.ConfigChanged != !lacks("config") ||
					(len(report.Memory) == 0) != lacks("memory") ||
					(report.LastBootID == "") != lacks("boot-id") {
					t.Errorf("report %+v", report)
				}
				if wantHistory := !derived && !noRule; (report.History != "") != wantHistory {
					t.Errorf("history: %q", report.History)
				}
				put(t, l, "c")
				h := newHistory()
				again, report, err := journal.Open(t.Context(), journal.Options{Journal: j.Reopen(), Rules: next, BootID: someBoot,
					History: h})
				if err != nil || len(report.Renewed) > 0 || report.History != "" || report.MachineChanged || report.ConfigChanged ||
					again.View().NumPods() != 3 {
					t.Errorf("after a commit: %v, report %+v", err, report)
				}
				_, err = h.At(t.Context(), again.View(), history.Moment{Revision: v.Revision() - 1})
				if known := err == nil; known != (derived || noRule) {
					t.Errorf("the state before: %v", err)
				}
			})
		}
	}
}

// TestChangedSettings: the report of a start has the settings that have changed since the last commit, where it is known which
// settings that had.
func TestChangedSettings(t *testing.T) {
	t.Parallel()
	with := func(digest string, settings map[string]string) ledger.Rules {
		r := rules()
		r.ConfigDigest, r.Settings = digest, settings
		return r
	}
	first, second := map[string]string{"a": "1", "b": "2", "same": "3"}, map[string]string{"b": `"x"`, "c": "4", "same": "3"}
	changes := []journal.SettingChange{{Name: "a", Old: "1"}, {Name: "b", Old: "2", New: `"x"`}, {Name: "c", New: "4"}}
	for _, row := range []struct {
		name     string
		commits  []ledger.Rules
		now      ledger.Rules
		want     []journal.SettingChange
		unwanted bool // nothing has changed
	}{
		{name: "known", commits: []ledger.Rules{with("one", first)}, now: with("two", second), want: changes},
		{name: "from the defaults", commits: []ledger.Rules{with("one", map[string]string{})},
			now:  with("two", map[string]string{"a": "1"}),
			want: []journal.SettingChange{{Name: "a", New: "1"}}},
		{name: "the same", commits: []ledger.Rules{with("one", first)}, now: with("one", first), unwanted: true},
		{name: "without settings", commits: []ledger.Rules{with("one", nil)}, now: with("two", second)},
		{name: "those of an earlier configuration", commits: []ledger.Rules{with("one", first), with("other", nil)},
			now: with("two", second)},
		{name: "added to the same configuration", commits: []ledger.Rules{with("one", nil), with("one", first)}, now: with("two", second),
			want: changes},
	} {
		j := ledgertest.NewJournal()
		for i, r := range row.commits {
			l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: r})
			put(t, l, fmt.Sprint("pod", i))
			j = j.Reopen()
		}
		_, report := ledgertest.Open(t, journal.Options{Journal: j, Rules: row.now})
		if report.ConfigChanged == row.unwanted || !slices.Equal(report.Settings, row.want) {
			t.Errorf("%s: changed %v: %v, want %v", row.name, report.ConfigChanged, report.Settings, row.want)
		}
	}
}

// TestReservedAfterDamage: reserved CPUs are kept whenever it is known that the same configuration
// reserved them in this boot.
func TestReservedAfterDamage(t *testing.T) {
	t.Parallel()
	for _, damaged := range []string{"", "pods/a", "meta/machine", "meta/topology", "meta/memory", "meta/boot-id", "meta/config",
		"meta/reservation", "meta/config pods/a"} {
		j := factJournal(t)
		for _, name := range strings.Fields(damaged) {
			bucket, key, _ := strings.Cut(name, "/")
			j.Alter(bucket, key, func([]byte) []byte { return []byte("x") })
		}
		o := journal.Options{Rules: factRules(), EpochID: nextEpoch, BootID: someBoot,
			Keep: func(reserved cpuset.Set, _ *ledger.Override) (ledger.Rules, bool) {
				r := factRules()
				r.ReservedCPUs = reserved
				return r, true
			}}
		entries, err := j.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		o.Journal = j
		l, _, err := journal.Open(t.Context(), o)
		if errdefs.ClassOf(err) == errdefs.Corrupt {
			saved, failed := journal.Salvage(o, journal.Found{Entries: entries})
			if failed != nil {
				t.Fatal(failed)
			}
			next := ledgertest.NewJournal()
			if err := next.Commit(t.Context(), saved.Generation, saved.Entries); err != nil {
				t.Fatal(err)
			}
			o.Journal = next.Reopen()
			l, _, err = journal.Open(t.Context(), o)
		}
		if err != nil {
			t.Fatal(err)
		}
		want := "1"
		for _, key := range []string{"boot-id", "config", "reservation"} {
			if strings.Contains(damaged, key) {
				want = "0"
			}
		}
		if got := fmt.Sprint(l.View().Rules().ReservedCPUs); got != want {
			t.Errorf("damaged %q: reserved CPUs %s, want %s", damaged, got, want)
		}
	}
}
