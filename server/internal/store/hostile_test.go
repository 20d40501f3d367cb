package store_test

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/berthd/berth/api/ledgerfile"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/server/internal/store"
)

// Numbers of bbolt's layout.
const (
	pageBytes = 4096
	branch    = 0x01
	leaf      = 0x02
	freelist  = 0x10
	// none is where a file without a list of free pages has it.
	none = ^uint64(0)
)

// crafted is a page written by hand. at is where the elements point to, if not to their data
// in order; count and overflow are the header's, if not the real ones.
type crafted struct {
	flags    uint16
	count    int
	overflow uint32
	elements []craftedElement
	body     []byte // behind the elements
}

type craftedElement struct {
	word       uint64 // the child of a branch's element, the flags of a leaf's
	pos        uint32 // from the element; 0 for the body's beginning
	key, value uint32 // sizes
}

// bytes returns the page, without its id.
func (c crafted) bytes() []byte {
	n := binary.NativeEndian
	count := c.count
	if count == 0 {
		count = len(c.elements)
	}
	out := n.AppendUint64(nil, 0)
	out = n.AppendUint32(n.AppendUint16(n.AppendUint16(out, c.flags), uint16(count)), c.overflow)
	for i, e := range c.elements {
		if e.pos == 0 {
			e.pos = uint32(16 * (len(c.elements) - i))
		}
		if c.flags == branch {
			out = n.AppendUint64(n.AppendUint32(n.AppendUint32(out, e.pos), e.key), e.word)
			continue
		}
		for _, word := range []uint32{uint32(e.word), e.pos, e.key, e.value} {
			out = n.AppendUint32(out, word)
		}
	}
	return append(out, c.body...)
}

// file puts pages behind two meta pages that lead to root and free.
func file(root, free, high uint64, pages ...[]byte) []byte {
	n := binary.NativeEndian
	out := []byte{}
	for id := range uint64(2) {
		page := n.AppendUint32(n.AppendUint16(n.AppendUint16(n.AppendUint64(nil, id), 0x04), 0), 0)
		body := []byte{}
		for _, word := range []uint32{0xED0CDAED, 2, pageBytes, 0} {
			body = n.AppendUint32(body, word)
		}
		for _, word := range []uint64{root, 0, free, high, id + 8} {
			body = n.AppendUint64(body, word)
		}
		sum := fnv.New64a()
		sum.Write(body)
		page = n.AppendUint64(append(page, body...), sum.Sum64())
		out = append(out, append(page, make([]byte, pageBytes-len(page))...)...)
	}
	for _, page := range pages {
		page = append(page, make([]byte, (pageBytes-len(page)%pageBytes)%pageBytes)...)
		n.PutUint64(page, uint64(len(out)/pageBytes))
		out = append(out, page...)
	}
	return out
}

// bucketOf is the value of a bucket whose root is a page.
func bucketOf(root uint64) []byte {
	return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, root), 0)
}

// repeated is a page of as many elements as have room in its header's count, all alike.
func repeated(flags uint16, e craftedElement, body []byte) []byte {
	const many = 4000
	c := crafted{flags: flags, body: body}
	for range many {
		c.elements = append(c.elements, e)
	}
	for i := range c.elements { // all point to the same bytes
		c.elements[i].pos = uint32(16 * (many - i))
	}
	return c.bytes()
}

// hostileFiles are files made to harm their readers.
func hostileFiles() map[string][]byte {
	name := []byte("pods")
	self := crafted{flags: branch, elements: []craftedElement{{word: 2, key: 4}}, body: name}.bytes()
	loop := crafted{flags: leaf, elements: []craftedElement{{word: 1, key: 4, value: 16}},
		body: append(bytes.Clone(name), bucketOf(2)...)}.bytes()
	deep := [][]byte{}
	for id := range uint64(2000) {
		deep = append(deep, crafted{flags: branch, elements: []craftedElement{{word: id + 3, key: 4}}, body: name}.bytes())
	}
	// A bucket inside a value, of thousands of elements with long keys, thousands of times.
	key := bytes.Repeat([]byte("k"), 2000)
	inner := repeated(leaf, craftedElement{key: 2000, value: 1}, append(bytes.Clone(key), 'v'))
	bomb := repeated(leaf, craftedElement{word: 1, key: 4, value: uint32(16 + len(inner))},
		append(append(bytes.Clone(name), bucketOf(0)...), inner...))
	sealed := `{"crc":"00000000","value":"` + strings.Repeat("v", 2<<20) + `"}`
	large := repeated(leaf, craftedElement{key: 4, value: uint32(len(sealed))}, append(bytes.Clone(name), sealed...))
	nested := strings.Repeat(`{"crc":"00000000","value":`, 60_000)
	flat := strings.Repeat(`{"crc":"00000000","value":1}`, 10_000)
	return map[string][]byte{
		"a branch that leads to itself": file(2, none, 3, self),
		"two branches in a circle": file(2, none, 4, crafted{flags: branch, elements: []craftedElement{{word: 3, key: 4}},
			body: name}.bytes(), self),
		"a bucket that is its own page": file(2, none, 3, loop),
		"a branch of one page, often":   file(2, none, 4, repeated(branch, craftedElement{word: 3, key: 4}, name), loop),
		"a long way down":               file(2, none, 2002, deep...),
		"a child behind the file": file(2, none, 3, crafted{flags: branch, elements: []craftedElement{{word: 1 << 62, key: 4}},
			body: name}.bytes()),
		"a child among the meta pages": file(2, none, 3, crafted{flags: branch, elements: []craftedElement{{word: 1, key: 4}},
			body: name}.bytes()),
		"a root behind the file":    file(1<<63, none, 3, loop),
		"a root of the last number": file(none, none, none, loop),
		"a bucket behind the file": file(2, none, 3, crafted{flags: leaf, elements: []craftedElement{{word: 1, key: 4, value: 16}},
			body: append(bytes.Clone(name), bucketOf(none)...)}.bytes()),
		"more elements than there are": file(2, none, 3, crafted{flags: leaf, count: 0xffff,
			elements: []craftedElement{{key: 4, value: 4}}, body: []byte("podspods")}.bytes()),
		"more pages than there are": file(2, none, 3, crafted{flags: leaf, overflow: 0xffffffff,
			elements: []craftedElement{{key: 4, value: 4}}, body: []byte("podspods")}.bytes()),
		"a key of four gigabytes": file(2, none, 3, crafted{flags: leaf,
			elements: []craftedElement{{key: 0xffffffff, value: 0xffffffff}}}.bytes()),
		"an element far away": file(2, none, 3, crafted{flags: leaf,
			elements: []craftedElement{{pos: 0xfffffff0, key: 4}}}.bytes()),
		"free pages without end": file(2, 3, 4, loop, append(crafted{flags: freelist, count: 0xffff}.bytes(),
			bytes.Repeat([]byte{0xff}, 8)...)),
		"free pages that are in use": file(2, 3, 4, loop, append(crafted{flags: freelist, count: 1}.bytes(), 2, 0, 0, 0, 0, 0, 0, 0)),
		"a page of two pages, twice": file(2, none, 5, crafted{flags: branch,
			elements: []craftedElement{{word: 3, key: 4}, {word: 4, key: 4}}, body: []byte("podspodt")}.bytes(),
			crafted{flags: leaf, overflow: 1}.bytes(), crafted{flags: leaf}.bytes()),
		"buckets inside buckets, often": file(2, none, 200, bomb),
		"one large value, often":        file(2, none, 800, large),
		"values inside values":          file(2, none, 800, append(crafted{flags: leaf, overflow: 500}.bytes(), nested...)),
		"values without their sums":     file(2, none, 800, append(crafted{flags: leaf, count: 9, overflow: 500}.bytes(), flat...)),
		"only values":                   []byte(flat),
		"only beginnings of values":     []byte(nested),
		"only the beginning":            file(2, none, 3)[:pageBytes+100],
		"pages in each other's places":  file(2, none, 4, loop, self),
	}
}

// TestHostileFiles: who can put a file in the ledger's place gains no more than that it is
// refused: at a start, at a check that only reads, and when what is whole in it is read,
// berthd ends, and takes no more memory than a multiple of the file.
func TestHostileFiles(t *testing.T) {
	for name, data := range hostileFiles() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state", "ledger.db")
			write := func() {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write()
			s := mustOpen(t, path, store.Options{ReadOnly: true})
			if _, _, err := journal.Open(t.Context(), options(s)); errdefs.ClassOf(err) != errdefs.Corrupt {
				t.Errorf("a check says %v", err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			found := ledgerfile.Salvage(path, data)
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > uint64(128<<20+64*len(data)) {
				t.Errorf("%d MiB for a file of %d KiB", took>>20, len(data)>>10)
			}
			if len(found.Unread) == 0 {
				t.Error("nothing is noted")
			}
			s = mustOpen(t, path, store.Options{})
			defer s.Close()
			l, _, damage, err := s.OpenLedger(t.Context(), options(nil), noon)
			if err != nil || damage == nil || l.View().Generation() == 0 && damage.SetAside == "" {
				t.Fatalf("a start: %v, damage %+v", err, damage)
			}
		})
	}
}

// TestHugeFile: a file that is larger than any ledger is not read, whatever is in it.
func TestHugeFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	if err := os.WriteFile(path, file(2, none, 3, crafted{flags: leaf}.bytes()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Skipf("the file system has no files of 1 TiB: %v", err)
	}
	for _, o := range []store.Options{{}, {ReadOnly: true}} {
		_, err := store.Open(path, o)
		if errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), path) {
			t.Errorf("read only %t: %v", o.ReadOnly, err)
		}
	}
}
