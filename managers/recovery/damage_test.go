package recovery_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/managers/workload"
)

// node is a machine with pods: what they really have, and what a start finds of it.
type node struct {
	ledger *ledger.Ledger
	pods   map[string]*truth
	// versions are the ledger's entries after each commit.
	versions [][]journal.Entry
}

// truth is what a pod has.
type truth struct {
	cpus    cpuset.Set
	device  string
	running bool
	record  *claimrecord.Record // nil: lost
}

func (p *truth) claims() []ledger.Claim {
	pod := ledgertest.Pod("", "main")
	if !p.cpus.IsEmpty() {
		ledgertest.With(pod, ledgertest.Exclusive("main", p.cpus.String()))
	}
	if p.device != "" {
		ledgertest.With(pod, ledgertest.Devices("main", gpu, p.device))
	}
	return pod.Claims
}

func nodeRules() ledger.Rules {
	return ledger.Rules{Machine: machinetest.Build("1s1n16c1t"), ReservedCPUs: cpuset.Of(0), ConfigDigest: "one"}
}

func (n *node) commit(t *rapid.T, change func(*ledger.Draft)) {
	v, err := n.ledger.Update(context.Background(), func(d *ledger.Draft) error { change(d); return nil })
	if err != nil {
		t.Fatal(err)
	}
	entries, err := journal.Dump(v)
	if err != nil {
		t.Fatal(err)
	}
	n.versions = append(n.versions, entries)
}

// change admits a pod, gives it other CPUs, or removes it. The claim record is written before the
// commit, as berthd does.
func (n *node) change(t *rapid.T) {
	uid := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "pod")
	p := n.pods[uid]
	if p != nil && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
		delete(n.pods, uid)
		n.commit(t, func(d *ledger.Draft) { d.RemovePod(uid) })
		return
	}
	free := nodeRules().Machine.CPUs().Minus(cpuset.Of(0, 15)) // 15 stays shared
	devices := map[string]bool{"g0": true, "g1": true, "g2": true}
	for other, o := range n.pods {
		if other != uid {
			free = free.Minus(o.cpus)
		}
		delete(devices, o.device)
	}
	next := &truth{running: rapid.IntRange(0, 3).Draw(t, "running") > 0}
	for cpu := range free.All() {
		if next.cpus.Len() < 4 && rapid.Bool().Draw(t, "cpu") {
			next.cpus = next.cpus.Union(cpuset.Of(cpu))
		}
	}
	spec := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "specification")
	if p != nil {
		next.device = p.device
		next.running = p.running
	} else if left := slices.Sorted(maps.Keys(devices)); len(left) > 0 && rapid.Bool().Draw(t, "device") {
		next.device = left[0]
	}
	record := ledgertest.With(ledgertest.Pod(uid, "main"), next.claims()...)
	if next.device != "" {
		record.Pod.Containers[0].Limits = workload.Quantities{gpu: 1}
	}
	record.Digest += spec
	if old, ok := n.ledger.View().Pod(uid); ok && old.Digest == record.Digest && ledger.SameClaims(old.Claims, record.Claims) {
		return
	}
	next.record = &claimrecord.Record{
		Pod: uid, Namespace: "default", Name: record.Pod.Name, BootID: boot, Epoch: epoch, Generation: n.ledger.View().Generation() + 1,
		Digest: record.Digest, QoS: workload.Guaranteed, Claims: record.Claims,
	}
	n.pods[uid] = next
	n.commit(t, func(d *ledger.Draft) { d.PutPod(record) })
}

// drawNode makes a ledger in which pods came, changed and went.
func drawNode(t *rapid.T) *node {
	n := &node{pods: map[string]*truth{}}
	n.ledger, _ = ledgertest.Open(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: nodeRules(), Epoch: 7, EpochID: epoch,
		BootID: boot})
	for range rapid.IntRange(1, 12).Draw(t, "changes") {
		n.change(t)
	}
	return n
}

// damage changes entries, and returns those that were changed, as bucket/key.
func (n *node) damage(t *rapid.T, entries []journal.Entry, most int) (out []journal.Entry, hit map[string]bool) {
	out, hit = slices.Clone(entries), map[string]bool{}
	if len(out) == 0 {
		return out, hit
	}
	name := func(e journal.Entry) string { return e.Bucket + "/" + e.Key }
	for range rapid.IntRange(1, most).Draw(t, "damages") {
		if len(out) == 0 {
			break
		}
		at := rapid.IntRange(0, len(out)-1).Draw(t, "at")
		end := at + 1
		if rapid.Bool().Draw(t, "page") { // the entries of a page are neighbours in a bucket
			for end < len(out) && out[end].Bucket == out[at].Bucket && rapid.IntRange(0, 3).Draw(t, "more") > 0 {
				end++
			}
		}
		for _, e := range out[at:end] {
			hit[name(e)] = true
		}
		switch rapid.SampledFrom([]string{"flip", "cut", "zero", "drop", "twice", "exchange", "old", "old", "removed"}).Draw(t, "kind") {
		case "flip":
			for i := at; i < end; i++ {
				out[i].Value = bytes.Clone(out[i].Value)
				if size := len(out[i].Value); size > 0 {
					out[i].Value[rapid.IntRange(0, size-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
				}
			}
		case "cut":
			for i := at; i < end; i++ {
				out[i].Value = out[i].Value[:len(out[i].Value)/2]
			}
		case "zero":
			for i := at; i < end; i++ {
				out[i].Value = make([]byte, len(out[i].Value))
			}
		case "drop":
			out = slices.Delete(out, at, end)
		case "twice":
			out = append(out, out[at:end]...)
		case "exchange":
			other := rapid.IntRange(0, len(out)-1).Draw(t, "other")
			hit[name(out[other])] = true
			out[at].Value, out[other].Value = out[other].Value, out[at].Value
		case "old": // a page that was not written has what it had before
			then := rapid.SampledFrom(n.versions).Draw(t, "version")
			for i := at; i < end; i++ {
				for _, was := range then {
					if was.Bucket == out[i].Bucket && was.Key == out[i].Key {
						out[i].Value = was.Value
					}
				}
			}
		case "removed": // the same, with entries that are removed since
			for _, was := range rapid.SampledFrom(n.versions).Draw(t, "version") {
				if !slices.ContainsFunc(out, func(e journal.Entry) bool { return name(e) == name(was) }) &&
					rapid.Bool().Draw(t, "is back") {
					out = append(out, was)
					hit[name(was)] = true
				}
			}
		}
	}
	return out, hit
}

// found is a journal with what is left of another one.
type found struct {
	*ledgertest.Journal
	entries []journal.Entry
}

func (f *found) Load(context.Context) ([]journal.Entry, error) { return f.entries, nil }

// restart opens what is left of a ledger, as berthd does.
func restart(t *rapid.T, n *node, entries []journal.Entry) (*ledger.Ledger, journal.Report, bool) {
	o := journal.Options{Journal: &found{ledgertest.NewJournal(), entries}, Rules: nodeRules(), Epoch: 9, EpochID: epoch + 1, BootID: boot}
	l, report, err := journal.Open(context.Background(), o)
	if err == nil {
		return l, report, false
	}
	if errdefs.ClassOf(err) != errdefs.Corrupt {
		t.Fatalf("open: %v", err)
	}
	left := journal.Found{Entries: entries}
	if rapid.Bool().Draw(t, "freed pages are readable") {
		left.Stale = rapid.SampledFrom(n.versions).Draw(t, "stale")
	}
	saved, err := journal.Salvage(o, left)
	if err != nil {
		t.Fatalf("salvage: %v", err)
	}
	o.Journal = &found{ledgertest.NewJournal(), saved.Entries}
	l, report, err = journal.Open(context.Background(), o)
	if err != nil {
		t.Fatalf("open what was salvaged: %v", err)
	}
	was := saved.Report
	report.Damage, report.Whole, report.Lost, report.Uncertain = was.Damage, was.Whole, was.Lost, was.Uncertain
	return l, report, true
}

// TestStaleClaimIsLeft: of a damaged record an older claim can be left. CPUs that a container runs on
// are its own nevertheless.
func TestStaleClaimIsLeft(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ left, kernel, want string }{
		{"2-3", "6-7", "6-7"},
		{"2-3", "3-4", "2-4"},
		{"2-3", "2-3", "2-3"},
		{"2-3", "", "2-3"},
	} {
		in := recovery.Input{View: world(t, false), BootID: boot, Now: now, Report: journal.Report{Lost: []journal.LostPod{
			{UID: "a", Why: "its claims are not those of its record", Pod: bare("a"), Claims: claimsOf(c.left, "gpu-1")},
		}}}
		in.Observed = []recovery.Observation{{UID: "a", QoS: workload.Guaranteed, Processes: recovery.Running,
			Containers: kernel(c.kernel)}}
		var got cpuset.Set
		for _, claim := range recovery.Decide(in).Decisions[0].Kept {
			if claim.CPUs != nil {
				got = got.Union(claim.CPUs.Set)
			}
		}
		if got.String() != c.want {
			t.Errorf("claim %s, kernel %s: CPUs %s are kept, want %s", c.left, c.kernel, got, c.want)
		}
	}
}

// TestStartAfterDamage: whatever is damaged, a start ends with a sound ledger in which every running pod
// has what it really has, or is known to run; nobody else has any of it; and pods that the damage
// does not concern stay as they were.
func TestStartAfterDamage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := drawNode(t)
		before := n.ledger.View()
		last, err := journal.Dump(before)
		if err != nil {
			t.Fatal(err)
		}
		// Without claim records, one place may be damaged: then all else is right.
		lostRecords, most := rapid.IntRange(0, 3).Draw(t, "claim records are lost") == 0, 3
		if lostRecords {
			most = 1
		}
		entries, hit := n.damage(t, last, most)
		var observed []recovery.Observation
		for _, uid := range slices.Sorted(maps.Keys(n.pods)) {
			p := n.pods[uid]
			o := recovery.Observation{UID: uid, QoS: workload.Guaranteed, Record: recovery.Whole, Claims: p.record,
				Processes: recovery.Empty}
			if lostRecords && rapid.Bool().Draw(t, "lost") {
				o.Claims, o.Record, p.record = nil, rapid.SampledFrom([]recovery.Record{recovery.Missing,
					recovery.Damaged}).Draw(t, "record"), nil
			}
			if p.running {
				o.Processes = recovery.Running
				o.Containers = []recovery.Container{{Name: "main", CPUs: p.cpus}}
				if p.cpus.IsEmpty() {
					o.Containers[0].CPUs = before.SharedCPUs()
				}
			}
			observed = append(observed, o)
		}

		l, report, salvaged := restart(t, n, entries)
		acknowledged := recovery.Commit{Epoch: epoch, Revision: before.Revision()}
		if salvaged {
			acknowledged.Revision = 0
		}
		if rapid.IntRange(0, 3).Draw(t, "no mark") == 0 {
			acknowledged = recovery.Commit{}
		}
		plan := recovery.Decide(recovery.Input{View: l.View(), Report: report, Observed: observed, BootID: boot, Now: now,
			Acknowledged: acknowledged})
		if _, err := l.Update(context.Background(), func(d *ledger.Draft) error { plan.Apply(d); return nil }); err != nil {
			t.Fatalf("the plan: %v", err)
		}
		ledgertest.Check(t, l)

		v := l.View()
		holds := holders(v)
		text := func() string {
			var lines []string
			for _, d := range plan.Decisions {
				lines = append(lines, d.String())
			}
			return fmt.Sprintf("hit %q, acknowledged %+v, report %+v\n%s", slices.Sorted(maps.Keys(hit)), acknowledged, report,
				strings.Join(lines, "\n"))
		}
		for uid, p := range n.pods {
			_, whole := v.Pod(uid)
			if !p.running {
				continue
			}
			if !whole && !v.UnknownLive(uid) {
				t.Fatalf("running pod %s is lost\n%s", uid, text())
			}
			if !slices.ContainsFunc(plan.Decisions, func(d recovery.Decision) bool { return d.UID == uid }) {
				t.Fatalf("running pod %s is not reported\n%s", uid, text())
			}
			for cpu := range p.cpus.All() {
				if has := holds[fmt.Sprint(cpu)]; has != uid {
					t.Fatalf("CPU %d of running pod %s is held by %q\n%s", cpu, uid, has, text())
				}
			}
			u, _ := v.UnknownLivePod(uid)
			if has := holds[p.device]; p.device != "" && has != uid && !(has == "" && u.DevicesUnknown) {
				t.Fatalf("device %s of running pod %s is held by %q\n%s", p.device, uid, has, text())
			}
		}
		for uid, p := range n.pods {
			if hits(hit, uid) || !p.running {
				continue
			}
			was, _ := before.Pod(uid)
			if is, ok := v.Pod(uid); !ok || !ledger.SameClaims(is.Claims, was.Claims) {
				t.Fatalf("pod %s, which the damage does not concern, is not what it was\n%s", uid, text())
			}
		}
	})
}

// hits reports whether the pod's record or one of its claims is damaged, or an entry that may be one.
func hits(hit map[string]bool, uid string) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(hit)), func(name string) bool {
		return name == "pods/"+uid || strings.HasPrefix(name, "claims/"+uid+"/")
	})
}

// holders returns which pod has each CPU and each device.
func holders(v *ledger.View) map[string]string {
	out := map[string]string{}
	add := func(uid string, claims []ledger.Claim) {
		for _, c := range claims {
			switch {
			case c.CPUs != nil:
				for cpu := range c.CPUs.Set.All() {
					out[fmt.Sprint(cpu)] = uid
				}
			case c.Devices != nil:
				for _, id := range c.Devices.IDs() {
					out[id] = uid
				}
			}
		}
	}
	for p := range v.Pods() {
		add(p.UID(), p.Claims)
	}
	for u := range v.UnknownLivePods() {
		add(u.UID, u.Claims)
	}
	return out
}
