package store_test

import (
	"path/filepath"
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/server/internal/store"
)

// BenchmarkCommit is the commit of a Guaranteed pod with three containers, each
// with CPUs and memory, one of them with devices, and of its trace: one synced
// transaction. Every second commit takes the pod away again and is not timed.
func BenchmarkCommit(b *testing.B) {
	s, err := store.Open(filepath.Join(b.TempDir(), "berth.db"), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	l, _ := ledgertest.Open(b, options(s))
	commit := func(change func(*ledger.Draft)) {
		d := ledger.NewDraft(l.View())
		change(d)
		if _, err := l.Commit(b.Context(), d); err != nil {
			b.Fatal(err)
		}
	}
	p := guaranteed("pod")
	for b.Loop() {
		commit(func(d *ledger.Draft) { d.PutPod(p) })
		b.StopTimer()
		commit(func(d *ledger.Draft) { d.RemovePod("pod") })
		b.StartTimer()
	}
}

func guaranteed(uid string) *ledger.Pod {
	p := ledgertest.With(ledgertest.Pod(uid, "one", "two", "three"),
		ledgertest.Exclusive("one", "2-3"), ledgertest.Exclusive("two", "4-5"), ledgertest.Exclusive("three", "6-7"),
		ledgertest.Memory("one", "memory", "0", 1<<30), ledgertest.Memory("two", "memory", "0", 1<<30),
		ledgertest.Memory("three", "memory", "0", 1<<30),
		ledgertest.Devices("three", "vendor.com/gpu", "gpu-0", "gpu-1"))
	p.Trace = &ledger.Trace{AdmissionID: p.AdmissionID, Pod: uid, Admitted: true}
	for _, c := range p.Claims {
		p.Trace.Add(ledger.Step{Kind: ledger.StepAnswered, Container: c.Owner.Container, Provider: c.Provider, Resource: c.Resource,
			Answer: "options",
			Hints:  []ledger.Affinity{{Nodes: 1, Preferred: true}, {Nodes: 2, Preferred: true}, {Nodes: 3}}})
		p.Trace.Add(ledger.Step{Kind: ledger.StepPlanned, Container: c.Owner.Container, Claim: &c})
	}
	return p
}
