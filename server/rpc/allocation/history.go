package allocation

import (
	"context"
	"slices"
	"sort"
	"sync"

	"google.golang.org/grpc"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// History keeps the newest events of the ledger in memory, for readers that come
// back. It is fed by commits and waits for no reader: one that falls behind what
// is kept has to start over. No commit waits for events, its own or others': it only
// notes what it has changed. Readers make events of that, or Run, where nobody reads
// and there is enough of it. So a commit wakes those who wait for it, and nobody else.
type History struct {
	limit     int
	longest   int // longestMessage, but in tests
	inventory Inventory
	changes   func(commit) *change // commit.changes, but in tests

	// mu is what commits take. Nobody does anything lengthy under it.
	mu     sync.Mutex
	queue  []commit      // guarded by mu; what no events have been made of yet
	lost   uint64        // guarded by mu; the newest revision that the queue had no room for
	moved  chan struct{} // guarded by mu; closed at the next generation, if awaited
	closed bool          // guarded by mu
	// awaited tells that a reader has been given moved.
	awaited bool // guarded by mu
	// due has something for Run when there is a pile.
	due chan struct{}

	// making is held by who makes events or reads them. It is taken before mu.
	making sync.Mutex
	// made are the commits after a revision that have events, in order; never changed,
	// only appended to and replaced. They have so many events together.
	made  []*change // guarded by making
	held  int       // guarded by making
	after uint64    // guarded by making
	last  uint64    // guarded by making; the newest revision
	page  *page     // guarded by making; the one that was read last
	spare []commit  // guarded by making; the room of the last queue
}

// commit is what a commit has changed, with the devices of that moment.
type commit struct {
	old, new *ledger.View
	devices  *device.Snapshot
}

// longQueue is how many commits wait for their events at most, whose views are kept
// until then. It takes making events slower than a thousand commits for that; then
// the oldest are given up, as events are that are too old.
const longQueue = 1024

// pile is how many commits wait for their events where nobody reads.
const pile = 32

// NewHistory makes a history of at least limit events, which is above 0.
func NewHistory(limit int, inventory Inventory) *History {
	return &History{limit: limit, longest: longestMessage, inventory: inventory, changes: commit.changes, moved: make(chan struct{}), due: make(chan struct{}, 1)}
}

// Start says where the history begins. It is called before the first commit.
func (h *History) Start(view *ledger.View) {
	h.making.Lock()
	defer h.making.Unlock()
	h.after, h.last = view.Revision(), view.Revision()
}

// Committed adds what a commit changed. Commits come one at a time and in order.
func (h *History) Committed(old, new *ledger.View) {
	devices := h.inventory.Inventory()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return // no reader comes any more
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
		default: // Run will find this one as well
		}
	}
}

// Run makes events of commits that nobody reads, pile by pile, until ctx ends.
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

// catchUp makes the events of the commits that wait for them, and tells what is
// closed when there are more, for who reads, and whether the history is. The lock
// making is held; mu is not while events are made, so that commits come and go.
func (h *History) catchUp(reads bool) (moved <-chan struct{}, closed bool) {
	h.mu.Lock()
	queue, lost := h.queue, h.lost
	h.queue = h.spare[:0]
	moved, closed = h.moved, h.closed
	h.awaited = h.awaited || reads
	h.mu.Unlock()
	if lost > h.after {
		// What has been made is all from before the gap.
		h.after, h.made, h.held = lost, nil, 0
	}
	for _, c := range queue {
		h.last = c.new.Revision()
		if change := h.changes(c); len(change.events) > 0 {
			h.made, h.held = append(h.made, change), h.held+len(change.events)
		}
	}
	clear(queue) // of views that nobody else has
	h.spare = queue
	h.trim()
	return moved, closed
}

// trim drops old commits once there are far more events than the limit. The lock making
// is held.
func (h *History) trim() {
	if h.held < 2*h.limit {
		return
	}
	cut := 0
	for ; h.held > h.limit; cut++ {
		h.held -= len(h.made[cut].events)
		h.after = h.made[cut].revision
	}
	h.made = slices.Clone(h.made[cut:])
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

// page is what a history has after a revision. Streams that have come as far as each
// other share it, and its encoding.
type page struct {
	from    uint64
	changes []*change
	// revision that a reader of the changes has reached.
	revision uint64
	// moved is closed when there may be more.
	moved <-chan struct{}

	// encoded are the messages to streams without filters, made by the first that sends
	// them.
	once    sync.Once
	encoded []*grpc.PreparedMsg
	err     error
}

// events are those of all commits of the page.
func (p *page) events() (all []event) {
	for _, c := range p.changes {
		all = append(all, c.events...)
	}
	return all
}

// sendTo sends the messages of the page to a stream that wants all of it. Streams differ
// in nothing that their encoding depends on: berthd knows no compression.
func (p *page) sendTo(stream grpc.ServerStream, longest int) error {
	p.once.Do(func() {
		for m := range messages(slices.Values(p.events()), before, p.revision, longest) {
			e := &grpc.PreparedMsg{}
			if p.err = e.Encode(stream, m); p.err != nil {
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

// since returns the events after a revision that the ledger has had: all of them, or where
// that is enough those that another reader was given who had come as far. Errors are of
// class Gone if they are not kept any more, Unavailable once it is closed.
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
	i := sort.Search(len(h.made), func(i int) bool { return h.made[i].revision > revision })
	h.page = &page{from: revision, changes: h.made[i:len(h.made):len(h.made)], revision: max(revision, h.last), moved: moved}
	return h.page, nil
}
