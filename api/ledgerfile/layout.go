package ledgerfile

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/berthd/berth/managers/errdefs"
)

// The layout of a bbolt file, version 2. Numbers are in the byte order of the
// machine. A page begins with id (8 bytes), flags (2), count (2) and overflow
// (4), the number of pages that follow and belong to it.
const (
	headerSize  = 16
	elementSize = 16 // of branch and leaf pages
	metaSize    = 64
	bucketSize  = 16 // value of a bucket: root page (8), sequence (8)

	branchFlag   = 0x01
	leafFlag     = 0x02
	metaFlag     = 0x04
	freelistFlag = 0x10

	bucketFlag = 0x01 // of a leaf element

	magic         = 0xED0CDAED
	layoutVersion = 2
	noFreelist    = ^uint64(0)
	countInBody   = 0xFFFF // a freelist's count is its first id
	minPageSize   = 1024
	maxPageSize   = 1 << 16
)

// TxidOffset tells where a meta page has the number of its transaction.
const TxidOffset = headerSize + 48

// longestKey is longer than any key of the ledger.
const longestKey = 2048

// meta is the part of a meta page that leads to everything else.
type meta struct {
	pageSize             uint32
	root, freelist, high uint64
	txid                 uint64
}

// readMeta reads the meta page that begins at byte at. Errors of class Corrupt have
// the number of the page.
func readMeta(path string, data []byte, number, at uint64) (meta, error) {
	corrupt := func(format string, args ...any) (meta, error) {
		return meta{}, errdefs.Corruptf("%s: page %d: %s", path, number, fmt.Sprintf(format, args...))
	}
	if at+headerSize+metaSize > uint64(len(data)) {
		return corrupt("the file ends at byte %d", len(data))
	}
	header, body := data[at:at+headerSize], data[at+headerSize:at+headerSize+metaSize]
	n := binary.NativeEndian
	sum := fnv.New64a()
	sum.Write(body[:metaSize-8])
	switch {
	case n.Uint32(body) != magic || n.Uint32(body[4:]) != layoutVersion:
		return corrupt("this is no meta page of a bbolt file, version 2")
	case n.Uint64(body[metaSize-8:]) != sum.Sum64():
		return corrupt("the meta page's checksum does not hold")
	case n.Uint64(header) != number || n.Uint16(header[8:]) != metaFlag:
		return corrupt("the meta page's header is damaged")
	}
	m := meta{
		pageSize: n.Uint32(body[8:]), root: n.Uint64(body[16:]), freelist: n.Uint64(body[32:]),
		high: n.Uint64(body[40:]), txid: n.Uint64(body[48:]),
	}
	if m.pageSize < minPageSize || m.pageSize > maxPageSize || m.pageSize&(m.pageSize-1) != 0 {
		return corrupt("page size %d is not one", m.pageSize)
	}
	return m, nil
}

// page is a page of the file, or a leaf page inside a bucket's value.
type page struct {
	id       uint64 // from its header
	flags    uint16
	count    uint64
	overflow uint64
	// data begins with the header. It extends to the end of the file, because the
	// number of pages that belong to this one may be damaged.
	data []byte
}

func parsePage(data []byte) (page, bool) {
	if len(data) < headerSize {
		return page{}, false
	}
	n := binary.NativeEndian
	return page{
		id: n.Uint64(data), flags: n.Uint16(data[8:]), count: uint64(n.Uint16(data[10:])),
		overflow: uint64(n.Uint32(data[12:])), data: data,
	}, true
}

// first returns where the data of the first element begins, in bytes from the
// element: bbolt writes it right behind the last element.
func (p page) first() uint64 {
	at := headerSize
	if p.flags != branchFlag {
		at += 4
	}
	if headerSize+elementSize > len(p.data) {
		return 0
	}
	return uint64(binary.NativeEndian.Uint32(p.data[at:]))
}

// elements returns the number of elements. The header and the first element both tell
// it, and either may be damaged, so the larger number counts.
func (p page) elements(pageSize uint64) uint64 {
	count := p.count
	if first := p.first(); first%elementSize == 0 {
		count = max(count, first/elementSize)
	}
	return min(count, pageSize/elementSize)
}

// element is an element of a branch or leaf page.
type element struct {
	key, value []byte
	word       uint64 // the child of a branch's element, the flags of a leaf's
	start, end uint64 // of key and value in the page
}

// element returns the i-th element; false if it is outside of the data.
func (p page) element(i uint64) (e element, ok bool) {
	at := headerSize + i*elementSize
	if at+elementSize > uint64(len(p.data)) {
		return e, false
	}
	n, raw := binary.NativeEndian, p.data[at:at+elementSize]
	var pos, keySize, valueSize uint64
	if p.flags == branchFlag {
		pos, keySize, e.word = uint64(n.Uint32(raw)), uint64(n.Uint32(raw[4:])), n.Uint64(raw[8:])
	} else {
		e.word, pos = uint64(n.Uint32(raw)), uint64(n.Uint32(raw[4:]))
		keySize, valueSize = uint64(n.Uint32(raw[8:])), uint64(n.Uint32(raw[12:]))
	}
	e.start, e.end = at+pos, at+pos+keySize+valueSize
	if e.start < headerSize+p.count*elementSize || e.end > uint64(len(p.data)) {
		return e, false
	}
	e.key, e.value = p.data[e.start:e.start+keySize], p.data[e.start+keySize:e.end]
	return e, true
}

// child returns the root page of the bucket that a leaf's element holds; 0 if it is
// no bucket, or its only page is inside the value.
func (e element) child() uint64 {
	if e.word != bucketFlag || len(e.value) < bucketSize {
		return 0
	}
	return binary.NativeEndian.Uint64(e.value)
}
