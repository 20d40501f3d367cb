package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/berthd/berth/managers/ledger"
)

// rawReader takes out of a file with damaged pages what can be taken. It believes
// nothing but checksums, and follows the file's own references only to tell what is
// in use from what was freed: a page that was freed still has what stood there, such
// as a pod that has been removed.
//
// A page is in use if the newest meta page leads to it, or if it is not in that
// meta page's freelist. Entries of pages of the first kind are the file's state;
// those of the second kind belong to it as well, as far as the freelist is right, and
// are loose; all others are stale.
type rawReader struct {
	inspection
	slots  uint64 // pages in the file, a broken last one included
	unread []string
	more   int // that are not in unread

	reached map[uint64]string   // pages that the root leads to, with their buckets
	broken  map[uint64]string   // pages that are referred to, but are not readable as such
	free    map[uint64]struct{} // nil if it is not known
}

// maxUnread bounds the report.
const maxUnread = 50

// salvagePages reads the file at path. What cannot be read is told in Unread.
func salvagePages(path string) (ledger.Found, error) {
	data, err := readFile(path)
	if err != nil {
		return ledger.Found{}, err
	}
	return readPages(path, data), nil
}

// readPages reads a whole file of any content.
func readPages(path string, data []byte) ledger.Found {
	r := &rawReader{inspection: inspection{path: path, data: slices.Clone(data)}}
	if err := inspectData(path, data); err != nil {
		r.note("%v", err)
	}
	if r.findMetas(); r.pageSize == 0 {
		r.pageSize = r.guessPageSize()
	}
	r.slots = (uint64(len(data)) + r.pageSize - 1) / r.pageSize
	r.unswap() // maybe also a meta page
	metas, whole := r.findMetas()
	found := r.state(metas, whole)
	found.Unread = r.unread
	if r.more > 0 {
		found.Unread = append(found.Unread, fmt.Sprintf("and %d more places", r.more))
	}
	return found
}

// note adds something to the report.
func (r *rawReader) note(format string, args ...any) {
	if len(r.unread) < maxUnread {
		r.unread = append(r.unread, fmt.Sprintf(format, args...))
	} else {
		r.more++
	}
}

// findMetas returns the meta pages that are sound, or that one flipped bit keeps from
// being so, the newest first; whole tells that these are both.
func (r *rawReader) findMetas() (metas []meta, whole bool) {
	if m, ok := r.repaired(0, 0); ok {
		metas, r.pageSize = append(metas, m), uint64(m.pageSize)
	}
	for size := uint64(minPageSize); size <= maxPageSize; size *= 2 {
		if r.pageSize != 0 && size != r.pageSize {
			continue
		}
		if m, ok := r.repaired(1, size); ok && uint64(m.pageSize) == size {
			metas, r.pageSize = append(metas, m), size
			break
		}
	}
	slices.SortFunc(metas, func(a, b meta) int {
		if a.txid > b.txid {
			return -1
		}
		return 1
	})
	return metas, len(metas) == 2
}

// repaired reads a meta page, and if it is damaged tries whether one bit is all that
// is wrong: the page has a checksum of 64 bits. Transactions take turns with the two
// pages, so a copy of the other page shows.
func (r *rawReader) repaired(page, at uint64) (meta, bool) {
	if m, err := r.meta(page, at); err == nil {
		return m, m.txid%2 == page
	}
	if at+headerSize+metaSize > uint64(len(r.data)) {
		return meta{}, false
	}
	part := r.data[at : at+headerSize+metaSize]
	for bit := range len(part) * 8 {
		part[bit/8] ^= 1 << (bit % 8)
		if m, err := r.meta(page, at); err == nil && m.txid%2 == page {
			return m, true
		}
		part[bit/8] ^= 1 << (bit % 8)
	}
	return meta{}, false
}

// guessPageSize returns the size for which most pages have their own numbers.
func (r *rawReader) guessPageSize() uint64 {
	best, most := uint64(os.Getpagesize()), 0
	for size := uint64(minPageSize); size <= maxPageSize; size *= 2 {
		hits := 0
		for id := uint64(2); (id+1)*size <= uint64(len(r.data)); id++ {
			if binary.NativeEndian.Uint64(r.data[id*size:]) == id {
				hits++
			}
		}
		if hits > most {
			best, most = size, hits
		}
	}
	return best
}

// header returns the header of a page; false where the file ends before it.
func (r *rawReader) header(slot uint64) (id uint64, flags uint16, count, overflow uint64, ok bool) {
	at := slot * r.pageSize
	if slot >= r.slots || at+headerSize > uint64(len(r.data)) {
		return 0, 0, 0, 0, false
	}
	h, n := r.data[at:], binary.NativeEndian
	return n.Uint64(h), n.Uint16(h[8:]), uint64(n.Uint16(h[10:])), uint64(n.Uint32(h[12:])), true
}

// unswap puts pairs of pages back that stand in each other's places.
func (r *rawReader) unswap() {
	for slot := uint64(0); (slot+1)*r.pageSize <= uint64(len(r.data)); slot++ {
		other, _, _, _, _ := r.header(slot)
		if other <= slot || (other+1)*r.pageSize > uint64(len(r.data)) {
			continue
		}
		if back, _, _, _, _ := r.header(other); back != slot {
			continue
		}
		a, b := r.data[slot*r.pageSize:(slot+1)*r.pageSize], r.data[other*r.pageSize:(other+1)*r.pageSize]
		swapped := bytes.Clone(a)
		copy(a, b)
		copy(b, swapped)
		r.note("%s: pages %d and %d were in each other's places", r.path, slot, other)
	}
}

// state finds the newest state and sorts the entries of all pages by how far they can
// be believed.
func (r *rawReader) state(metas []meta, whole bool) ledger.Found {
	var found ledger.Found
	if len(metas) > 0 {
		r.walk(metas[0].root, metas[0].high)
		if free, ok := r.freePages(metas[0]); ok {
			found.Behind = r.compare(free)
		}
	}
	if !whole {
		known, _ := r.generation(r.entriesOf(r.inReach))
		newest, at := r.newestGeneration()
		switch {
		case len(metas) > 0 && newest <= known && len(r.broken) == 0:
			// Nothing newer has ever been written.
		case newest > known && r.climb(at):
			r.note("%s: no meta page leads to the newest state; it was found at generation %d", r.path, newest)
			if !ledger.Complete(r.entriesOf(r.inReach)) {
				found.Behind = behind
			}
		default:
			found.Behind = behind
		}
	}
	found.Entries = r.entriesOf(r.inReach)
	found.Loose = r.entriesOf(r.isLoose)
	found.Stale = r.entriesOf(func(slot uint64) bool { return !r.inReach(slot) && !r.isLoose(slot) })
	return found
}

const behind = "a page that leads to the newest state of the file is damaged, so the last commit may be missing"

func (r *rawReader) inReach(slot uint64) bool { _, ok := r.reached[slot]; return ok }

// isLoose reports whether a page is in use although nothing readable leads to it.
func (r *rawReader) isLoose(slot uint64) bool {
	if r.inReach(slot) {
		return false
	}
	if _, ok := r.broken[slot]; ok {
		id, _, _, _, _ := r.header(slot)
		_, freed := r.free[id]
		return id == slot || !freed
	}
	if r.free == nil {
		return false
	}
	id, _, _, _, _ := r.header(slot)
	_, freedHere := r.free[slot]
	_, freedThere := r.free[id]
	return !freedHere && !freedThere
}

// walk follows the tree from its root, past what is damaged.
func (r *rawReader) walk(root, high uint64) {
	r.reached, r.broken = map[uint64]string{}, map[uint64]string{}
	r.pages = min(high, r.slots)
	if high > r.slots {
		r.note("%s: the file should have %d pages, it has %d", r.path, high, r.slots)
	}
	type step struct {
		slot   uint64
		bucket string
	}
	for todo := []step{{root, ""}}; len(todo) > 0; {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if _, ok := r.reached[at.slot]; ok {
			r.note("%s: page %d is referred to twice", r.path, at.slot)
			continue
		}
		id, flags, count, _, ok := r.header(at.slot)
		switch {
		case !ok || at.slot < 2:
			r.note("%s: page %d is not there", r.path, at.slot)
			r.broken[at.slot] = at.bucket
			continue
		case id != at.slot || flags != branchFlag && flags != leafFlag:
			r.note("%s: page %d: its header is damaged", r.path, at.slot)
			r.broken[at.slot] = at.bucket
			continue
		}
		r.reached[at.slot] = at.bucket
		p := page{id: at.slot, count: count, data: r.data[at.slot*r.pageSize:]}
		if flags == branchFlag {
			for i := range min(count, r.pageSize/elementSize) {
				if _, _, child, ok := p.element(i, true); ok {
					todo = append(todo, step{child, at.bucket})
				} else {
					r.note("%s: page %d: element %d points outside the page", r.path, at.slot, i)
				}
			}
			continue
		}
		if at.bucket != "" {
			continue
		}
		for i := range r.elements(at.slot) {
			if name, value, flags, ok := p.element(i, false); ok && flags == bucketFlag && len(value) >= bucketSize {
				if child := binary.NativeEndian.Uint64(value); child != 0 {
					todo = append(todo, step{child, string(name)})
				}
			}
		}
	}
}

// freePages reads the freelist.
func (r *rawReader) freePages(m meta) (free map[uint64]struct{}, ok bool) {
	id, flags, count, _, ok := r.header(m.freelist)
	if !ok || id != m.freelist || flags != freelistFlag {
		r.note("%s: page %d: the freelist is damaged", r.path, m.freelist)
		return nil, false
	}
	ids := r.data[m.freelist*r.pageSize+headerSize:]
	if count == countInBody && len(ids) >= 8 {
		count, ids = binary.NativeEndian.Uint64(ids), ids[8:]
	}
	free = map[uint64]struct{}{m.freelist: {}}
	last := uint64(1)
	for i := range min(count, uint64(len(ids))/8) {
		next := binary.NativeEndian.Uint64(ids[i*8:])
		if next <= last || next >= m.high {
			r.note("%s: page %d: the freelist is damaged", r.path, m.freelist)
			return nil, false
		}
		free[next], last = struct{}{}, next
	}
	return free, true
}

// compare holds the freelist against the pages that the root leads to. A page cannot
// be of both: either the freelist is damaged, or what leads to the page is, and it is
// a page that was freed. The tree is right if it has all that it should have.
func (r *rawReader) compare(free map[uint64]struct{}) (behind string) {
	var both []uint64
	for slot := range r.reached {
		if _, ok := free[slot]; ok {
			both = append(both, slot)
		}
	}
	if len(both) == 0 {
		r.free = free
		return ""
	}
	slices.Sort(both)
	r.note("%s: pages %d are in use and free", r.path, both)
	if !ledger.Complete(r.entriesOf(r.inReach)) {
		for _, slot := range both {
			delete(r.reached, slot)
		}
		r.free = free
	}
	return "the file's tree and its list of free pages contradict each other"
}

// elements returns how many elements a leaf page has. Either of the two places that
// tell may be damaged, so the larger number counts.
func (r *rawReader) elements(slot uint64) uint64 {
	_, _, count, _, _ := r.header(slot)
	p := page{data: r.data[slot*r.pageSize:]}
	if headerSize+elementSize <= uint64(len(p.data)) {
		first := uint64(binary.NativeEndian.Uint32(p.data[headerSize+4:]))
		if first%elementSize == 0 {
			count = max(count, first/elementSize)
		}
	}
	return min(count, r.pageSize/elementSize)
}

// entriesOf returns the entries of pages: of those in reach also the damaged ones.
func (r *rawReader) entriesOf(which func(slot uint64) bool) []ledger.Entry {
	var all []ledger.Entry
	for slot := uint64(2); slot < r.slots; slot++ {
		if !which(slot) {
			continue
		}
		entries, whole := r.leaf(slot)
		if !whole {
			entries = r.scan(slot, entries)
		}
		all = append(all, entries...)
	}
	return all
}

// leaf returns the entries of a page as a leaf, and whether all elements were
// readable.
func (r *rawReader) leaf(slot uint64) (entries []ledger.Entry, whole bool) {
	id, flags, count, _, ok := r.header(slot)
	bucket, reached := r.reached[slot]
	if !ok || reached && flags == branchFlag || id == slot && flags == freelistFlag {
		return nil, true
	}
	p := page{id: slot, data: r.data[slot*r.pageSize:]}
	n := r.elements(slot)
	whole = n == count && id == slot && flags == leafFlag
	for i := range n {
		key, value, flags, ok := p.element(i, false)
		if !ok || len(key) == 0 || len(key) > longestKey {
			whole = false
			continue
		}
		if flags == bucketFlag && len(value) > bucketSize+headerSize {
			inline, all := r.inline(string(key), value, reached)
			entries, whole = append(entries, inline...), whole && all
			continue
		}
		e, sound := entryOf(bucket, key, value)
		whole = whole && sound
		// Nothing but a checksum makes an entry of what only looks like one.
		if sound || reached && bucket != "" {
			entries = append(entries, e)
		}
	}
	return entries, whole
}

// inline returns the entries of a small bucket, whose page is inside a value.
func (r *rawReader) inline(bucket string, value []byte, reached bool) (entries []ledger.Entry, whole bool) {
	p := page{data: value[bucketSize:]}
	p.count = uint64(binary.NativeEndian.Uint16(p.data[10:]))
	whole = true
	for i := range min(p.count, r.pageSize/elementSize) {
		key, value, _, ok := p.element(i, false)
		if !ok || len(key) == 0 || len(key) > longestKey {
			whole = false
			continue
		}
		e, sound := entryOf(bucket, key, value)
		whole = whole && sound
		if sound || reached {
			entries = append(entries, e)
		}
	}
	return entries, whole
}

// longestKey is more than any key of the ledger's has.
const longestKey = 2048

// entryOf makes an entry; its checksum knows better to which bucket it belongs. The
// value stays in the file's data: elements of damaged pages can be as large as the file.
func entryOf(bucket string, key, value []byte) (e ledger.Entry, sound bool) {
	own, sound := ledger.BucketOf(string(key), value)
	if sound {
		bucket = own
	}
	return ledger.Entry{Bucket: bucket, Key: string(key), Value: value}, sound
}

// end returns the page after those that belong to one. They have no headers of their
// own; where the header that counts them is damaged, those that are in use and nothing
// else are taken for them.
func (r *rawReader) end(slot uint64) uint64 {
	own, _, _, overflow, _ := r.header(slot)
	next := slot + 1
	for ; next < r.slots; next++ {
		id, _, _, _, _ := r.header(next)
		_, freed := r.free[next]
		counted := own == slot && next <= slot+overflow
		if id == next || r.inReach(next) || freed || !counted && (own == slot || r.free == nil) {
			break
		}
	}
	return next
}

// maxKey is how long a key can be that scan finds.
const maxKey = 512

// scan looks in a damaged page for values that no element leads to any more. A key
// stands right before its value, and the checksum tells where it begins.
func (r *rawReader) scan(slot uint64, known []ledger.Entry) []ledger.Entry {
	from, to := slot*r.pageSize, min(r.end(slot)*r.pageSize, uint64(len(r.data)))
	have := make(map[string]bool, len(known))
	for _, e := range known {
		if _, sound := ledger.BucketOf(e.Key, e.Value); sound {
			have[e.Bucket+"/"+e.Key] = true
		}
	}
	part := r.data[from:to]
	for at := 0; ; {
		next := bytes.Index(part[at:], []byte(ledger.ValueStart))
		if next < 0 {
			return known
		}
		at += next
		var value json.RawMessage
		if json.NewDecoder(bytes.NewReader(part[at:])).Decode(&value) != nil {
			at++
			continue
		}
		for length := 1; length <= min(at, maxKey); length++ {
			e, sound := entryOf("", part[at-length:at], value)
			if sound && !have[e.Bucket+"/"+e.Key] {
				have[e.Bucket+"/"+e.Key] = true
				known = append(known, e)
			}
			if sound {
				break
			}
		}
		at++
	}
}

// generation returns the highest generation that entries name.
func (r *rawReader) generation(entries []ledger.Entry) (uint64, bool) {
	newest, found := uint64(0), false
	for _, e := range entries {
		if number, ok := ledger.GenerationOf(e); ok {
			newest, found = max(newest, number), true
		}
	}
	return newest, found
}

// newestGeneration returns the highest generation that any page names, and the page.
func (r *rawReader) newestGeneration() (newest, at uint64) {
	for slot := uint64(2); slot < r.slots; slot++ {
		entries, _ := r.leaf(slot)
		if number, ok := r.generation(entries); ok && (number > newest || at == 0) {
			newest, at = number, slot
		}
	}
	return newest, at
}

// climb looks for the root above a page, and takes the tree below it for the state: a
// tree that has all that it should have, or else the one that has most.
func (r *rawReader) climb(from uint64) bool {
	reached, broken, free := r.reached, r.broken, r.free
	unread, more := r.unread, r.more
	root, most := uint64(0), 0
	seen := map[uint64]bool{from: true}
	for candidates := []uint64{from}; len(candidates) > 0 && len(seen) < maxClimb; {
		slot := candidates[0]
		candidates = candidates[1:]
		r.walk(slot, r.slots)
		entries := r.entriesOf(r.inReach)
		if ledger.Complete(entries) {
			root = slot
			break
		}
		if len(entries) > most && r.hasBuckets() {
			root, most = slot, len(entries)
		}
		for parent := uint64(2); parent < r.slots; parent++ {
			if !seen[parent] && r.refers(parent, slot) {
				seen[parent] = true
				candidates = append(candidates, parent)
			}
		}
	}
	r.unread, r.more = unread, more
	if root == 0 {
		r.reached, r.broken, r.free = reached, broken, free
		return false
	}
	r.free = nil
	r.walk(root, r.slots)
	return true
}

// hasBuckets reports whether the walk came through a root: only there are buckets.
func (r *rawReader) hasBuckets() bool {
	for _, bucket := range r.reached {
		if bucket != "" {
			return true
		}
	}
	return false
}

// maxClimb bounds the search for a root.
const maxClimb = 64

// refers reports whether a page leads to another one.
func (r *rawReader) refers(parent, child uint64) bool {
	id, flags, count, _, ok := r.header(parent)
	if !ok || id != parent {
		return false
	}
	p := page{id: parent, count: count, data: r.data[parent*r.pageSize:]}
	for i := range min(count, r.pageSize/elementSize) {
		switch flags {
		case branchFlag:
			if _, _, to, ok := p.element(i, true); ok && to == child {
				return true
			}
		case leafFlag:
			_, value, flags, ok := p.element(i, false)
			if ok && flags == bucketFlag && len(value) >= bucketSize && binary.NativeEndian.Uint64(value) == child {
				return true
			}
		}
	}
	return false
}
