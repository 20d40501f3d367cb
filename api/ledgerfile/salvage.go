package ledgerfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"

	"github.com/berthd/berth/managers/ledger/journal"
)

// rawReader reads the intact records of a file with damaged pages. It relies only on checksums.
// References in the file only show which pages are in use: a freed page still has its old
// content, such as a removed pod.
//
// A page is in use if the newest meta page leads to it, or if that meta page's freelist does not
// contain it. Entries of the first kind of pages are the file's state. Entries of the second
// kind, called loose, belong to it if the freelist is right. All other entries are stale.
type rawReader struct {
	walker
	free map[uint64]struct{} // nil if unknown

	room    int                  // bytes that elements may still have, in this pass over the pages
	effort  int                  // what scans may still cost
	scanned map[[2]uint64]values // by the first page and the one after the last
}

// values are entries that scan found, each with a checksum that holds.
type values []journal.Entry

// Limits for forged files: their elements can share bytes, and values can contain each other. In
// a file that bbolt wrote, no byte is in two elements, and a scan costs at most a tenth of this
// limit.
const (
	// leastRoom and roomFactor give the bytes of all elements of a pass.
	leastRoom, roomFactor = 16 << 20, 16
	// leastEffort and effortFactor give the effort of all scans. A unit takes some 10 ns.
	leastEffort, effortFactor = 100_000_000, 100
)

// begin starts a pass over the pages.
func (r *rawReader) begin() { r.room = leastRoom + roomFactor*len(r.data) }

// spend subtracts an amount from the rest of a limit. It returns false, with a note, if the limit
// is exceeded.
func (r *rawReader) spend(left *int, amount int) bool {
	if *left < 0 {
		return false
	}
	if *left -= amount; *left < 0 {
		r.note("elements or values share their bytes: not all of them are read")
		return false
	}
	return true
}

// Salvage reads a whole file of any content. Unread of the result lists what cannot be read; name
// is the file's in it.
func Salvage(name string, data []byte) journal.Found {
	r := &rawReader{walker: walker{path: name, data: slices.Clone(data)}, scanned: map[[2]uint64]values{}}
	r.effort = leastEffort + effortFactor*len(data)
	if _, err := r.metas(); err != nil {
		r.unread = append(r.unread, err.Error())
	}
	if r.findMetas(); r.pageSize == 0 {
		r.pageSize = r.guessPageSize()
	}
	r.measure(r.pageSize)
	r.unswap() // maybe also a meta page
	metas, whole := r.findMetas()
	found := r.state(metas, whole)
	found.Unread = r.unread
	if r.more > 0 {
		found.Unread = append(found.Unread, fmt.Sprintf("and %d more places", r.more))
	}
	return found
}

// findMetas returns the meta pages that are sound, or that one flipped bit keeps from
// being so, the newest first; whole means that these are both.
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
	if m, err := readMeta(r.path, r.data, page, at); err == nil {
		return m, m.txid%2 == page
	}
	if at+headerSize+metaSize > uint64(len(r.data)) {
		return meta{}, false
	}
	part := r.data[at : at+headerSize+metaSize]
	for bit := range len(part) * 8 {
		part[bit/8] ^= 1 << (bit % 8)
		if m, err := readMeta(r.path, r.data, page, at); err == nil && m.txid%2 == page {
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

// idAt returns the number in the header of a page; 0 where the file ends before it.
func (r *rawReader) idAt(slot uint64) uint64 {
	p, _ := r.page(slot)
	return p.id
}

// unswap puts pairs of pages back that stand in each other's places.
func (r *rawReader) unswap() {
	for slot := uint64(0); (slot+1)*r.pageSize <= uint64(len(r.data)); slot++ {
		other := r.idAt(slot)
		if other <= slot || (other+1)*r.pageSize > uint64(len(r.data)) {
			continue
		}
		if r.idAt(other) != slot {
			continue
		}
		a, b := r.data[slot*r.pageSize:(slot+1)*r.pageSize], r.data[other*r.pageSize:(other+1)*r.pageSize]
		swapped := bytes.Clone(a)
		copy(a, b)
		copy(b, swapped)
		r.note("pages %d and %d were in each other's places", slot, other)
	}
}

// state finds the newest state and sorts the entries of all pages by their reliability.
func (r *rawReader) state(metas []meta, whole bool) journal.Found {
	var found journal.Found
	if len(metas) > 0 {
		r.walk(metas[0].root, metas[0].high)
		if free, ok := r.freePages(metas[0]); ok {
			found.Behind = r.compare(free, metas[0])
		}
	}
	if !whole {
		known, _ := r.generation(r.entriesOf(r.inReach))
		newest, at := r.newestGeneration()
		switch {
		case len(metas) > 0 && newest <= known && len(r.broken) == 0:
			// Nothing newer has ever been written.
		case newest > known && r.climb(at):
			r.note("no meta page leads to the newest state; it was found at generation %d", newest)
			if !journal.Complete(r.entriesOf(r.inReach)) {
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
		id := r.idAt(slot)
		_, freed := r.free[id]
		return id == slot || !freed
	}
	if r.free == nil {
		return false
	}
	id := r.idAt(slot)
	_, freedHere := r.free[slot]
	_, freedThere := r.free[id]
	return !freedHere && !freedThere
}

// compare compares the freelist with the pages that the root leads to. A page cannot
// be of both: either the freelist is damaged, or what leads to the page is, and it is
// a page that was freed. The tree is right if it has all that it should have.
func (r *rawReader) compare(free map[uint64]struct{}, m meta) (behind string) {
	both := r.account(free, m.high)
	free[m.freelist] = struct{}{}
	both = slices.DeleteFunc(both, func(slot uint64) bool {
		if journal.OfHistory(r.reached[slot]) {
			delete(r.reached, slot) // the state does not depend on where the history leads
		}
		return !r.inReach(slot)
	})
	if len(both) == 0 {
		r.free = free
		return ""
	}
	if !journal.Complete(r.entriesOf(r.inReach)) {
		for _, slot := range both {
			delete(r.reached, slot)
		}
		r.free = free
	}
	return "the file's tree and its list of free pages contradict each other"
}

// entriesOf returns the entries of pages; for reachable pages also the damaged entries.
func (r *rawReader) entriesOf(which func(slot uint64) bool) []journal.Entry {
	r.begin()
	var all []journal.Entry
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
func (r *rawReader) leaf(slot uint64) (entries []journal.Entry, whole bool) {
	p, ok := r.page(slot)
	bucket, reached := r.reached[slot]
	if !ok || reached && p.flags == branchFlag || p.id == slot && p.flags == freelistFlag {
		return nil, true
	}
	sound := p.id == slot && p.flags == leafFlag
	p.flags = leafFlag
	entries, whole = r.entries(p, bucket, reached)
	return entries, whole && sound
}

// entries returns the entries of a leaf page, and of the pages inside its values.
// Without a checksum that holds, an entry counts only in a bucket that is reached.
func (r *rawReader) entries(p page, bucket string, reached bool) (entries []journal.Entry, whole bool) {
	n := p.elements(r.pageSize)
	whole = n == p.count
	for i := range n {
		e, ok := p.element(i)
		if !ok || len(e.key) == 0 || len(e.key) > longestKey {
			whole = false
			continue
		}
		if !r.spend(&r.room, elementSize+len(e.key)+len(e.value)) {
			return entries, false
		}
		if inline, ok := inlinePage(e.value); ok && e.word == bucketFlag && p.id != inlined {
			inline.id, inline.flags = inlined, leafFlag
			inside, all := r.entries(inline, string(e.key), reached)
			entries, whole = append(entries, inside...), whole && all
			continue
		}
		entry, sound := entryOf(bucket, e.key, e.value)
		whole = whole && sound
		if sound || reached && bucket != "" {
			entries = append(entries, entry)
		}
	}
	return entries, whole
}

// inlined is the number of a page inside a value, which has no such page itself.
const inlined = ^uint64(0)

// entryOf creates an entry. The checksum determines its bucket more reliably than the page. The
// value refers to the file's data, because elements of damaged pages can be as large as the file.
func entryOf(bucket string, key, value []byte) (e journal.Entry, sound bool) {
	own, sound := journal.BucketOf(string(key), value)
	if sound {
		bucket = own
	}
	return journal.Entry{Bucket: bucket, Key: string(key), Value: value}, sound
}

// end returns the page after a page's overflow pages, which have no headers. If the header with
// their number is damaged, unreferenced pages in use count as its overflow pages.
func (r *rawReader) end(slot uint64) uint64 {
	p, _ := r.page(slot)
	next := slot + 1
	for ; next < r.slots; next++ {
		id := r.idAt(next)
		_, freed := r.free[next]
		counted := p.id == slot && next <= slot+p.overflow
		if id == next || r.inReach(next) || freed || !counted && (p.id == slot || r.free == nil) {
			break
		}
	}
	return next
}

// maxKey is the maximum length of a key that scan finds.
const maxKey = 512

// scan searches a damaged page for values without an element.
func (r *rawReader) scan(slot uint64, known []journal.Entry) []journal.Entry {
	have := make(map[string]bool, len(known))
	for _, e := range known {
		if _, sound := journal.BucketOf(e.Key, e.Value); sound {
			have[e.Bucket+"/"+e.Key] = true
		}
	}
	pages := [2]uint64{slot, r.end(slot)}
	found, ok := r.scanned[pages]
	if !ok {
		found = r.find(r.data[slot*r.pageSize : min(pages[1]*r.pageSize, uint64(len(r.data)))])
		r.scanned[pages] = found
	}
	for _, e := range found {
		if !have[e.Bucket+"/"+e.Key] {
			have[e.Bucket+"/"+e.Key] = true
			known = append(known, e)
		}
	}
	return known
}

// find returns the values in a part of the file. A key is right before its value, and the
// checksum shows where the key begins.
func (r *rawReader) find(part []byte) (found values) {
	for at := 0; ; at++ {
		next := bytes.Index(part[at:], []byte(journal.ValueStart))
		if next < 0 {
			return found
		}
		at += next
		size, read := object(part[at:])
		before := part[max(0, at-maxKey):at]
		if !r.spend(&r.effort, read+len(before)*(50+size/10)) {
			return found
		}
		value := part[at : at+size]
		if bucket, key, ok := journal.KeyBefore(before, value); ok {
			found = append(found, journal.Entry{Bucket: bucket, Key: key, Value: value})
		}
	}
}

// maxDepth is more than the values of the ledger have.
const maxDepth = 64

// object returns the size of the JSON object at the beginning of a text, 0 if there is none, and
// the number of bytes read.
func object(text []byte) (size, read int) {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return 0, i
			}
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return i + 1, i
			}
		}
	}
	return 0, len(text)
}

// generation returns the highest generation that entries name.
func (r *rawReader) generation(entries []journal.Entry) (uint64, bool) {
	newest, found := uint64(0), false
	for _, e := range entries {
		if number, ok := journal.GenerationOf(e); ok {
			newest, found = max(newest, number), true
		}
	}
	return newest, found
}

// newestGeneration returns the highest generation that any page names, and the page.
func (r *rawReader) newestGeneration() (newest, at uint64) {
	r.begin()
	for slot := uint64(2); slot < r.slots; slot++ {
		entries, _ := r.leaf(slot)
		if number, ok := r.generation(entries); ok && (number > newest || at == 0) {
			newest, at = number, slot
		}
	}
	return newest, at
}

// climb searches the root above a page, and uses the tree below the root as the state. It prefers
// a complete tree, or else the largest one.
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
		if journal.Complete(entries) {
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
	p, ok := r.page(parent)
	if !ok || p.id != parent || p.flags != branchFlag && p.flags != leafFlag {
		return false
	}
	for i := range p.elements(r.pageSize) {
		e, ok := p.element(i)
		if ok && (p.flags == branchFlag && e.word == child || p.flags == leafFlag && e.child() == child) {
			return true
		}
	}
	return false
}

// Pages returns of a sound file, page by page, whether its newest state is in it (the pages that the tree leads to, with those that
// belong to them), and which pages the buckets of the history lead to. It is for tests that damage files.
func Pages(data []byte) (current []bool, history []uint64) {
	r := &rawReader{walker: walker{data: data}}
	metas, _ := r.findMetas()
	r.measure(r.pageSize)
	r.walk(metas[0].root, metas[0].high)
	for page, bucket := range r.reached {
		if journal.OfHistory(bucket) {
			history = append(history, page)
		}
	}
	slices.Sort(history)
	return r.used, history
}
