package store

import (
	"bytes"
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

// inspection is one look at a whole file. bbolt maps files and follows what it
// reads there: a bad page number or offset is a panic at best and a bus error of the
// process, or an endless loop, at worst. So every page that bbolt could come to
// is looked at first, as plain bytes.
type inspection struct {
	path     string
	data     []byte
	pageSize uint64
	pages    uint64 // the high water mark: ids are below it
	used     []bool // by page id
}

// meta is the part of a meta page that leads to everything else.
type meta struct {
	pageSize             uint32
	root, freelist, high uint64
	txid                 uint64
}

// inspect reads the file at path and checks its pages. Class Corrupt says which
// page is damaged and how.
func inspect(path string) error {
	data, err := readFile(path)
	if err != nil {
		return err
	}
	return inspectData(path, data)
}

// inspectData is inspect of a file's content.
func inspectData(path string, data []byte) error {
	in := inspection{path: path, data: data}
	m, err := in.metas()
	if err != nil {
		return err
	}
	in.pages = m.high
	if in.pages < 2 || in.pages > uint64(len(data))/in.pageSize {
		return in.corrupt(m.txid%2, "the file should have %d pages of %d bytes, it has %d bytes", in.pages, in.pageSize, len(data))
	}
	in.used = make([]bool, in.pages)
	in.used[0], in.used[1] = true, true
	if err := in.tree(m.root, nil, nil); err != nil {
		return err
	}
	if err := in.freelist(m.freelist); err != nil {
		return err
	}
	// A page that says that it is empty leads to nothing. What it led to shows.
	for id, used := range in.used {
		if !used && m.freelist != noFreelist {
			return in.corrupt(uint64(id), "it is neither in use nor free")
		}
	}
	return nil
}

func (in *inspection) corrupt(page uint64, format string, args ...any) error {
	return errdefs.Corruptf("%s: page %d: %s", in.path, page, fmt.Sprintf(format, args...))
}

// metas reads both meta pages and returns the newer one. bbolt would make do
// with one of them; but a meta page is written within one disk sector, so a bad
// one is damage, and the other one may lack the last commit.
func (in *inspection) metas() (meta, error) {
	first, err := in.meta(0, 0)
	if err != nil {
		return meta{}, err
	}
	in.pageSize = uint64(first.pageSize)
	second, err := in.meta(1, in.pageSize)
	if err != nil {
		return meta{}, err
	}
	if second.pageSize != first.pageSize {
		return meta{}, in.corrupt(1, "page size is %d, that of page 0 is %d", second.pageSize, first.pageSize)
	}
	if second.txid > first.txid {
		return second, nil
	}
	return first, nil
}

func (in *inspection) meta(page, at uint64) (meta, error) {
	if at+headerSize+metaSize > uint64(len(in.data)) {
		return meta{}, in.corrupt(page, "the file ends at byte %d", len(in.data))
	}
	header, body := in.data[at:at+headerSize], in.data[at+headerSize:at+headerSize+metaSize]
	n := binary.NativeEndian
	sum := fnv.New64a()
	sum.Write(body[:metaSize-8])
	switch {
	case n.Uint32(body) != magic || n.Uint32(body[4:]) != layoutVersion:
		return meta{}, in.corrupt(page, "this is no meta page of a bbolt file, version 2")
	case n.Uint64(body[metaSize-8:]) != sum.Sum64():
		return meta{}, in.corrupt(page, "the meta page's checksum does not hold")
	case n.Uint64(header) != page || n.Uint16(header[8:]) != metaFlag:
		return meta{}, in.corrupt(page, "the meta page's header is damaged")
	}
	m := meta{
		pageSize: n.Uint32(body[8:]), root: n.Uint64(body[16:]), freelist: n.Uint64(body[32:]),
		high: n.Uint64(body[40:]), txid: n.Uint64(body[48:]),
	}
	if m.pageSize < minPageSize || m.pageSize > maxPageSize || m.pageSize&(m.pageSize-1) != 0 {
		return meta{}, in.corrupt(page, "page size %d is not one", m.pageSize)
	}
	return m, nil
}

// page returns a page with the pages that belong to it, each of which may be
// met only once.
func (in *inspection) page(id uint64) (page, error) {
	if id < 2 || id >= in.pages {
		return page{}, in.corrupt(id, "it is referred to, but pages go from 2 to %d", in.pages-1)
	}
	header := in.data[id*in.pageSize:]
	n := binary.NativeEndian
	p := page{id: id, flags: n.Uint16(header[8:]), count: uint64(n.Uint16(header[10:]))}
	overflow := uint64(n.Uint32(header[12:]))
	if own := n.Uint64(header); own != id {
		return page{}, in.corrupt(id, "its header says that it is page %d", own)
	}
	if overflow >= in.pages-id {
		return page{}, in.corrupt(id, "%d more pages belong to it, %d follow", overflow, in.pages-id-1)
	}
	for i := id; i <= id+overflow; i++ {
		if in.used[i] {
			return page{}, in.corrupt(i, "it is in use twice")
		}
		in.used[i] = true
	}
	p.data = in.data[id*in.pageSize : (id+overflow+1)*in.pageSize]
	return p, nil
}

// page is a branch, leaf or freelist page, or a leaf page inside a bucket's
// value.
type page struct {
	id    uint64 // of the page, or of the one it is inside of
	flags uint16
	count uint64
	data  []byte // header included
}

// element returns the i-th element's words and the bytes it points to, which
// begin at pos bytes from the element; false if they are outside the page.
func (p page) element(i uint64, branch bool) (key, value []byte, word uint64, ok bool) {
	at := headerSize + i*elementSize
	if at+elementSize > uint64(len(p.data)) {
		return nil, nil, 0, false
	}
	n := binary.NativeEndian
	e := p.data[at : at+elementSize]
	var pos, keySize, valueSize uint64
	if branch {
		pos, keySize, word = uint64(n.Uint32(e)), uint64(n.Uint32(e[4:])), n.Uint64(e[8:])
	} else {
		word, pos = uint64(n.Uint32(e)), uint64(n.Uint32(e[4:]))
		keySize, valueSize = uint64(n.Uint32(e[8:])), uint64(n.Uint32(e[12:]))
	}
	start, split, end := at+pos, at+pos+keySize, at+pos+keySize+valueSize
	if start < headerSize+p.count*elementSize || end > uint64(len(p.data)) {
		return nil, nil, 0, false
	}
	return p.data[start:split], p.data[split:end], word, true
}

// tree checks a page and what is below it. Keys must be in [from, to); a nil end
// is open.
func (in *inspection) tree(id uint64, from, to []byte) error {
	p, err := in.page(id)
	if err != nil {
		return err
	}
	switch p.flags {
	case leafFlag:
		return in.leaf(p, from, to)
	case branchFlag:
		return in.branch(p, from, to)
	}
	return in.corrupt(id, "flags %#x are neither those of a branch nor of a leaf", p.flags)
}

func (in *inspection) branch(p page, from, to []byte) error {
	if p.count == 0 {
		return in.corrupt(p.id, "it is a branch without elements")
	}
	if err := in.counted(p, true); err != nil {
		return err
	}
	for i := range p.count {
		key, _, child, ok := p.element(i, true)
		if !ok || len(key) == 0 {
			return in.corrupt(p.id, "element %d points outside the page", i)
		}
		end := to
		if i+1 < p.count {
			if end, _, _, ok = p.element(i+1, true); !ok {
				return in.corrupt(p.id, "element %d points outside the page", i+1)
			}
		}
		if !between(key, from, to) || end != nil && bytes.Compare(key, end) >= 0 {
			return in.corrupt(p.id, "element %d is out of order", i)
		}
		if err := in.tree(child, key, end); err != nil {
			return err
		}
	}
	return nil
}

func (in *inspection) leaf(p page, from, to []byte) error {
	if err := in.counted(p, false); err != nil {
		return err
	}
	var last []byte
	for i := range p.count {
		key, value, flags, ok := p.element(i, false)
		switch {
		case !ok || len(key) == 0:
			return in.corrupt(p.id, "element %d points outside the page", i)
		case !between(key, from, to) || last != nil && bytes.Compare(last, key) >= 0:
			return in.corrupt(p.id, "element %d is out of order", i)
		case flags == bucketFlag:
			if err := in.bucket(p.id, value); err != nil {
				return err
			}
		case flags != 0:
			return in.corrupt(p.id, "element %d has flags %#x", i, flags)
		}
		last = key
	}
	return nil
}

// counted checks that what the first element points to begins right behind the last
// element, as bbolt writes it: the count is not smaller than it was.
func (in *inspection) counted(p page, branch bool) error {
	if p.count == 0 || headerSize+elementSize > len(p.data) {
		return nil
	}
	at := headerSize
	if !branch {
		at += 4
	}
	if pos := uint64(binary.NativeEndian.Uint32(p.data[at:])); pos != p.count*elementSize {
		return in.corrupt(p.id, "it has %d elements, and the first one points to byte %d", p.count, pos)
	}
	return nil
}

// bucket checks what a bucket's value leads to: a tree, or a leaf page in the
// value itself.
func (in *inspection) bucket(id uint64, value []byte) error {
	if len(value) < bucketSize {
		return in.corrupt(id, "a bucket's value has %d bytes", len(value))
	}
	n := binary.NativeEndian
	if root := n.Uint64(value); root != 0 {
		return in.tree(root, nil, nil)
	}
	inline := value[bucketSize:]
	if len(inline) < headerSize || n.Uint16(inline[8:]) != leafFlag {
		return in.corrupt(id, "a bucket inside it is damaged")
	}
	return in.leaf(page{id: id, count: uint64(n.Uint16(inline[10:])), data: inline}, nil, nil)
}

func between(key, from, to []byte) bool {
	return (from == nil || bytes.Compare(key, from) >= 0) && (to == nil || bytes.Compare(key, to) < 0)
}

// freelist checks that the pages that bbolt will write to are nobody's.
func (in *inspection) freelist(id uint64) error {
	if id == noFreelist {
		return nil
	}
	p, err := in.page(id)
	if err != nil {
		return err
	}
	if p.flags != freelistFlag {
		return in.corrupt(id, "flags %#x are not those of a freelist", p.flags)
	}
	n := binary.NativeEndian
	ids, count := p.data[headerSize:], p.count
	if count == countInBody {
		count, ids = n.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids))/8 {
		return in.corrupt(id, "the freelist counts %d pages", count)
	}
	for i := range count {
		free := n.Uint64(ids[i*8:])
		if free < 2 || free >= in.pages || in.used[free] {
			return in.corrupt(id, "the freelist names page %d, which is in use or not there", free)
		}
		in.used[free] = true
	}
	return nil
}
