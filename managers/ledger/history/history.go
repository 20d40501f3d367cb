package history

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/machine"
)

// Limits limit the kept entries and their stored size. Without entries there is no
// history.
type Limits struct{ Entries, Bytes int }

// History writes and reads the history of one ledger. The entries are in the journal only. It is safe for concurrent use.
type History struct {
	store  journal.HistoryStore // nil: there is no history
	limits Limits
	clock  func() time.Time

	// Those of the commit path are guarded by the calls of Recorder, which follow each other.
	kept   []keptBlock     // in BucketHistory, in order
	bytes  int             // of all blocks
	last   block           // the one in BucketHistoryOpen; without entries, if there is none
	size   int             // of last, as it is stored
	unread []journal.Entry // removes blocks that are damaged, or that are kept no longer, with the next commit
	begins bool            // the state before the next entry is unknown
	gap    bool            // the newest number is that of changes that were not recorded
	// pending is what the last Record has returned, until Committed.
	pending recording

	mu      sync.Mutex
	held    []*Entry // wait for a commit, in order; without numbers
	next    uint64   // number of the next entry
	users   map[uint32]*userEntries
	latest  time.Time // of the newest entry that can be read, also from before the start
	omitted uint64    // refusals and changes of all users that were not recorded
	pasts   []past    // the newest computed states
	stored  stored
}

// past is a state that was computed from a view.
type past struct {
	from, view *ledger.View
	moment     Moment
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

// change sets the user of a change, and returns the texts of its entry, none if the user has made too many.
func (r *recording) change(h *History, e *Entry) (parts [][]byte, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Caller == nil || e.Caller.UID == 0 {
		return e.parts(h.limits.Bytes / 2)
	}
	u := h.entriesOf(e)
	e.Omitted = u.omitted
	if parts, err = e.parts(h.limits.Bytes / 2); err != nil {
		return nil, err
	}
	size := 0
	for _, text := range parts {
		size += len(text)
	}
	cost, left := h.cost(&u.changes, changeShare, len(parts), size)
	r.user = u
	if !left {
		return nil, nil
	}
	r.cost, u.telling = cost, e.Omitted
	return parts, nil
}

func (h *History) now() time.Time {
	if h.clock == nil {
		return time.Time{}
	}
	return h.clock().UTC().Truncate(time.Millisecond) // as people see and write it
}

// date returns the time of the next entry. After the clock was set back, it is that of the entry
// before, because readers stop at the first entry that is too old; clock is then the clock's time. mu
// must be held.
func (h *History) date() (at, clock time.Time) {
	now := h.now()
	if now.Before(h.latest) {
		return h.latest, now
	}
	h.latest = now
	return now, time.Time{}
}

// New History returns a history with limits and the clock of its entries, for Options.History.
func New(limits Limits, now func() time.Time) *History {
	if limits.Bytes <= 0 {
		limits.Bytes = DefaultBytes
	}
	return &History{limits: limits, clock: now, users: map[uint32]*userEntries{}}
}

// Open reads which entries are stored, and holds the entry of the start until the first commit. If the last one is not that
// of the last commit, what happened before is not known. After an error of class Corrupt the history begins again; entries
// that can be read are still listed. It returns false if the journal is no HistoryStore, or there are to be no entries.
func (h *History) Open(ctx context.Context, s journal.Start) (kept bool, err error) {
	store, ok := s.Journal.(journal.HistoryStore)
	if !ok {
		return false, nil
	}
	if h.limits.Entries <= 0 {
		return false, h.remove(ctx, store)
	}
	h.store = store
	if err = h.open(ctx, s.View.Recorded()); err != nil && errdefs.ClassOf(err) != errdefs.Corrupt {
		return true, err
	}
	h.begins = h.begins || s.Unknown != nil
	h.started(s)
	return true, err
}

func (h *History) open(ctx context.Context, recorded uint64) error {
	unread := h.store.HistorySizes(ctx, func(key string, size int) {
		if first, err := journal.ParseNumber(key); err == nil { // others are not read either
			h.kept, h.bytes = append(h.kept, keptBlock{first, size}), h.bytes+size
		}
	})
	var next uint64
	if n := len(h.kept); n > 0 {
		next = h.kept[n-1].first + 1
	}
	var damage error
	newest := true
	err := h.store.ReadHistory(ctx, "", func(stored journal.Entry) bool {
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
			case stored.Bucket != journal.BucketHistoryOpen:
			case err != nil:
				h.unread = append(h.unread, journal.Entry{Bucket: stored.Bucket, Key: stored.Key})
			default:
				h.last, h.size = reopen(stored, first, len(all)), len(stored.Value)
				h.bytes += h.size
			}
		}
		return err != nil // older blocks are read for a time only
	})
	err = cmp.Or(unread, err, damage)
	h.begins = recorded+1 != max(1, next) || err != nil
	h.next = max(recorded+1, next)
	h.stored = h.inStore()
	return err
}

// remove removes all entries with the next commit.
func (h *History) remove(ctx context.Context, store journal.HistoryStore) error {
	err := store.HistorySizes(ctx, func(key string, _ int) {
		h.unread = append(h.unread, journal.Entry{Bucket: journal.BucketHistory, Key: key})
	})
	return cmp.Or(err, store.ReadHistory(ctx, "", func(stored journal.Entry) bool {
		if stored.Bucket == journal.BucketHistoryOpen {
			h.unread = append(h.unread, journal.Entry{Bucket: stored.Bucket, Key: stored.Key})
		}
		return stored.Bucket == journal.BucketHistoryOpen
	}))
}

// inStore returns what is in the store.
func (h *History) inStore() stored {
	switch {
	case len(h.kept) > 0:
		return stored{h.kept[0].first, h.bytes}
	case h.last.count > 0:
		return stored{h.last.first, h.bytes}
	}
	return stored{}
}

// started holds the entry of the start until the first commit.
func (h *History) started(s journal.Start) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := &Entry{Revision: s.View.Revision(), Call: startCall, Begins: h.begins}
	e.Time, e.Clock = h.date()
	if s.Rules != nil {
		was, now := *s.Rules, s.View.Machine()
		if s.Machine != nil && !machine.Compare(s.Machine, now).Empty() {
			was.Topology = machine.DifferenceOf(s.Machine, now)
		}
		if was.Topology != nil || !was.Equal(s.View.PastRules()) {
			e.Before = &Before{Rules: &was}
		}
	}
	h.held = append(h.held, e)
}

// Refusal is a verdict that does not admit.
type Refusal struct {
	// Verdict is rejected or deferred.
	Verdict, Reason, Message string
	Pod                      *ledger.Pod
	View                     *ledger.View
	AdmissionID              string
}

// Refused records a refusal with the next commit, so that it costs none of its own. Of each
// user at most RefusalsPerSecond are recorded in a second; the others are counted.
func (h *History) Refused(ctx context.Context, r Refusal) {
	if h == nil || h.store == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entry(ctx)
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
	// The entry of a change that is being committed comes before this one.
	e.Omitted, count.omitted = count.omitted-count.telling, count.telling
	h.held = append(h.held, e)
}

// omit counts a refusal or a change that is not recorded. mu must be held.
func (h *History) omit(u *userEntries) {
	u.omitted++
	h.omitted++
}

// fits returns whether a refusal may wait for a commit. A user has at most half of the room that
// the others leave, so that there is some for the next one. mu must be held.
func (h *History) fits(e *Entry) bool {
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
	entries []journal.Entry
	held    int         // how many of the held entries are among them
	next    uint64      // number after the last one
	last    block       // the last block after the commit
	size    int         // of last, as it is stored
	closed  []keptBlock // blocks that get no more entries
	drops   int         // how many of the oldest blocks are removed
	gap     bool        // the commit's change is not recorded
	// user has made the change, and cost is the part of the history that its entry needs; nil if that is not bounded.
	user *userEntries
	cost float64
}

// Record implements journal.Recorder.
func (h *History) Record(ctx context.Context, old, next *ledger.View) (entries []journal.Entry, last uint64, err error) {
	if h.store == nil {
		return h.unread, 0, nil
	}
	if h.pending, err = h.record(ctx, old, next); h.pending.next == 0 || err != nil {
		return nil, old.Recorded(), err
	}
	return h.pending.entries, h.pending.next - 1, nil
}

// Committed implements journal.Recorder.
func (h *History) Committed(lost bool) {
	r := h.pending
	switch h.pending = (recording{}); {
	case h.store == nil:
		h.unread = nil
	case r.next == 0: // nothing was recorded
	case lost:
		h.lost(r)
	default:
		h.committed(r)
	}
}

func (h *History) record(ctx context.Context, old, next *ledger.View) (r recording, err error) {
	h.mu.Lock()
	if u := h.pending.user; u != nil {
		u.telling = 0 // the commit has failed
	}
	number, held, e := h.next, slices.Clone(h.held), h.entry(ctx)
	h.mu.Unlock()
	r.held = len(held)
	var texts [][]byte
	for i, entry := range held {
		e := *entry
		e.Begins = e.Begins || i == 0 && h.begins
		e.Basis = e.Basis.behind(old, i)
		text, err := Text(&e)
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
		if parts, err = r.change(h, e); err != nil {
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
		r.entries = append(r.entries, journal.Entry{Bucket: journal.BucketHistoryOpen, Key: journal.NumberKey(h.last.first)})
	}
	if len(texts) > 0 {
		stored := r.last.seal(journal.BucketHistoryOpen)
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
	return r, nil
}

// add adds an entry to the last block, or to a new one.
func (r *recording) add(text []byte, limits Limits) {
	if r.last.count > 0 && !r.last.takes(r.next, len(text), limits) {
		stored := r.last.seal(journal.BucketHistory)
		r.entries, r.closed = append(r.entries, stored), append(r.closed, keptBlock{r.last.first, len(stored.Value)})
		r.last = block{}
	}
	r.last = r.last.with(r.next, text)
	r.next++
}

// drop removes the oldest blocks, as long as there is more than the limits allow. The last block
// stays.
func (r *recording) drop(h *History) {
	bytes := h.bytes - h.size + r.size
	for _, k := range r.closed {
		bytes += k.size
	}
	for _, blocks := range [][]keptBlock{h.kept, r.closed} {
		for _, k := range blocks {
			if r.next-k.first <= uint64(h.limits.Entries) && bytes <= h.limits.Bytes {
				return
			}
			r.entries = append(r.entries, journal.Entry{Bucket: journal.BucketHistory, Key: journal.NumberKey(k.first)})
			bytes, r.drops = bytes-k.size, r.drops+1
		}
	}
}

// committed notes that a commit has written its recording.
func (h *History) committed(r recording) {
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
func (h *History) settle(r recording) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stored = h.inStore()
	switch u := r.user; {
	case u == nil:
	case r.gap:
		h.omit(u)
	default:
		u.changes.used, u.omitted, u.telling = u.changes.used+r.cost, u.omitted-u.telling, 0
	}
	h.held, h.next = slices.Delete(h.held, 0, r.held), max(h.next, r.next)
}

// lost forgets all entries, after the journal was created again without them. Those that waited for the commit are lost with it: they
// are older than its change, from before which no state is known.
func (h *History) lost(r recording) {
	h.kept, h.bytes, h.last, h.size, h.unread, h.begins, h.gap = nil, 0, block{}, 0, nil, true, false
	h.settle(r)
}

// Entries yields the entries below a number, the newest first; 0 is above all. Entries that
// wait for a commit are among them. Entries that
// are damaged together are yielded as one, which has only the number of the first of them, and the
// error that describes the damage.
func (h *History) Entries(ctx context.Context, below uint64, each func(*Entry, error) bool) error {
	if h == nil || h.store == nil {
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
	return h.store.ReadHistory(ctx, journal.NumberKey(below), func(stored journal.Entry) bool {
		first, all, err := readBlock(stored)
		switch {
		case first == 0:
			return true
		case err != nil:
			return each(&Entry{Number: first}, err)
		}
		for _, e := range slices.Backward(all) {
			if e.Number < below && !each(e, nil) {
				return false
			}
		}
		return true
	})
}

// Omitted is the number of refusals since the start that were not recorded.
func (h *History) Omitted() uint64 {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.omitted
}

// Stats describe the stored history.
type Stats struct {
	Entries uint64
	Bytes   int // as they are stored
	// Oldest is the time of the oldest entry; zero if there is none, or if it cannot be read.
	Oldest time.Time
	// Omitted is History.Omitted.
	Omitted uint64
}

// Stats returns the size of the history; false if there is none. It does not wait for commits.
func (h *History) Stats(ctx context.Context) (stats Stats, ok bool) {
	if h == nil || h.store == nil {
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
	_ = h.store.ReadHistory(ctx, journal.NumberKey(in.oldest+1), func(e journal.Entry) bool {
		if _, all, err := readBlock(e); err == nil && len(all) > 0 {
			stats.Oldest = all[0].Decided()
		}
		return false
	})
	return stats, true
}
