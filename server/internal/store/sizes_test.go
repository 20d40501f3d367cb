package store_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/berthd/berth/api/ledgerfile"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/server/internal/store"
)

// TestDamagedSizes: elements that claim to be as large as the file cost no more memory
// than the file does.
func TestDamagedSizes(t *testing.T) { // beside other tests nothing could be measured
	const page, elements, leaf = 4096, 16, 2
	path := filepath.Join(t.TempDir(), "berth.db")
	s := mustOpen(t, path, store.Options{})
	var entries []journal.Entry
	for i := range 10000 {
		entries = append(entries, journal.Entry{Bucket: journal.BucketPods, Key: fmt.Sprint(i), Value: make([]byte, 50)})
	}
	if err := s.Commit(t.Context(), 1, entries); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.NativeEndian
	spoiled := 0
	for at := 2 * page; at+page <= len(data) && spoiled < 20; at += page {
		if n.Uint16(data[at+8:]) != leaf {
			continue
		}
		spoiled++
		for i := range int(n.Uint16(data[at+10:])) {
			element := at + elements + elements*i
			size := n.Uint32(data[element+4:]) + n.Uint32(data[element+8:])
			n.PutUint32(data[element+12:], uint32(len(data)-element)-size)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ledgerfile.Salvage(path, data)
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; spoiled < 20 || used > 32*uint64(len(data)) {
		t.Errorf("a file of %d bytes with %d such pages took %d bytes", len(data), spoiled, used)
	}
}
