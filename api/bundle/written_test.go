package bundle_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

// tester is of a test and of a property.
type tester interface {
	rapid.TB
	ledgertest.T
	Context() context.Context
}

// written is a ledger with a history, and what berthd writes of it.
type written struct {
	journal *ledgertest.Journal
	ledger  history.Ledger
	limits  history.Limits
	clock   time.Time
	devices []bundle.Resource
}

func newWritten(t ledgertest.T, limits history.Limits) *written {
	w := &written{journal: ledgertest.NewJournal(), limits: limits, clock: time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)}
	w.open(t)
	return w
}

func (w *written) open(t ledgertest.T) {
	w.ledger = ledgertest.OpenRecording(t, journal.Options{
		Journal: w.journal, Rules: ledger.Rules{Machine: machinetest.Build("2s1n4c2t")},
	}, w.limits, func() time.Time { w.clock = w.clock.Add(time.Second); return w.clock })
}

// commit makes a change as a call of a user.
func (w *written) commit(t tester, uid uint32, pod *workload.Pod, change func(d *ledger.Draft)) {
	t.Helper()
	call := &history.Call{Name: "Admit", Time: w.clock, Caller: &history.Caller{UID: uid, Name: "agent"},
		Request: &history.Request{Pod: pod}}
	if _, err := w.ledger.Update(history.WithCall(t.Context(), call), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
		t.Fatal(err)
	}
}

// read starts again, and reads the history, and a bundle with all of it.
func (w *written) read(t tester) {
	t.Helper()
	w.commit(t, 0, nil, func(d *ledger.Draft) {
		d.PutResource(ledger.SeenResource{Name: fmt.Sprint("example.com/", w.clock.Unix())})
	})
	var newest, lines uint64 // refusals are stored with the commit
	if err := w.ledger.Entries(t.Context(), 0, func(e *history.Entry,
		_ error) bool {
		newest = max(newest, e.Number)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	before := w.ledger.View()
	w.journal = w.journal.Reopen()
	w.open(t)
	b := &bundle.Bundle{
		About: bundle.About{Format: bundle.Format, Time: w.clock}, Machine: before.Machine(), Devices: w.devices,
		State: history.SnapshotOf(w.ledger.View()),
	}
	if err := w.ledger.Entries(t.Context(), 0, func(e *history.Entry, damage error) bool {
		if damage != nil || lines == 0 && e.Number < newest || e.Begins && e.Number > 1 && e.Call != "" && e.Message == "" {
			t.Fatalf("entry %d of %d cannot be read after a start: begins %t, %v", e.Number, newest, e.Begins, damage)
		}
		line, err := bundle.LineOf(e, nil)
		if err != nil {
			t.Fatal(err)
		}
		lines++
		b.History = append(b.History, line)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := b.Write(&archive); err != nil {
		t.Fatalf("a bundle cannot be written: %v", err)
	}
	again, err := bundle.Read(&archive)
	if err != nil {
		t.Fatalf("a written bundle is refused: %v", err)
	}
	if _, err := again.State.View(again.Machine); err != nil {
		t.Fatal(err)
	}
	entries := uint64(0)
	if err := again.EachEntry(func(_ *history.Entry, damage error) bool {
		if entries++; damage != nil {
			t.Fatal(damage)
		}
		return true
	}); err != nil || entries != lines {
		t.Fatalf("%d of %d entries, %v", entries, lines, err)
	}
}

// many is a claim of a container on so many devices, with ids that are short or long.
func many(pod string, n int, name func(i int) string) ledger.Claim {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = name(i)
	}
	return ledgertest.Devices("main", "example.com/"+pod, ids...)
}

// TestWhatIsWrittenIsRead: no series of commits, with any limits of the history, makes a history that the next start cannot read, or a
// bundle that its reader refuses.
func TestWhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWritten(t, history.Limits{
			Entries: rapid.SampledFrom([]int{1, 2, 31, 32, 33, 100, 10_000}).Draw(t, "entries"),
			Bytes:   rapid.SampledFrom([]int{1 << 20, 2 << 20, 64 << 20}).Draw(t, "bytes"),
		})
		text := rapid.Custom(func(t *rapid.T) string {
			return strings.Repeat(rapid.SampledFrom([]string{"a", `"`, "\\", "<", "\x1b", "\u202e", "é", "\xff", ",",
				"{["}).Draw(t, "of"), rapid.SampledFrom([]int{0, 1, 100, 5000}).Draw(t, "long"))
		})
		uid := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("pod-", rapid.IntRange(0, 5).Draw(t, "pod")) })
		caller := rapid.Uint32Range(0, 2)
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(t *rapid.T) {
				p := ledgertest.Pod(uid.Draw(t, "uid"), "main")
				p.Pod.Labels = map[string]string{"label": strings.ToValidUTF8(text.Draw(t, "label"), "?")}
				p.Pod.Name = strings.ToValidUTF8(text.Draw(t, "name"), "?")
				n, long := rapid.SampledFrom([]int{0, 1, 600}).Draw(t, "devices"), rapid.SampledFrom([]int{1, 300}).Draw(t, "id")
				if n > 0 {
					ledgertest.With(p, many(p.UID(), n, func(i int) string { return fmt.Sprintf("%0*d", long, i) }))
				}
				w.commit(t, caller.Draw(t, "caller"), &p.Pod, func(d *ledger.Draft) { d.PutPod(p) })
			},
			"remove": func(t *rapid.T) {
				uid := uid.Draw(t, "uid")
				w.commit(t, caller.Draw(t, "caller"), nil, func(d *ledger.Draft) { d.RemovePod(uid) })
			},
			"remove all": func(t *rapid.T) {
				w.commit(t, caller.Draw(t, "caller"), nil, func(d *ledger.Draft) {
					for i := range 6 {
						d.RemovePod(fmt.Sprint("pod-", i))
					}
				})
			},
			"refuse": func(t *rapid.T) {
				p := ledgertest.Pod(uid.Draw(t, "uid"), "main")
				p.Pod.Labels = map[string]string{"label": strings.ToValidUTF8(text.Draw(t, "label"), "?")}
				call := &history.Call{Name: "Admit", Time: w.clock, Caller: &history.Caller{UID: caller.Draw(t, "caller")},
					Request: &history.Request{Pod: &p.Pod}}
				w.ledger.Refused(history.WithCall(t.Context(), call), history.Refusal{Verdict: "rejected", Reason: "OutOfcpu",
					Message: text.Draw(t, "message"), Pod: p, View: w.ledger.View()})
			},
			"start": func(t *rapid.T) {
				w.journal = w.journal.Reopen()
				w.open(t)
			},
		})
		w.read(t)
	})
}

// TestMostDevices: the history and the bundle of a node with as many devices as two plugins may have, all of which are allocated, are
// read again.
func TestMostDevices(t *testing.T) {
	t.Parallel()
	w := newWritten(t, history.Limits{Entries: 100, Bytes: 64 << 20})
	devices := config.Default().Limits.PluginDevices
	for _, uid := range []string{"a", "b"} {
		name := func(i int) string { return fmt.Sprintf("%x", i) } // as short as ids can be
		p := ledgertest.With(ledgertest.Pod(uid, "main"), many(uid, devices, name))
		resource := bundle.Resource{Name: "example.com/" + uid, Connected: true}
		for _, d := range p.Claims[0].Devices.Devices {
			resource.Devices = append(resource.Devices, bundle.Device{ID: d.ID, Healthy: true, Topology: true})
		}
		w.devices = append(w.devices, resource)
		w.commit(t, 0, &p.Pod, func(d *ledger.Draft) { d.PutPod(p) })
	}
	for _, n := range []int{90_000, devices} { // an entry that is nearly as large as it may be, and one that is too large
		p := ledgertest.With(ledgertest.Pod("c", "main"), many("c", n, func(i int) string { return fmt.Sprintf("%x", i) }))
		w.commit(t, 0, &p.Pod, func(d *ledger.Draft) { d.PutPod(p) })
		w.commit(t, 0, nil, func(d *ledger.Draft) { d.RemovePod("c") })
	}
	w.read(t)
	w.commit(t, 0, nil, func(d *ledger.Draft) { d.RemovePod("a"); d.RemovePod("b") })
	w.read(t)
}
