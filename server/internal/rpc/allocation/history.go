package allocation

import (
	"context"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/rpc"
)

// History keeps the newest events of the ledger in memory, encoded, so that a reader can resume. A
// reader that falls behind the kept events has to list again. A commit only queues its
// change and wakes waiting readers; it never waits for readers or for events. Events are
// computed later by a reader, or by Run if there are no readers and the queue is long.
type History struct {
	limit     int
	longest   int // longestMessage, except in tests
	inventory Inventory
	changes   func(commit) []event // commit.changes, except in tests

	// mu is taken by commits, so it is only held for short operations.
	mu     sync.Mutex
	queue  []commit      // guarded by mu; commits whose events are not computed yet
	lost   uint64        // guarded by mu; the newest revision that was dropped from the full queue
	moved  chan struct{} // guarded by mu; closed at the next generation, if awaited
	closed bool          // guarded by mu
	// awaited is whether a reader waits on moved.
	awaited bool // guarded by mu
	// due signals Run that the queue has at least pile commits.
	due chan struct{}

	// making is held while events are computed or read. It is taken before mu.
	making sync.Mutex
	// ring has the newest events, encoded, of revisions after the revision after. Once it
	// has limit events, each new event replaces the oldest, which is the one at first.
	ring  []event  // guarded by making
	first int      // guarded by making
	after uint64   // guarded by making
	last  uint64   // guarded by making; the newest revision
	page  *page    // guarded by making; the page that was read last
	start start    // guarded by making
	spare []commit // guarded by making; the memory of the last queue, for reuse

	streams atomic.Int64 // open Watch streams
}

// start has the events of the view of the start, which may be on another machine and under another
// policy than a view of an earlier process with the same revision.
type start struct {
	events   []event
	revision uint64
}

// commit is a commit without computed events: its two views, and the devices at that time.
type commit struct {
	old, new *ledger.View
	devices  *device.Snapshot
}

// longQueue limits the commits without computed events, because each keeps its views in
// memory. If the computation falls further behind, the oldest commits are dropped, and
// readers that need them have to list again.
const longQueue = 1024

// pile is the queue length at which Run computes events if there are no readers.
const pile = 32

// NewHistory returns a history of the newest events, at most limit. limit must be above 0.
func NewHistory(limit int, inventory Inventory) *History {
	return &History{limit: limit, longest: longestMessage, inventory: inventory, changes: commit.changes, moved: make(chan struct{}),
		due: make(chan struct{}, 1)}
}

// Streams returns the number of open Watch streams.
func (h *History) Streams() int { return int(h.streams.Load()) }

// Start sets the first revision. It is called before the first commit.
func (h *History) Start(view *ledger.View) {
	h.making.Lock()
	defer h.making.Unlock()
	h.after, h.last = view.Revision(), view.Revision()
	h.start = start{[]event{sharedCPUs(view), policy(view), machine(view)}, view.Revision()}
}

// sinceStart returns the events of the start to a reader that resumes there.
func (h *History) sinceStart(revision uint64) (out []event) {
	h.making.Lock()
	defer h.making.Unlock()
	if revision != h.start.revision {
		return nil
	}
	for _, e := range h.start.events {
		e.Event = proto.CloneOf(e.Event) // the stream sets its revision
		out = append(out, e)
	}
	return out
}

// Committed adds the change of a commit. Commits arrive one at a time and in order.
func (h *History) Committed(old, new *ledger.View) {
	devices := h.inventory.Inventory()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return // closed: there will be no more readers
	}
	if len(h.queue) == longQueue {
		h.lost = h.queue[0].new.Revision()
		h.queue = slices.Delete(h.queue, 0, 1)
	}
	h.queue = append(h.queue, commit{old, new, devices})
	if h.awaited {
		close(h.moved)
		h.moved, h.awaited = make(chan struct{}), false
	}
	if len(h.queue) >= pile {
		select {
		case h.due <- struct{}{}:
		default: // Run has a pending signal, and will find this commit too
		}
	}
}

// Run computes the events of commits without readers, one pile at a time, until ctx ends.
func (h *History) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.due:
		}
		h.making.Lock()
		h.catchUp(false)
		h.making.Unlock()
	}
}

// catchUp computes the events of all queued commits. It returns whether the history is
// closed and, for readers, a channel that is closed at the next commit. making must be
// held. mu is not held during the computation, so commits do not wait for it.
func (h *History) catchUp(reads bool) (moved <-chan struct{}, closed bool) {
	h.mu.Lock()
	queue, lost := h.queue, h.lost
	h.queue = h.spare[:0]
	moved, closed = h.moved, h.closed
	h.awaited = h.awaited || reads
	h.mu.Unlock()
	if lost > h.after {
		// All computed events are older than the dropped commits, so they are useless.
		h.after, h.ring, h.first = lost, nil, 0
	}
	for _, c := range queue {
		h.last = c.new.Revision()
		for _, e := range h.changes(c) {
			h.add(e)
		}
	}
	clear(queue) // release the views
	h.spare = queue
	return moved, closed
}

// add adds an event to the ring. making must be held.
func (h *History) add(e event) {
	e.encode()
	if len(h.ring) < h.limit {
		h.ring = append(h.ring, e)
		return
	}
	h.after = h.ring[h.first].revision
	h.ring[h.first] = e
	h.first = (h.first + 1) % h.limit
}

// newer returns the events after a revision. making must be held.
func (h *History) newer(revision uint64) []event {
	at := func(i int) *event { return &h.ring[(h.first+i)%len(h.ring)] }
	from := sort.Search(len(h.ring), func(i int) bool { return at(i).revision > revision })
	out := make([]event, 0, len(h.ring)-from)
	for i := from; i < len(h.ring); i++ {
		out = append(out, *at(i))
	}
	return out
}

// Close ends all streams that read the history.
func (h *History) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		close(h.moved)
	}
}

// page is the part of the history after a revision. Streams at the same revision share the
// page and its encoding.
type page struct {
	from   uint64
	events []event
	// revision is the reader's revision after it has read the page.
	revision uint64
	// moved is closed at the next commit.
	moved <-chan struct{}

	// encoded are the messages for streams without filters. The first such stream encodes
	// them.
	once    sync.Once
	encoded []*rpc.Shared
	err     error
}

// sendTo sends the page to a stream without filters. The encoding is the same for all
// streams, because berthd uses no compression.
func (p *page) sendTo(stream grpc.ServerStream, longest int) error {
	p.once.Do(func() {
		for m := range messages(slices.Values(p.events), before, p.revision, longest) {
			var e *rpc.Shared
			if e, p.err = rpc.Share(m); p.err != nil {
				return
			}
			p.encoded = append(p.encoded, e)
		}
	})
	if p.err != nil {
		return p.err
	}
	for _, e := range p.encoded {
		if err := stream.SendMsg(e); err != nil {
			return err
		}
	}
	return nil
}

// since returns the page after a revision of this ledger. Without all, it may return a
// shorter page that another reader at the same revision was given. Errors are of class Gone
// if the events are no longer kept, and Unavailable if the history is closed.
func (h *History) since(revision uint64, all bool) (*page, error) {
	h.making.Lock()
	defer h.making.Unlock()
	moved, closed := h.catchUp(true)
	if closed {
		return nil, errdefs.Unavailablef("berthd ends").Coded(errdefs.ShuttingDown)
	}
	if revision < h.after {
		return nil, errdefs.Gonef("events after revision %d are not kept any more, only those after %d: list, and watch from the list's revision", revision, h.after)
	}
	if !all && h.page != nil && h.page.from == revision && h.page.revision > revision {
		return h.page, nil
	}
	h.page = &page{from: revision, events: h.newer(revision), revision: max(revision, h.last), moved: moved}
	return h.page, nil
}
