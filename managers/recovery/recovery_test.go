package recovery_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/managers/workload"
)

const (
	boot  = "boot-1"
	epoch = ledger.EpochID(7)
	gpu   = "vendor.com/gpu"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func rules() ledger.Rules {
	return ledger.Rules{Machine: machinetest.Build("2s1n4c2t", machinetest.Memory(0, 1<<30), machinetest.Memory(1, 1<<30)),
		ReservedCPUs: cpuset.Of(0)}
}

// claimsOf gives the claims of container c.
func claimsOf(cpus, device string) []ledger.Claim {
	p := ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Exclusive("c", cpus), ledgertest.Devices("c", gpu, device))
	return p.Claims
}

// world is a ledger with a pod a that holds CPUs 2-3 and gpu-1, and a few generations.
func world(t *testing.T, known bool) *ledger.View {
	t.Helper()
	return open(t, known).View()
}

func open(t *testing.T, known bool) *ledger.Ledger {
	t.Helper()
	l, _ := ledgertest.Open(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: rules(), EpochID: epoch, BootID: boot})
	commit := func(do func(d *ledger.Draft)) {
		t.Helper()
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { do(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		commit(func(d *ledger.Draft) { d.SetUncertain(fmt.Sprint(i)) })
	}
	if known {
		commit(func(d *ledger.Draft) {
			p := ledgertest.Pod("a", "c")
			p.Claims = claimsOf("2-3", "gpu-1")
			p.Claims[1].Devices.Response = []byte("answer")
			d.PutPod(p)
		})
	} else {
		commit(func(d *ledger.Draft) { d.SetUncertain("") })
	}
	return l
}

// record is a claim record of pod a. The pod's last change in the ledger is of
// generation 5, and so is the ledger.
func record(change func(r *claimrecord.Record)) recovery.Observation {
	r := &claimrecord.Record{
		Pod: "a", Namespace: "default", Name: "pod-a", BootID: boot, Epoch: epoch, Generation: 5,
		Digest: "digest-a", QoS: workload.Guaranteed, Claims: claimsOf("2-3", "gpu-1"),
		Bindings: []ledger.RecordedBinding{{ID: "id-1", Container: "c"}},
	}
	if change != nil {
		change(r)
	}
	return recovery.Observation{UID: "a", QoS: workload.Guaranteed, Record: recovery.Whole, Claims: r}
}

// kernel is what the kernel shows of container c.
func kernel(cpus string) []recovery.Container {
	set, err := cpuset.Parse(cpus)
	if err != nil {
		panic(err)
	}
	return []recovery.Container{{Name: "c", CPUs: set, Mems: numa.Of(1), MemoryBytes: 1 << 20}}
}

const (
	mine    = "c: CPUs 2-3 (exclusive), c: vendor.com/gpu gpu-1"
	theirs  = "c: CPUs 4-5 (exclusive), c: vendor.com/gpu gpu-2"
	both    = "c: CPUs 2-5 (exclusive), c: vendor.com/gpu gpu-1, gpu-2"
	shown   = "c: CPUs 6-7 (exclusive), c: 1048576 bytes of memory on NUMA nodes 1, devices that are not known"
	nothing = "nothing"
)

// TestTable goes through the table of the package comment, row by row.
func TestTable(t *testing.T) {
	t.Parallel()
	missing := recovery.Observation{UID: "a", QoS: workload.Guaranteed}
	damaged := recovery.Observation{UID: "a", QoS: workload.Guaranteed, Record: recovery.Damaged}
	other := func(r *claimrecord.Record) { r.Claims = claimsOf("4-5", "gpu-2") }
	at := func(generation uint64) recovery.Observation {
		return record(func(r *claimrecord.Record) { other(r); r.Generation = generation })
	}
	foreign := record(func(r *claimrecord.Record) { other(r); r.Epoch = 8 })
	foreignSpec := record(func(r *claimrecord.Record) { other(r); r.Epoch, r.Digest = 8, "other" })
	foreignSame := record(func(r *claimrecord.Record) { r.Epoch = 8 })
	before := record(func(r *claimrecord.Record) { other(r); r.BootID = "boot-0" })
	resized := record(func(r *claimrecord.Record) { r.Generation, r.Digest = 6, "resized" })
	every := []recovery.Processes{recovery.Empty, recovery.Running, recovery.Unseen}
	living := []recovery.Processes{recovery.Running, recovery.Unseen}
	only := func(p recovery.Processes) []recovery.Processes { return []recovery.Processes{p} }
	half := &journal.LostPod{UID: "a", Why: "a claim is damaged", Pod: bare("a"), Claims: claimsOf("2-3", "gpu-1")[:1]}
	name := &journal.LostPod{UID: "a", Why: "its record is damaged"}
	stale := &journal.LostPod{UID: "a", Why: "a stale copy is left", Pod: bare("a"), Claims: claimsOf("2-3", "gpu-1"), PerhapsStale: true}

	for _, c := range []struct {
		name      string
		known     bool
		lost      *journal.LostPod
		seen      recovery.Observation
		processes []recovery.Processes

		want    recovery.Case
		source  ledger.ClaimSource
		kept    string
		waits   bool
		removed bool
	}{
		{"both agree", true, nil, record(nil), every, recovery.Agrees, ledger.FromBoth, mine, false, false},
		{"both agree, in other epochs", true, nil, foreignSame, every, recovery.Agrees, ledger.FromBoth, mine, false, false},
		{"older claim record", true, nil, at(4), every, recovery.LedgerNewer, ledger.FromLedger, mine, false, false},
		{"of the same generation", true, nil, at(5), every, recovery.LedgerNewer, ledger.FromLedger, mine, false, false},
		{"newer by a change that was not acknowledged", true, nil, at(6), every, recovery.Unacknowledged, ledger.FromBoth, both, false,
			false},
		{"resized without an acknowledgement", true, nil, resized, every, recovery.Unacknowledged, ledger.FromBoth, mine, false, false},
		{"older copy of the ledger", true, nil, at(7), every, recovery.OlderCopy, ledger.FromClaimRecord, theirs, false, false},
		{"other epoch", true, nil, foreign, living, recovery.OtherEpoch, ledger.FromClaimRecord, theirs, false, false},
		{"other epoch and specification", true, nil, foreignSpec, living, recovery.OtherEpoch, ledger.FromClaimRecord, theirs, true, false},
		{"other epoch, empty", true, nil, foreign, only(recovery.Empty), recovery.LedgerDead, ledger.FromLedger, mine, false, false},
		{"other boot", true, nil, before, every, recovery.LedgerOnly, ledger.FromLedger, mine, false, false},
		{"claim record missing", true, nil, missing, every, recovery.LedgerOnly, ledger.FromLedger, mine, false, false},
		{"claim record damaged", true, nil, damaged, every, recovery.LedgerDamaged, ledger.FromLedger, mine, false, false},
		{"no cgroup", true, nil, missing, only(recovery.Gone), recovery.NotRunning, ledger.FromLedger, mine, false, false},

		{"claim lost", false, half, record(nil), every, recovery.Restored, ledger.FromClaimRecord, mine, false, false},
		{"claim lost, other specification", false, half, foreignSpec, living, recovery.Restored, ledger.FromClaimRecord, theirs, true,
			false},
		{"record lost", false, name, record(nil), living, recovery.Restored, ledger.FromClaimRecord, mine, true, false},
		{"record lost, a stale copy is left", false, stale, record(nil), living, recovery.Restored, ledger.FromClaimRecord, mine, true,
			false},
		{"claim lost, no claim record", false, half, with(missing, "2-3"), only(recovery.Running), recovery.Damage, ledger.FromLedger,
			"c: CPUs 2-3 (exclusive), c: 1048576 bytes of memory on NUMA nodes 1, devices that are not known", true, false},
		{"record lost, no claim record", false, name, with(missing, "6-7"), only(recovery.Running), recovery.Damage, ledger.FromKernel,
			shown, true, false},
		{"record lost, claim record damaged", false, name, with(damaged, "6-7"), only(recovery.Running), recovery.Damage,
			ledger.FromKernel, shown, true, false},
		{"stale record, no claim record", false, stale, with(missing, "6-7"), only(recovery.Running), recovery.Damage, ledger.FromKernel,
			shown, true, false},
		{"record lost, empty", false, name, record(nil), only(recovery.Empty), recovery.Restored, ledger.FromClaimRecord, mine, true,
			false},
		{"record lost, empty, claim record damaged", false, name, damaged, only(recovery.Empty), recovery.LostCase, "", nothing, false,
			true},
		{"claim lost, empty, no claim record", false, half, missing, only(recovery.Empty), recovery.LostCase, "", nothing, false, true},
		{"claim lost, no cgroup", false, half, missing, only(recovery.Gone), recovery.LostCase, "", nothing, false, false},

		{"unknown", false, nil, record(nil), only(recovery.Running), recovery.Unrecorded, ledger.FromClaimRecord, mine, true, false},
		{"unknown, other epoch", false, nil, foreign, living, recovery.Unrecorded, ledger.FromClaimRecord, theirs, true, false},
		{"unknown, the ledger is an older copy", false, nil, at(7), living, recovery.Unrecorded, ledger.FromClaimRecord, theirs, true,
			false},
		{"never acknowledged", false, nil, at(6), only(recovery.Empty), recovery.NeverAdmitted, "", nothing, false, true},
		{"never acknowledged, unseen", false, nil, at(6), only(recovery.Unseen), recovery.NeverAdmitted, "", nothing, false, true},
		{"empty, other epoch", false, nil, foreign, only(recovery.Empty), recovery.Unrecorded, ledger.FromClaimRecord, theirs, true, false},
		{"empty, the ledger is an older copy", false, nil, at(7), only(recovery.Empty), recovery.Unrecorded, ledger.FromClaimRecord,
			theirs, true, false},
		{"empty, claim record damaged", false, nil, damaged, only(recovery.Empty), recovery.NeverAdmitted, "", nothing, false, true},
		{"nothing known", false, nil, with(missing, "6-7"), only(recovery.Running), recovery.Nothing, ledger.FromKernel, shown, true,
			false},
		{"claim record damaged, unknown", false, nil, with(damaged, "6-7"), only(recovery.Running), recovery.Nothing, ledger.FromKernel,
			shown, true, false},
		{"record of another boot", false, nil, withBoot(before, "6-7"), only(recovery.Running), recovery.Nothing, ledger.FromKernel,
			shown, true, false},
		{"nothing known and nothing to see", false, nil, damaged, only(recovery.Unseen), recovery.Nothing, "",
			"devices that are not known", true, false},
		{"empty cgroup of nobody", false, nil, missing, only(recovery.Empty), recovery.NeverAdmitted, "", nothing, false, true},
	} {
		for _, processes := range c.processes {
			t.Run(fmt.Sprintf("%s/%d", c.name, processes), func(t *testing.T) {
				t.Parallel()
				l := open(t, c.known)
				view := l.View()
				in := recovery.Input{View: view, BootID: boot, Unseen: processes == recovery.Unseen, Now: now}
				if c.lost != nil {
					in.Report.Lost = []journal.LostPod{*c.lost}
				}
				seen := c.seen // the processes are this subtest's
				seen.Processes = processes
				in.Observed = []recovery.Observation{seen}
				plan := recovery.Decide(in)
				if len(plan.Decisions) != 1 {
					t.Fatalf("decisions %+v", plan.Decisions)
				}
				d := plan.Decisions[0]
				if d.Case != c.want || d.Source != c.source || d.Content() != c.kept || d.Waits != c.waits {
					t.Errorf("%q from %q: %s, waits %t\nwant %q from %q: %s, waits %t",
						d.Case, d.Source, d.Content(), d.Waits, c.want, c.source, c.kept, c.waits)
				}
				if removed := slices.Contains(plan.Remove, "a"); removed != c.removed {
					t.Errorf("the cgroup is removed: %t", removed)
				}
				holds(t, view, plan, c.waits, c.kept == nothing)
				// A start that is killed before it writes claim records is followed by another.
				draft := ledger.NewDraft(view)
				plan.Apply(draft)
				if plan.OlderCopy {
					draft.RenewEpoch(9, 0)
				}
				again := in
				again.View, again.Report = commit(t, l, draft), journal.Report{}
				if c.removed {
					again.Observed = nil
				}
				for _, d := range recovery.Decide(again).Decisions {
					if d.Content() != c.kept || d.Waits != c.waits {
						t.Errorf("the second start: %s", d)
					}
				}
			})
		}
	}
}

// commit gives the view that a draft leaves, with its generation.
func commit(t *testing.T, l *ledger.Ledger, draft *ledger.Draft) *ledger.View {
	t.Helper()
	view, err := l.Commit(t.Context(), draft)
	if err != nil {
		t.Fatal(err)
	}
	return view
}

// holds puts a plan into the ledger and checks that the ledger has the decisions.
func holds(t *testing.T, view *ledger.View, plan recovery.Plan, waits, none bool) {
	t.Helper()
	draft := ledger.NewDraft(view)
	plan.Apply(draft)
	after := draft.View()
	if found := check.View(after); len(found) > 0 {
		t.Errorf("findings %v", found)
	}
	p, known := after.Pod("a")
	u, noted := after.UnknownLivePod("a")
	var claims []ledger.Claim
	switch {
	case known:
		claims = p.Claims
	case noted:
		claims = u.Claims
		if u.Since != now {
			t.Errorf("since %s", u.Since)
		}
	}
	if known == (waits || none) || noted != waits || !ledger.SameClaims(claims, plan.Decisions[0].Kept) {
		t.Errorf("known %t, noted %t, claims %v", known, noted, claims)
	}
	// A second start finds what the first one left.
	if known && plan.Decisions[0].Source == ledger.FromClaimRecord {
		if b, ok := after.Binding("id-1"); !ok || b.Owner.Container != "c" {
			t.Errorf("binding %+v %t", b, ok)
		}
	}
}

func bare(uid string) *ledger.Pod {
	p := ledgertest.Pod(uid, "c")
	p.Pod.Containers[0].Limits = workload.Quantities{gpu: 1}
	return p
}

func with(o recovery.Observation, cpus string) recovery.Observation {
	o.Containers = kernel(cpus)
	return o
}

func withBoot(o recovery.Observation, cpus string) recovery.Observation { return with(o, cpus) }

// TestAnswersAreKept: where the ledger has a plugin's answer about the same devices, a
// pod that follows its claim record keeps it.
func TestAnswersAreKept(t *testing.T) {
	t.Parallel()
	seen := record(func(r *claimrecord.Record) {
		r.Epoch = 8
		r.Claims[0].CPUs = &ledger.CPUs{Set: cpuset.Of(4, 5), Use: ledger.CPUExclusive}
	})
	seen.Processes = recovery.Running
	view := world(t, true)
	plan := recovery.Decide(recovery.Input{View: view, BootID: boot, Observed: []recovery.Observation{seen}, Now: now})
	draft := ledger.NewDraft(view)
	plan.Apply(draft)
	p, _ := draft.View().Pod("a")
	if c, ok := p.Claim("c", gpu); !ok || string(c.Devices.Response) != "answer" {
		t.Errorf("claim %+v", c)
	}
	if c, _ := p.Claim("c", "cpu"); c.CPUs.Set != cpuset.Of(4, 5) {
		t.Errorf("claim %+v", c)
	}
}

// TestUnacknowledgedUnion: the union remembers what was acknowledged.
func TestUnacknowledgedUnion(t *testing.T) {
	t.Parallel()
	seen := record(func(r *claimrecord.Record) { r.Generation, r.Claims = 6, claimsOf("4-5", "gpu-2") })
	seen.Processes = recovery.Running
	view := world(t, true)
	plan := recovery.Decide(recovery.Input{View: view, BootID: boot, Observed: []recovery.Observation{seen}, Now: now})
	draft := ledger.NewDraft(view)
	plan.Apply(draft)
	if p, _ := draft.View().Pod("a"); !ledger.SameClaims(p.Acknowledged, claimsOf("2-3", "gpu-1")) || plan.OlderCopy {
		t.Errorf("record %+v, older %t", p, plan.OlderCopy)
	}
}

// TestMoveThatDidNotBegin: a claim record of a change that berthd made by itself is no evidence if the mark
// of the last commit shows that the change was never committed.
func TestMoveThatDidNotBegin(t *testing.T) {
	t.Parallel()
	view := world(t, true)
	last := recovery.Commit{Epoch: view.EpochID(), Revision: view.Revision()}
	for _, row := range []struct {
		name   string
		mark   recovery.Commit
		change func(r *claimrecord.Record)
		want   recovery.Case
	}{
		{"marked", last, nil, recovery.NotBegun},
		{"not marked", recovery.Commit{}, nil, recovery.Unacknowledged},
		{"an earlier commit is marked", recovery.Commit{Epoch: last.Epoch, Revision: last.Revision - 1}, nil, recovery.Unacknowledged},
		{"a later commit is marked", recovery.Commit{Epoch: last.Epoch, Revision: last.Revision + 1}, nil, recovery.OlderCopy},
		{"the mark is of another epoch", recovery.Commit{Epoch: 8, Revision: last.Revision}, nil, recovery.OlderCopy},
		{"another specification", last, func(r *claimrecord.Record) { r.Digest = "other" }, recovery.Unacknowledged},
		{"of the last commit", last, func(r *claimrecord.Record) { r.Generation = 5 }, recovery.LedgerNewer},
	} {
		seen := record(func(r *claimrecord.Record) {
			r.Generation, r.Claims = 6, claimsOf("2-5", "gpu-1")
			if row.change != nil {
				row.change(r)
			}
		})
		seen.Processes = recovery.Running
		plan := recovery.Decide(recovery.Input{View: view, BootID: boot, Observed: []recovery.Observation{seen}, Acknowledged: row.mark,
			Now: now})
		if d := plan.Decisions[0]; d.Case != row.want {
			t.Errorf("%s: %s", row.name, d.Case)
		} else if row.want == recovery.NotBegun && plan.Changes() {
			t.Errorf("%s: the ledger changes", row.name)
		}
	}
}

// TestUnionWithNothing: where the last acknowledged change left no claims, the union
// remembers that it is one.
func TestUnionWithNothing(t *testing.T) {
	t.Parallel()
	seen := record(func(r *claimrecord.Record) { r.Generation, r.Claims = 6, claimsOf("4-5", "gpu-2") })
	seen.Processes = recovery.Running
	none := ledger.NewDraft(world(t, true))
	p, _ := none.View().Pod("a")
	without := *p
	without.Claims = nil
	none.PutPod(&without)
	plan := recovery.Decide(recovery.Input{View: none.View(), BootID: boot, Observed: []recovery.Observation{seen}, Now: now})
	draft := ledger.NewDraft(none.View())
	plan.Apply(draft)
	if p, _ := draft.View().Pod("a"); len(p.Claims) == 0 || p.Acknowledged == nil || len(p.Acknowledged) > 0 {
		t.Errorf("claims %+v, acknowledged %#v", p.Claims, p.Acknowledged)
	}
}

// TestWhoLivesKeeps: a pod without processes loses what a living one has, and of two
// living ones the weaker source yields.
func TestWhoLivesKeeps(t *testing.T) {
	t.Parallel()
	view := world(t, true) // a holds 2-3 and gpu-1
	b := record(func(r *claimrecord.Record) { r.Pod, r.Epoch, r.Claims = "b", 8, renamed(claimsOf("3-4", "gpu-1"), "b") })
	b.UID, b.Processes = "b", recovery.Running
	for _, c := range []struct {
		a       recovery.Processes
		record  recovery.Record
		wantA   recovery.Case
		keepsA  string
		keepsB  string
		unknown bool
	}{
		{recovery.Gone, recovery.Missing, recovery.Displaced, nothing, "c: CPUs 3-4 (exclusive), c: vendor.com/gpu gpu-1", false},
		{recovery.Empty, recovery.Missing, recovery.Displaced, nothing, "c: CPUs 3-4 (exclusive), c: vendor.com/gpu gpu-1", false},
		{recovery.Running, recovery.Missing, recovery.LedgerOnly, "c: CPUs 2 (exclusive)",
			"c: CPUs 3-4 (exclusive), c: vendor.com/gpu gpu-1", false},
		{recovery.Running, recovery.Whole, recovery.Agrees, mine, "c: CPUs 4 (exclusive)", false},
	} {
		a := recovery.Observation{UID: "a", Processes: c.a}
		if c.record == recovery.Whole {
			a = record(nil)
			a.Processes = c.a
		}
		plan := recovery.Decide(recovery.Input{View: view, BootID: boot, Observed: []recovery.Observation{a, b}, Now: now})
		got := map[string]recovery.Decision{}
		for _, d := range plan.Decisions {
			got[d.UID] = d
		}
		if got["a"].Case != c.wantA || got["a"].Content() != c.keepsA || got["b"].Content() != c.keepsB {
			t.Errorf("a %d: %s\n%s\n", c.a, got["a"], got["b"])
		}
		draft := ledger.NewDraft(view)
		plan.Apply(draft)
		if found := check.View(draft.View()); len(found) > 0 {
			t.Errorf("findings %v", found)
		}
	}
}

func renamed(claims []ledger.Claim, uid string) []ledger.Claim {
	for i := range claims {
		claims[i].Owner.Pod = uid
	}
	return claims
}

// TestKernelShows: which of the CPUs that the kernel shows are taken for a container's
// own.
func TestKernelShows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		qos  workload.QoSClass
		cpus string
		also string // of another pod's container, in the class burstable
		peer string // of another pod's container, in the class guaranteed
		want string
	}{
		{"its own", workload.Guaranteed, "2-3", "", "", "2-3"},
		{"a class without CPUs of its own", workload.Burstable, "2-3", "", "", ""},
		{"reserved CPUs among them", workload.Guaranteed, "0,2-3", "", "", ""},
		{"all but the reserved", workload.Guaranteed, "1-15", "", "", "1-15"},
		{"a sharer is out of date", workload.Guaranteed, "2-3", "0-15", "", "2-3"},
		{"shared with a peer", workload.Guaranteed, "2-3", "", "3-5", ""},
		{"no CPUs", workload.Guaranteed, "", "", "", ""},
	} {
		o := recovery.Observation{UID: "a", QoS: c.qos, Processes: recovery.Running, Containers: kernel(c.cpus)}
		in := recovery.Input{View: world(t, false), BootID: boot, Observed: []recovery.Observation{o}, Now: now}
		if c.also != "" {
			in.Observed = append(in.Observed, recovery.Observation{UID: "b", QoS: workload.Burstable, Processes: recovery.Running,
				Containers: kernel(c.also)})
		}
		if c.peer != "" {
			in.Observed = append(in.Observed, recovery.Observation{UID: "p", QoS: workload.Guaranteed, Processes: recovery.Running,
				Containers: kernel(c.peer)})
		}
		got := ""
		for _, d := range recovery.Decide(in).Decisions {
			for i := range d.Kept {
				if set := d.Kept[i].CPUs; d.UID == "a" && set != nil {
					got = set.Set.String()
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: CPUs %q, want %q", c.name, got, c.want)
		}
	}
}

// TestKernelShowsUnderStrictReservation: reserved CPUs are no evidence then, and a cgroup with all
// the others shares them.
func TestKernelShowsUnderStrictReservation(t *testing.T) {
	t.Parallel()
	for cpus, own := range map[string]bool{"1-15": false, "2-3": true} {
		strict := rules()
		strict.StrictReservation = true
		o := recovery.Observation{UID: "a", QoS: workload.Guaranteed, Processes: recovery.Running, Containers: kernel(cpus)}
		plan := recovery.Decide(recovery.Input{View: ledger.Empty(strict), Observed: []recovery.Observation{o}, Now: now})
		if got := strings.Contains(plan.Decisions[0].Content(), "CPUs"); got != own {
			t.Errorf("CPUs %s: %s", cpus, plan.Decisions[0])
		}
	}
}

// TestNotesStay: who was found living at an earlier start stays noted with what was
// known then, and is forgotten once it has gone.
func TestNotesStay(t *testing.T) {
	t.Parallel()
	noted := ledger.UnknownLivePod{UID: "a", Since: now.Add(-time.Hour), Source: ledger.FromKernel, Claims: claimsOf("2-3", "gpu-1")[:1],
		DevicesUnknown: true}
	draft := ledger.NewDraft(world(t, false))
	draft.PutUnknownLive(noted)
	view := draft.View()
	decide := func(unseen bool, seen ...recovery.Observation) recovery.Plan {
		return recovery.Decide(recovery.Input{View: view, BootID: boot, Observed: seen, Unseen: unseen, Now: now})
	}
	running := recovery.Observation{UID: "a", Processes: recovery.Running, Containers: kernel("0-15")}
	if plan := decide(false, running); plan.Changes() || len(plan.Remove) > 0 || !plan.Decisions[0].Waits {
		t.Errorf("it runs: %+v", plan)
	}
	if plan := decide(true); plan.Changes() {
		t.Errorf("nobody can see it: %+v", plan)
	}
	for _, p := range []recovery.Processes{recovery.Gone, recovery.Empty} {
		plan := decide(false, recovery.Observation{UID: "a", Processes: p})
		d := ledger.NewDraft(view)
		plan.Apply(d)
		if d.View().UnknownLive("a") {
			t.Errorf("it has gone (%d): %+v", p, plan)
		}
	}
	whole := record(func(r *claimrecord.Record) { r.Epoch = 8 })
	whole.Processes = recovery.Running
	plan := decide(false, whole)
	d := ledger.NewDraft(view)
	plan.Apply(d)
	if u, _ := d.View().UnknownLivePod("a"); u.Source != ledger.FromClaimRecord || !u.Since.Equal(noted.Since) || u.DevicesUnknown ||
		u.Digest != "digest-a" {
		t.Errorf("its claim record is whole: %+v", u)
	}
}

// TestLines: a decision reads like a sentence.
func TestLines(t *testing.T) {
	t.Parallel()
	seen := record(func(r *claimrecord.Record) { r.Epoch = 8 })
	seen.Processes = recovery.Running
	plan := recovery.Decide(recovery.Input{View: world(t, false), BootID: boot, Observed: []recovery.Observation{seen}, Now: now})
	got := plan.Decisions[0].String()
	for _, part := range []string{"pod default/pod-a (a)", "not in the ledger", mine, "claim record", "waiting for the agent"} {
		if !strings.Contains(got, part) {
			t.Errorf("%q lacks %q", got, part)
		}
	}
}

// TestUnionThatContradictsItself: where a change has moved something between a pod's
// containers, the union is no record. The pod keeps all of it, and the start succeeds.
func TestUnionThatContradictsItself(t *testing.T) {
	t.Parallel()
	claims := func(c, d string) []ledger.Claim {
		return ledgertest.With(ledgertest.Pod("a", "c", "d"), ledgertest.Exclusive("c", c), ledgertest.Exclusive("d", d)).Claims
	}
	l, _ := ledgertest.Open(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: rules(), EpochID: epoch, BootID: boot})
	view, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		p := ledgertest.Pod("a", "c", "d")
		p.Claims = claims("2-3", "4")
		d.PutPod(p)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := record(func(r *claimrecord.Record) { r.Generation, r.Claims = 2, claims("2", "3-4") })
	seen.Processes = recovery.Running
	plan := recovery.Decide(recovery.Input{View: view, BootID: boot, Observed: []recovery.Observation{seen}, Now: now})
	if view, err = l.Update(t.Context(), func(d *ledger.Draft) error { plan.Apply(d); return nil }); err != nil {
		t.Fatal(err)
	}
	if free := view.SharedCPUs(); free.Overlaps(cpuset.Of(2, 3, 4)) {
		t.Errorf("CPUs %s are shared", free)
	}
}

// TestClaimRecordThatContradictsItself: a pod whose claim record gives a CPU to two of its
// containers keeps all of it. Its record is no answer to the agent, which has to report who
// has what.
func TestClaimRecordThatContradictsItself(t *testing.T) {
	t.Parallel()
	claims := ledgertest.With(ledgertest.Pod("a", "c", "d"), ledgertest.Exclusive("c", "2-3"), ledgertest.Exclusive("d", "3-4")).Claims
	l, _ := ledgertest.Open(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: rules(), EpochID: epoch, BootID: boot})
	view, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod("a", "c", "d")); return nil })
	if err != nil {
		t.Fatal(err)
	}
	p, _ := view.Pod("a")
	seen := record(func(r *claimrecord.Record) { r.Epoch, r.Digest, r.Claims = 8, p.Digest, claims })
	seen.Processes = recovery.Running
	plan := recovery.Decide(recovery.Input{View: view, BootID: boot, Observed: []recovery.Observation{seen}, Now: now})
	if view, err = l.Update(t.Context(), func(d *ledger.Draft) error { plan.Apply(d); return nil }); err != nil {
		t.Fatal(err)
	}
	u, noted := view.UnknownLivePod("a")
	if _, known := view.Pod("a"); known || !noted || u.Digest != "" || !ledger.SameClaims(u.Claims, claims) {
		t.Errorf("known %t, noted %t: %+v", known, noted, u)
	}
	if free := view.SharedCPUs(); free.Overlaps(cpuset.Of(2, 3, 4)) {
		t.Errorf("CPUs %s are shared", free)
	}
}

// TestKernelShowsKnownCPUs: CPUs that the ledger or a claim record gives to another pod are
// not taken for a container's own only because its cpuset still has them: its cpuset may be
// of the time before they were given. A note of an earlier start overrides that.
func TestKernelShowsKnownCPUs(t *testing.T) {
	t.Parallel()
	recorded := record(nil)
	recorded.Processes = recovery.Running
	for _, c := range []struct {
		name   string
		ledger bool // a holds 2-3 by the ledger
		record bool // a holds 2-3 by its claim record
		cpus   string
		noted  string // what an earlier start has noted of b
		want   string
	}{
		{"beside the ledger's", true, false, "4-5", "", "4-5"},
		{"the ledger's", true, false, "3-4", "", ""},
		{"beside a claim record's", false, true, "4-5", "", "4-5"},
		{"a claim record's", false, true, "3-4", "", ""},
		{"noted before", false, false, "4-5", "4-5", "4-5"},
	} {
		l := open(t, c.ledger)
		in := recovery.Input{View: l.View(), BootID: boot, Now: now, Observed: []recovery.Observation{
			{UID: "b", QoS: workload.Guaranteed, Processes: recovery.Running, Containers: kernel(c.cpus)},
		}}
		if c.record {
			in.Observed = append(in.Observed, recorded)
		}
		if c.noted != "" {
			d := ledger.NewDraft(in.View)
			d.PutUnknownLive(ledger.UnknownLivePod{UID: "b", Since: now, Claims: renamed(claimsOf(c.noted, "gpu-1")[:1], "b")})
			in.View = commit(t, l, d)
		}
		got := map[string]string{}
		for _, d := range recovery.Decide(in).Decisions {
			for i := range d.Kept {
				if set := d.Kept[i].CPUs; set != nil {
					got[d.UID] = set.Set.String()
				}
			}
		}
		if got["b"] != c.want || (c.ledger || c.record) && got["a"] != "2-3" {
			t.Errorf("%s: CPUs %v, want %q", c.name, got, c.want)
		}
	}
}

// TestOlderByOneCommit: a ledger that lacks an acknowledged commit of its epoch is an older
// copy, also by one; so a pod that it does not know may be one that the agent knows.
func TestOlderByOneCommit(t *testing.T) {
	t.Parallel()
	view := world(t, false)
	seen := record(func(r *claimrecord.Record) { r.Generation = view.Generation() + 1 })
	seen.Processes = recovery.Empty
	for _, c := range []struct {
		name         string
		acknowledged recovery.Commit
		older        bool
		want         recovery.Case
	}{
		{"not known", recovery.Commit{}, false, recovery.NeverAdmitted},
		{"the ledger's last", recovery.Commit{Epoch: epoch, Revision: view.Revision()}, false, recovery.NeverAdmitted},
		{"of another epoch", recovery.Commit{Epoch: 8, Revision: view.Revision() + 1}, true, recovery.Unrecorded},
		{"one that it lacks", recovery.Commit{Epoch: epoch, Revision: view.Revision() + 1}, true, recovery.Unrecorded},
	} {
		plan := recovery.Decide(recovery.Input{View: view, Observed: []recovery.Observation{seen}, BootID: boot, Now: now,
			Acknowledged: c.acknowledged})
		if d := plan.Decisions[0]; plan.OlderCopy != c.older || d.Case != c.want || d.Waits != c.older ||
			(len(plan.Remove) > 0) == c.older {
			t.Errorf("%s: older %t, %+v, removes %q", c.name, plan.OlderCopy, d, plan.Remove)
		}
	}
}

// TestOlderCopyOfAnEpochBefore: the last commit was of another epoch, and a claim record of the
// ledger's epoch is ahead: no crash leaves that.
func TestOlderCopyOfAnEpochBefore(t *testing.T) {
	t.Parallel()
	view := world(t, false)
	for _, p := range []recovery.Processes{recovery.Empty, recovery.Unseen} {
		seen := record(func(r *claimrecord.Record) { r.Generation = view.Generation() + 1 })
		seen.Processes = p
		plan := recovery.Decide(recovery.Input{
			View: view, Observed: []recovery.Observation{seen}, BootID: boot, Now: now, Unseen: p == recovery.Unseen,
			Acknowledged: recovery.Commit{Epoch: 8, Revision: view.Revision() + 2},
		})
		if d := plan.Decisions[0]; !plan.OlderCopy || !d.Waits || d.Case != recovery.Unrecorded || len(plan.Remove) > 0 {
			t.Errorf("older %t, %s, removes %q", plan.OlderCopy, d, plan.Remove)
		}
	}
}

// TestOlderCopyByItsMark: the mark of the last commit alone shows a copy from before the
// ledger's epoch was renewed, also when the claim records are of the new epoch by then. The
// renewed ledger itself, whose commit was not marked because of a crash, is no copy.
func TestOlderCopyByItsMark(t *testing.T) {
	t.Parallel()
	view := world(t, false)
	seen := record(func(r *claimrecord.Record) { r.Epoch, r.Generation = 8, view.Generation()+1 })
	seen.Processes = recovery.Running
	for revision, older := range map[uint64]bool{0: false, view.Revision() - 1: false, view.Revision(): false, view.Revision() + 1: true} {
		plan := recovery.Decide(recovery.Input{
			View: view, Observed: []recovery.Observation{seen}, BootID: boot, Now: now,
			Acknowledged: recovery.Commit{Epoch: 8, Revision: revision},
		})
		if d := plan.Decisions[0]; plan.OlderCopy != older || !d.Waits {
			t.Errorf("marked at %d, the ledger is at %d: older %t, %s", revision, view.Revision(), plan.OlderCopy, d)
		}
	}
}

// TestLivingBeforeRank: a pod without processes yields to a living one, also where ledger and
// claim record agree about it and the living one has its claim record alone.
func TestLivingBeforeRank(t *testing.T) {
	t.Parallel()
	l := open(t, true)
	x := ledgertest.Pod("x", "c")
	x.Claims = renamed(claimsOf("4-5", "gpu-2"), "x")
	view, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(x); return nil })
	if err != nil {
		t.Fatal(err)
	}
	lives := record(func(r *claimrecord.Record) { r.Epoch, r.Claims = 8, claimsOf("4-5", "gpu-2") })
	lives.Processes = recovery.Running
	dead := record(func(r *claimrecord.Record) {
		r.Pod, r.Digest, r.Claims = "x", "digest-x", renamed(claimsOf("4-5", "gpu-2"), "x")
	})
	dead.UID, dead.Processes = "x", recovery.Empty
	plan := recovery.Decide(recovery.Input{View: view, Observed: []recovery.Observation{lives, dead}, BootID: boot, Now: now})
	if a, x := plan.Decisions[0], plan.Decisions[1]; a.Content() != theirs || x.Case != recovery.Displaced {
		t.Errorf("%s\n%s", a, x)
	}
}
