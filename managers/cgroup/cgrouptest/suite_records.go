package cgrouptest

import (
	"bytes"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/claimrecord"
)

// records gives the tree's claim records, which every tree has.
func (s *suite) records(t *testing.T) cgroup.Records {
	t.Helper()
	records, ok := s.Tree.(cgroup.Records)
	if !ok {
		t.Fatalf("%T keeps no claim records", s.Tree)
	}
	_, err := records.ReadRecord(t.Context(), s.Root)
	if errdefs.ClassOf(err) == errdefs.Unsupported {
		t.Skipf("the kernel keeps no attributes of cgroups: %v", err)
	}
	return records
}

func testRecords(t *testing.T, s *suite) {
	records, name := s.records(t), s.name("pods", "pod")
	s.ensure(t, name, cgroup.Values{})
	holds := func(want []byte) {
		t.Helper()
		if got, err := records.ReadRecord(t.Context(), name); err != nil || !bytes.Equal(got, want) || (got == nil) != (want == nil) {
			t.Fatalf("the record has %d bytes, %v; want %d", len(got), err, len(want))
		}
	}
	write := func(record []byte) {
		t.Helper()
		if err := records.WriteRecord(t.Context(), name, record); err != nil {
			t.Fatal(err)
		}
	}
	holds(nil)
	write(nil) // what is not there can go
	for _, record := range [][]byte{[]byte("first"), []byte("s"), bytes.Repeat([]byte("large "), claimrecord.MaxBytes/6)} {
		write(record)
		holds(record)
	}
	s.ensure(t, name, s.sample(1))
	holds(bytes.Repeat([]byte("large "), claimrecord.MaxBytes/6))
	if got, err := records.ReadRecord(t.Context(), name.Parent()); err != nil || got != nil {
		t.Errorf("the parent has a record of %d bytes, %v", len(got), err)
	}
	write(nil)
	holds(nil)

	// A record goes with its cgroup.
	write([]byte("last"))
	if err := s.Tree.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	s.ensure(t, name, cgroup.Values{})
	holds(nil)
}

func testRecordsOfNobody(t *testing.T, s *suite) {
	records := s.records(t)
	if got, err := records.ReadRecord(t.Context(), s.name("none")); err != nil || got != nil {
		t.Errorf("the record of an absent cgroup: %d bytes, %v", len(got), err)
	}
	if err := records.WriteRecord(t.Context(), s.name("none"), nil); err != nil {
		t.Errorf("no record for an absent cgroup: %v", err)
	}
	if err := records.WriteRecord(t.Context(), s.name("none"), []byte("record")); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("a record for an absent cgroup: %v, want class not found", err)
	}
	for _, bad := range []string{"", "..", "a/b"} {
		if _, err := records.ReadRecord(t.Context(), s.name(bad)); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("read of component %q: %v, want class invalid", bad, err)
		}
		if err := records.WriteRecord(t.Context(), s.name(bad), []byte("r")); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("write of component %q: %v, want class invalid", bad, err)
		}
	}
}
