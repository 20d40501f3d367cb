package allocation

import allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"

// LongQueue is how many commits may wait for their events, and Pile how many do where
// nobody reads.
const (
	LongQueue = longQueue
	Pile      = pile
)

// BeforeEvents has a function called before the events of each commit are made, by
// who makes them. It is set before the first commit.
func (h *History) BeforeEvents(call func(revision uint64)) {
	h.changes = func(c commit) []event {
		call(c.new.Revision())
		return c.changes()
	}
}

// AfterEvents has a function called with the events of each commit that has any, by who
// makes them. It is set before the first commit.
func (h *History) AfterEvents(call func(revision uint64, events []*allocationv1.Event)) {
	h.changes = func(c commit) []event {
		out := c.changes()
		var events []*allocationv1.Event
		for _, e := range out {
			events = append(events, e.Event)
		}
		call(c.new.Revision(), events)
		return out
	}
}

// Read is one read of a reader with a revision.
func (h *History) Read(revision uint64) error {
	_, err := h.since(revision, true)
	return err
}

// Moved is what readers wait for; to look at it is not to wait.
func (h *History) Moved() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.moved
}

// Due reports whether there is something for Run.
func (h *History) Due() bool { return len(h.due) > 0 }

// Split has messages of more than a number of bytes come in parts. It is called
// before the first stream.
func (h *History) Split(bytes int) { h.longest = bytes }

// Kept is how many messages are kept for other streams that come to where the last reader
// came to.
func (h *History) Kept() int {
	h.making.Lock()
	defer h.making.Unlock()
	return len(h.page.encoded)
}
