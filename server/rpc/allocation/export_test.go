package allocation

// LongQueue is how many commits may wait for their events, and Pile how many do where
// nobody reads.
const (
	LongQueue = longQueue
	Pile      = pile
)

// BeforeEvents has a function called before the events of each commit are made, by
// who makes them. It is set before the first commit.
func (h *History) BeforeEvents(call func(revision uint64)) {
	h.events = func(c commit) []*event {
		call(c.new.Revision())
		return c.events()
	}
}

// Read is what a reader asks that knows a revision, and leaves again.
func (h *History) Read(revision uint64) error {
	_, err := h.since(revision)
	return err
}

// Moved is what readers wait for; to look at it is not to wait.
func (h *History) Moved() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.moved
}

// Due tells whether there is something for Run.
func (h *History) Due() bool { return len(h.due) > 0 }
