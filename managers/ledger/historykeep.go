package ledger

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthd/berth/managers/machine"
)

// HistoryLimits limit the kept entries and their stored size. Without entries there is no
// history.
type HistoryLimits struct{ Entries, Bytes int }

// HistoryStore is a Journal that keeps the buckets of the history: Load leaves them out, because
// the history is not part of the state.
type HistoryStore interface {
	Journal
	// HistorySizes yields the keys of BucketHistory with the sizes of their values, in order.
	HistorySizes(ctx context.Context, each func(key string, size int)) error
	// ReadHistory yields the entries of BucketHistoryOpen, then those of BucketHistory, of all
	// keys below a key (empty is above all), the greatest first, until each returns false.
	// Commits do not wait for each. An entry that a commit moves meanwhile is yielded once.
	ReadHistory(ctx context.Context, below string, each func(Entry) bool) error
}

// OfHistory returns whether a bucket belongs to the history.
func OfHistory(bucket string) bool { return bucket == BucketHistory || bucket == BucketHistoryOpen }

// history is the part of a ledger that writes and reads the history. The entries are in the
// journal only.
type history struct {
	store  HistoryStore // nil: there is no history
	limits HistoryLimits
	clock  func() time.Time

	// Those of the commit path are guarded by Ledger.mu.
	kept   []keptBlock // in BucketHistory, in order
	bytes  int         // of all blocks
	last   block       // the one in BucketHistoryOpen; without entries, if there is none
	size   int         // of last, as it is stored
	unread []Entry     // removes blocks that are damaged, or that are kept no longer, with the next commit
	begins bool        // the state before the next entry is unknown
	gap    bool        // the newest number is that of changes that were not recorded

	mu      sync.Mutex
	held    []*HistoryEntry // wait for a commit, in order; without numbers
	next    uint64          // number of the next entry
	users   map[uint32]*userEntries
	latest  time.Time // of the newest entry that can be read, also from before the start
	omitted uint64    // refusals and changes of all users that were not recorded
	pasts   []past    // the newest computed states
	stored  stored
}

// stored is what is in the store: entries from a number on, with their size.
type stored struct {
	oldest uint64
	bytes  int
}

// keptBlock is the number of a block's first entry, and its stored size.
type keptBlock struct {
	first uint64
	size  int
}

// userEntries counts those of a user.
type userEntries struct {
	second            int64
	count             int    // refusals in the second
	omitted           uint64 // refusals and changes since the last recorded one
	refusals, changes historyShare
}

// historyShare is the part of the whole history that a user's entries have, as of a time.
type historyShare struct {
	used float64
	asOf time.Time
}

// A user's refusals have at most refusalShare of the history, and its changes changeShare, and get that much in sharePeriod:
// one user cannot push out what others did in that time. leastEntries and leastEntryBytes are for a history that is small.
// Changes of root and of berthd itself are always recorded.
const (
	refusalShare    = 0.25
	changeShare     = 0.75
	sharePeriod     = 24 * time.Hour
	leastEntries    = 64
	leastEntryBytes = 1 << 20
)

// cost returns the part of the history that entries need, and whether a share of at most so much has that left. mu must be held.
func (h *history) cost(s *historyShare, most float64, count, size int) (cost float64, left bool) {
	now := h.now()
	if passed := now.Sub(s.asOf); passed > 0 {
		s.used = max(0, s.used-most*float64(passed)/float64(sharePeriod))
	}
	s.asOf = now
	entries, bytes := float64(h.limits.Entries), float64(h.limits.Bytes)
	cost = max(float64(count)/entries, float64(size)/bytes)
	return cost, s.used+cost <= max(most, leastEntries/entries, leastEntryBytes/bytes)
}

// change returns the texts of a change's entry, none if its user has made too many, and recording.made.
func (h *history) change(e *HistoryEntry) (parts [][]byte, made func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Caller == nil || e.Caller.UID == 0 {
		parts, err = e.parts(h.limits.Bytes / 2)
		return parts, nil, err
	}
	u := h.entriesOf(e)
	e.Omitted = u.omitted
	if parts, err = e.parts(h.limits.Bytes / 2); err != nil {
		return nil, nil, err
	}
	size := 0
	for _, text := range parts {
		size += len(text)
	}
	cost, left := h.cost(&u.changes, changeShare, len(parts), size)
	if !left {
		return nil, func() { h.omit(u) }, nil
	}
	return parts, func() { u.changes.used, u.omitted = u.changes.used+cost, u.omitted-e.Omitted }, nil
}

func (h *history) now() time.Time {
	if h.clock == nil {
		return time.Time{}
	}
	return h.clock().UTC().Truncate(time.Millisecond) // as people see and write it
}

// date returns the time of the next entry. After the clock was set back, it is that of the entry
// before, because readers stop at the first entry that is too old; clock is then the clock's time. mu
// must be held.
func (h *history) date() (at, clock time.Time) {
	now := h.now()
	if now.Before(h.latest) {
		return h.latest, now
	}
	h.latest = now
	return now, time.Time{}
}

// open reads which entries are stored. If the last one is not that of the last commit, what
// happened before is not known. After an error of class Corrupt the history begins again; entries
// that can be read are still listed.
func (h *history) open(ctx context.Context, o *Options, v *View) error {
	store, ok := o.Journal.(HistoryStore)
	if !ok {
		return nil
	}
	if o.History.Entries <= 0 {
		return h.remove(ctx, store)
	}
	h.store, h.limits, h.clock, h.users = store, o.History, o.Now, map[uint32]*userEntries{}
	if h.limits.Bytes <= 0 {
		h.limits.Bytes = DefaultHistoryBytes
	}
	unread := store.HistorySizes(ctx, func(key string, size int) {
		if first, err := historyNumber(key); err == nil { // others are not read either
			h.kept, h.bytes = append(h.kept, keptBlock{first, size}), h.bytes+size
		}
	})
	var next uint64
	if n := len(h.kept); n > 0 {
		next = h.kept[n-1].first + 1
	}
	var damage error
	newest := true
	err := store.ReadHistory(ctx, "", func(stored Entry) bool {
		first, all, err := readBlock(stored)
		if first == 0 {
			return true
		}
		if n := len(all); n > 0 {
			h.latest = all[n-1].Time
		}
		if newest {
			newest, next, damage = false, first+uint64(max(1, len(all))), err
			switch {
			case stored.Bucket != BucketHistoryOpen:
			case err != nil:
				h.unread = append(h.unread, Entry{Bucket: stored.Bucket, Key: stored.Key})
			default:
				h.last, h.size = reopen(stored, first, len(all)), len(stored.Value)
				h.bytes += h.size
			}
		}
		return err != nil // older blocks are read for a time only
	})
	err = cmp.Or(unread, err, damage)
	h.begins = v.recorded+1 != max(1, next) || err != nil
	h.next = max(v.recorded+1, next)
	h.stored = h.inStore()
	return err
}

// remove removes all entries with the next commit.
func (h *history) remove(ctx context.Context, store HistoryStore) error {
	err := store.HistorySizes(ctx, func(key string, _ int) {
		h.unread = append(h.unread, Entry{Bucket: BucketHistory, Key: key})
	})
	return cmp.Or(err, store.ReadHistory(ctx, "", func(stored Entry) bool {
		if stored.Bucket == BucketHistoryOpen {
			h.unread = append(h.unread, Entry{Bucket: stored.Bucket, Key: stored.Key})
		}
		return stored.Bucket == BucketHistoryOpen
	}))
}

// inStore returns what is in the store. Ledger.mu must be held.
func (h *history) inStore() stored {
	switch {
	case len(h.kept) > 0:
		return stored{h.kept[0].first, h.bytes}
	case h.last.count > 0:
		return stored{h.last.first, h.bytes}
	}
	return stored{}
}

// started holds the entry of the start until the first commit.
func (l *Ledger) started(st *state, v *View) {
	h := &l.history
	if h.store == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := &HistoryEntry{Revision: v.Revision(), Call: startCall, Begins: h.begins}
	e.Time, e.Clock = h.date()
	if !st.fresh {
		was := st.rules()
		if st.topology != nil && st.otherMachine(v.rules.Machine) {
			was.Topology = machine.DifferenceOf(st.topology, v.rules.Machine)
		}
		if was.Topology != nil || !was.same(rulesBefore(v)) {
			e.Before = &HistoryBefore{Rules: was}
		}
	}
	h.held = append(h.held, e)
}

// Refusal is a verdict that does not admit.
type Refusal struct {
	// Verdict is rejected or deferred.
	Verdict, Reason, Message string
	Pod                      *Pod
	View                     *View
	AdmissionID              string
}

// Refused records a refusal with the next commit, so that it costs none of its own. Of each
// user at most RefusalsPerSecond are recorded in a second; the others are counted.
func (l *Ledger) Refused(ctx context.Context, r Refusal) {
	h := &l.history
	if h.store == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := l.entry(ctx)
	count := h.entriesOf(e)
	if count.count >= RefusalsPerSecond || !h.fits(e) {
		h.omit(count)
		return
	}
	e.Verdict, e.Reason = r.Verdict, r.Reason
	e.Message = strings.ToValidUTF8(r.Message[:min(len(r.Message), longestMessage)], "")
	if r.Pod != nil {
		e.about(r.Pod)
	}
	e.AdmissionID = cmp.Or(r.AdmissionID, e.AdmissionID)
	if r.View != nil {
		e.Revision = r.View.Revision()
	}
	if e.request(CallOf(ctx)) != nil {
		h.omit(count)
		return
	}
	if !h.fits(e) { // rather the refusal than its request
		e.Request, e.RequestBytes, e.Basis = nil, len(e.Request), nil
	}
	if !h.fits(e) {
		h.omit(count)
		return
	}
	cost, left := h.cost(&count.refusals, refusalShare, 1, e.payload()+len(e.Message))
	if !left {
		h.omit(count)
		return
	}
	count.refusals.used += cost
	count.count++
	e.Omitted, count.omitted = count.omitted, 0
	h.held = append(h.held, e)
}

// omit counts a refusal or a change that is not recorded. mu must be held.
func (h *history) omit(u *userEntries) {
	u.omitted++
	h.omitted++
}

// entriesOf returns those of an entry's user, with the refusals in this second. mu must be held.
func (h *history) entriesOf(e *HistoryEntry) *userEntries {
	uid := e.user()
	u := h.users[uid]
	if u == nil {
		if len(h.users) >= countedUsers {
			h.forgetUser()
		}
		u = &userEntries{}
		h.users[uid] = u
	}
	if second := h.now().Unix(); second != u.second { // an entry's time stands still after the clock was set back
		u.second, u.count = second, 0
	}
	return u
}

// forgetUser forgets the user whose entries have the smallest part of the history; the number of those omitted is in the total.
// mu must be held.
func (h *history) forgetUser() {
	part := func(u *userEntries) float64 { return u.refusals.used + u.changes.used }
	least, found := uint32(0), false
	for uid, u := range h.users {
		if !found || part(u) < part(h.users[least]) || part(u) == part(h.users[least]) && uid < least {
			least, found = uid, true
		}
	}
	delete(h.users, least)
}

// user returns the user that called.
func (e *HistoryEntry) user() uint32 {
	if e.Caller == nil {
		return ^uint32(0) // unknown
	}
	return e.Caller.UID
}

// fits returns whether a refusal may wait for a commit. A user has at most half of the room that
// the others leave, so that there is some for the next one. mu must be held.
func (h *history) fits(e *HistoryEntry) bool {
	n, bytes := 1, e.payload() // of the user, with this one
	room, roomBytes := heldRefusals-len(h.held), largestEntry
	for _, held := range h.held {
		roomBytes -= held.payload()
		if held.user() == e.user() {
			n, bytes = n+1, bytes+held.payload()
		}
	}
	return n <= room && (e.payload() == 0 || bytes <= roomBytes)
}

// recording is what a commit writes to the history.
type recording struct {
	entries []Entry
	held    int         // how many of the held entries are among them
	next    uint64      // number after the last one
	last    block       // the last block after the commit
	size    int         // of last, as it is stored
	closed  []keptBlock // blocks that get no more entries
	drops   int         // how many of the oldest blocks are removed
	gap     bool        // the commit's change is not recorded
	made    func()      // if not nil, is called with history.mu held when the change is committed
}

// record returns what a commit writes to the history, and sets the number of the last entry
// in the next view. Ledger.mu must be held.
func (l *Ledger) record(ctx context.Context, old, next *View) (r recording, err error) {
	h := &l.history
	if h.store == nil {
		next.recorded, r.entries = 0, h.unread
		return r, nil
	}
	h.mu.Lock()
	number, held, e := h.next, slices.Clone(h.held), l.entry(ctx)
	h.mu.Unlock()
	r.held = len(held)
	var texts [][]byte
	for i, entry := range held {
		e := *entry
		e.Begins = e.Begins || i == 0 && h.begins
		e.Basis = e.Basis.behind(old, i)
		text, err := HistoryText(&e)
		if err != nil {
			return r, err
		}
		texts = append(texts, text)
	}
	if e.changed(old, next) {
		if err := e.admitted(CallOf(ctx)); err != nil {
			return r, err
		}
		e.Begins = len(held) == 0 && h.begins
		e.Basis = e.Basis.behind(old, len(held))
		var parts [][]byte
		if parts, r.made, err = h.change(e); err != nil {
			return r, err
		}
		texts, r.gap = append(texts, parts...), len(parts) == 0
	}
	if len(texts) == 0 && !r.gap {
		return r, nil
	}
	r.last, r.next, r.size = h.last, number, h.size
	for _, text := range texts {
		r.add(text, h.limits)
	}
	if h.last.count > 0 && r.last.first != h.last.first {
		r.entries = append(r.entries, Entry{Bucket: BucketHistoryOpen, Key: traceKey(h.last.first)})
	}
	if len(texts) > 0 {
		stored := r.last.seal(BucketHistoryOpen)
		r.size = len(stored.Value)
		r.entries = append(r.entries, stored)
	}
	// Changes that follow each other and are not recorded have one number, so that they push nothing out. A reader of earlier states
	// misses it.
	if r.gap && (len(texts) > 0 || !h.gap) {
		r.next++
	}
	r.entries = append(r.entries, h.unread...)
	r.drop(h)
	next.recorded = r.next - 1
	return r, nil
}

// add adds an entry to the last block, or to a new one.
func (r *recording) add(text []byte, limits HistoryLimits) {
	if r.last.count > 0 && !r.last.takes(r.next, len(text), limits) {
		stored := r.last.seal(BucketHistory)
		r.entries, r.closed = append(r.entries, stored), append(r.closed, keptBlock{r.last.first, len(stored.Value)})
		r.last = block{}
	}
	r.last = r.last.with(r.next, text)
	r.next++
}

// admitted adds the request of a call that was carried out, and its verdict.
func (e *HistoryEntry) admitted(c *Call) error {
	if c == nil || c.Request == nil {
		return nil
	}
	if c.Request.Policy == nil {
		e.Verdict = "admitted"
	}
	return e.request(c)
}

// drop removes the oldest blocks, as long as there is more than the limits allow. The last block
// stays.
func (r *recording) drop(h *history) {
	bytes := h.bytes - h.size + r.size
	for _, k := range r.closed {
		bytes += k.size
	}
	for _, blocks := range [][]keptBlock{h.kept, r.closed} {
		for _, k := range blocks {
			if r.next-k.first <= uint64(h.limits.Entries) && bytes <= h.limits.Bytes {
				return
			}
			r.entries = append(r.entries, Entry{Bucket: BucketHistory, Key: traceKey(k.first)})
			bytes, r.drops = bytes-k.size, r.drops+1
		}
	}
}

// committed notes that a commit has written its recording. Ledger.mu must be held.
func (h *history) committed(r recording) {
	if r.next == 0 {
		if h.store == nil {
			h.unread = nil
		}
		return
	}
	h.bytes += r.size - h.size
	for _, k := range r.closed {
		h.bytes += k.size
	}
	h.kept = append(h.kept, r.closed...)
	for _, k := range h.kept[:r.drops] {
		h.bytes -= k.size
	}
	h.kept = slices.Delete(h.kept, 0, r.drops)
	h.last, h.size, h.unread, h.begins, h.gap = r.last, r.size, nil, false, r.gap
	h.settle(r)
}

// settle notes that a change is committed.
func (h *history) settle(r recording) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stored = h.inStore()
	if r.made != nil {
		r.made()
	}
	h.held, h.next = slices.Delete(h.held, 0, r.held), max(h.next, r.next)
}

// lost forgets all entries, after the journal was created again without them. Those that waited for the commit are lost with it: they
// are older than its change, from before which no state is known. Ledger.mu must be held.
func (h *history) lost(r recording) {
	h.kept, h.bytes, h.last, h.size, h.unread, h.begins, h.gap = nil, 0, block{}, 0, nil, true, false
	h.settle(r)
}

// History yields the entries below a number, the newest first; 0 is above all. Entries that
// wait for a commit are among them. Entries that
// are damaged together are yielded as one, which has only the number of the first of them, and the
// error that describes the damage.
func (l *Ledger) History(ctx context.Context, below uint64, each func(*HistoryEntry, error) bool) error {
	h := &l.history
	if h.store == nil {
		return nil
	}
	h.mu.Lock()
	held, next := slices.Clone(h.held), h.next
	h.mu.Unlock()
	for i, e := range slices.Backward(held) {
		waiting := *e
		waiting.Number = next + uint64(i)
		if (below == 0 || waiting.Number < below) && !each(&waiting, nil) {
			return nil
		}
	}
	if below == 0 || below > next {
		below = next
	}
	return h.store.ReadHistory(ctx, traceKey(below), func(stored Entry) bool {
		first, all, err := readBlock(stored)
		switch {
		case first == 0:
			return true
		case err != nil:
			return each(&HistoryEntry{Number: first}, err)
		}
		for _, e := range slices.Backward(all) {
			if e.Number < below && !each(e, nil) {
				return false
			}
		}
		return true
	})
}

// HistoryOmitted is the number of refusals since the start that were not recorded.
func (l *Ledger) HistoryOmitted() uint64 {
	h := &l.history
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.omitted
}

// HistoryStats describe the stored history.
type HistoryStats struct {
	Entries uint64
	Bytes   int // as they are stored
	// Oldest is the time of the oldest entry; zero if there is none, or if it cannot be read.
	Oldest time.Time
	// Omitted is HistoryOmitted.
	Omitted uint64
}

// HistoryStats returns the size of the history; false if there is none. It does not wait for
// commits.
func (l *Ledger) HistoryStats(ctx context.Context) (stats HistoryStats, ok bool) {
	h := &l.history
	if h.store == nil {
		return stats, false
	}
	h.mu.Lock()
	in, next := h.stored, h.next
	stats.Omitted = h.omitted
	h.mu.Unlock()
	if in.oldest == 0 {
		return stats, true
	}
	stats.Entries, stats.Bytes = next-in.oldest, in.bytes
	// The block may have been dropped meanwhile, and then there is no time.
	_ = h.store.ReadHistory(ctx, traceKey(in.oldest+1), func(e Entry) bool {
		if _, all, err := readBlock(e); err == nil && len(all) > 0 {
			stats.Oldest = all[0].Decided()
		}
		return false
	})
	return stats, true
}
