package ledgerfile

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/berthd/berth/managers/errdefs"
)

// walker reads a bbolt file as bytes, from a root page downwards, and notes each contradiction.
// bbolt maps files and follows their page numbers and offsets without checks. A wrong one causes
// a panic, a bus error of the process, or an endless loop. Check therefore walks through a file
// before bbolt opens it. If anything is noted, Salvage reads the pages that the walk has reached.
type walker struct {
	path     string
	data     []byte
	pageSize uint64
	slots    uint64 // pages in the file, a broken last one included

	unread []string // the notes
	more   int      // notes that are not in unread

	reached map[uint64]string   // pages that the root leads to, with their buckets
	broken  map[uint64]struct{} // pages that are referred to but unreadable; slots for those beyond the file
	used    []bool              // pages reached, and the pages that belong to them
}

// maxUnread bounds the notes.
const maxUnread = 50

// Check checks the pages of a file, and returns how many of its bytes no page of the state uses. An
// error of class Corrupt names the damaged page and the damage; name is the file's in errors.
func Check(name string, data []byte) (free int64, err error) {
	w, err := check(name, data)
	for _, used := range w.used {
		if !used {
			free += int64(w.pageSize)
		}
	}
	return free, err
}

// check walks through a file, and returns the walker if nothing is damaged.
func check(name string, data []byte) (walker, error) {
	w := walker{path: name, data: data}
	m, err := w.metas()
	if err != nil {
		return w, err
	}
	w.measure(uint64(m.pageSize))
	w.walk(m.root, m.high)
	if free, ok := w.freePages(m); ok {
		w.account(free, m.high)
	}
	if len(w.unread) > 0 {
		return w, errdefs.Corruptf("%s", w.unread[0])
	}
	return w, nil
}

// note adds something that is wrong with the file.
func (w *walker) note(format string, args ...any) {
	if len(w.unread) < maxUnread {
		w.unread = append(w.unread, w.path+": "+fmt.Sprintf(format, args...))
	} else {
		w.more++
	}
}

// measure sets the page size.
func (w *walker) measure(pageSize uint64) {
	w.pageSize, w.slots = pageSize, (uint64(len(w.data))+pageSize-1)/pageSize
}

// metas reads both meta pages and returns the newer one. bbolt would accept one of them. But a
// meta page is written within one disk sector, so a bad one is damage, and the other one may lack
// the last commit.
func (w *walker) metas() (meta, error) {
	first, err := readMeta(w.path, w.data, 0, 0)
	if err != nil {
		return meta{}, err
	}
	second, err := readMeta(w.path, w.data, 1, uint64(first.pageSize))
	if err != nil {
		return meta{}, err
	}
	if second.pageSize != first.pageSize {
		return meta{}, errdefs.Corruptf("%s: page 1: page size is %d, that of page 0 is %d", w.path, second.pageSize, first.pageSize)
	}
	if second.txid > first.txid {
		return second, nil
	}
	return first, nil
}

// page returns the page at a slot; false where the file ends before it.
func (w *walker) page(slot uint64) (page, bool) {
	if slot >= w.slots {
		return page{}, false
	}
	return parsePage(w.data[slot*w.pageSize:])
}

// step is a page to walk to. Its keys must be in [from, to); nil is open.
type step struct {
	slot     uint64
	bucket   []byte // its name; nil above the buckets
	from, to []byte
}

// walk follows the tree from its root, and skips damaged parts. Each page is read only once, even
// in a forged file.
func (w *walker) walk(root, high uint64) {
	w.reached, w.broken = map[uint64]string{}, map[uint64]struct{}{}
	w.used = make([]bool, w.slots)
	if high < 2 || high > uint64(len(w.data))/w.pageSize {
		w.note("the file should have %d pages of %d bytes, it has %d bytes", high, w.pageSize, len(w.data))
	}
	for todo := []step{{slot: root}}; len(todo) > 0; {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if p, ok := w.reach(at, high); ok {
			todo = w.read(p, at, todo)
		}
	}
}

// reach takes a page into the tree; false if it is damaged, or part of it already.
func (w *walker) reach(at step, high uint64) (page, bool) {
	if _, ok := w.reached[at.slot]; ok {
		w.note("page %d: it is in use twice", at.slot)
		return page{}, false
	}
	p, ok := w.page(at.slot)
	switch {
	case !ok || at.slot < 2:
		w.note("page %d: it is referred to, but pages go from 2 to %d", at.slot, w.slots-1)
	case p.id != at.slot || p.flags != branchFlag && p.flags != leafFlag:
		w.note("page %d: its header is damaged: page %d, flags %#x", at.slot, p.id, p.flags)
	default:
		w.reached[at.slot] = string(at.bucket)
		w.use(p, high)
		return p, true
	}
	w.broken[min(at.slot, w.slots)] = struct{}{}
	return page{}, false
}

// use marks a page and its overflow pages.
func (w *walker) use(p page, high uint64) {
	high = min(high, w.slots)
	if p.id >= high || p.overflow >= high-p.id {
		w.note("page %d: it has %d overflow pages, but pages go from 2 to %d", p.id, p.overflow, high-1)
		return
	}
	for i := p.id; i <= p.id+p.overflow; i++ {
		if w.used[i] {
			w.note("page %d: it is in use twice", i)
			return // so each page is marked once, however many claim it
		}
		w.used[i] = true
	}
}

// read checks the elements of a page, and adds the pages that they lead to.
func (w *walker) read(p page, at step, todo []step) []step {
	own := min((p.overflow+1)*w.pageSize, uint64(len(p.data)))
	children := len(todo)
	w.elements(p, own, at, func(e element) {
		switch {
		case p.flags == branchFlag:
			if len(todo) > children {
				todo[len(todo)-1].to = e.key
			}
			todo = append(todo, step{slot: e.word, bucket: at.bucket, from: e.key, to: at.to})
		case e.word == 0:
		case e.word != bucketFlag || at.bucket != nil:
			w.note("page %d: an element has flags %#x", p.id, e.word)
		case e.child() != 0:
			todo = append(todo, step{slot: e.child(), bucket: e.key})
		default:
			w.inline(p.id, e.value)
		}
	})
	return todo
}

// elements checks the positions of the elements of a page, and calls each for readable ones. own
// is the size of the page.
func (w *walker) elements(p page, own uint64, at step, each func(element)) {
	n := p.elements(w.pageSize)
	if n != p.count || n > 0 && p.first() != n*elementSize {
		w.note("page %d: it has %d elements, and the first one points to byte %d", p.id, p.count, p.first())
	}
	if n == 0 && p.flags == branchFlag {
		w.note("page %d: it is a branch without elements", p.id)
	}
	last, end := at.from, uint64(headerSize)
	for i := range n {
		e, ok := p.element(i)
		switch {
		case !ok, len(e.key) == 0, len(e.key) > longestKey:
			w.note("page %d: element %d points outside the page", p.id, i)
			continue
		case e.start < end || e.end > own:
			w.note("page %d: element %d points outside the page, or into another element", p.id, i)
			if p.flags != branchFlag && e.child() == 0 {
				continue // elements that share no byte take linear time
			}
		case i > 0 && bytes.Compare(e.key, last) <= 0, bytes.Compare(e.key, last) < 0,
			at.to != nil && bytes.Compare(e.key, at.to) >= 0:
			w.note("page %d: element %d is out of order", p.id, i)
		}
		last, end = e.key, e.end
		each(e)
	}
}

// inline checks a bucket whose only page is inside its value. Such a bucket has no nested
// buckets.
func (w *walker) inline(id uint64, value []byte) {
	p, ok := inlinePage(value)
	if !ok || p.flags != leafFlag {
		w.note("page %d: a bucket inside it is damaged", id)
		return
	}
	p.id = id
	w.elements(p, uint64(len(p.data)), step{}, func(e element) {
		if e.word != 0 {
			w.note("page %d: an element of a bucket inside it has flags %#x", id, e.word)
		}
	})
}

// inlinePage returns the page inside a bucket's value.
func inlinePage(value []byte) (page, bool) {
	if len(value) < bucketSize {
		return page{}, false
	}
	return parsePage(value[bucketSize:])
}

// freePages reads the freelist; false if it is damaged, or the file has none.
func (w *walker) freePages(m meta) (free map[uint64]struct{}, ok bool) {
	if m.freelist == noFreelist {
		return nil, false
	}
	p, ok := w.page(m.freelist)
	if !ok || m.freelist < 2 || p.id != m.freelist || p.flags != freelistFlag {
		w.note("page %d: the freelist is damaged", m.freelist)
		return nil, false
	}
	w.use(p, m.high)
	ids, count := p.data[headerSize:], p.count
	if count == countInBody && len(ids) >= 8 {
		count, ids = binary.NativeEndian.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids))/8 {
		w.note("page %d: the freelist counts %d pages", m.freelist, count)
		return nil, false
	}
	free, last := map[uint64]struct{}{}, uint64(1)
	for i := range count {
		next := binary.NativeEndian.Uint64(ids[i*8:])
		if next <= last || next >= m.high {
			w.note("page %d: the freelist names page %d after page %d", m.freelist, next, last)
			return nil, false
		}
		free[next], last = struct{}{}, next
	}
	return free, true
}

// account checks that every page is either in use or free. If a damaged page looks empty, the
// pages that it led to are neither. It returns the pages that are both.
func (w *walker) account(free map[uint64]struct{}, high uint64) (both []uint64) {
	var neither []uint64
	for id := uint64(2); id < min(high, w.slots); id++ {
		switch _, ok := free[id]; {
		case ok && w.used[id]:
			both = append(both, id)
		case !ok && !w.used[id]:
			neither = append(neither, id)
		}
	}
	w.noteAll(both, "in use and free")
	w.noteAll(neither, "neither in use nor free")
	return both
}

func (w *walker) noteAll(pages []uint64, what string) {
	if len(pages) > 0 {
		w.note("page %d: it is %s (%d such pages)", pages[0], what, len(pages))
	}
}
