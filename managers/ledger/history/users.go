package history

import "time"

// userEntries counts those of a user.
type userEntries struct {
	second            int64
	count             int    // refusals in the second
	omitted           uint64 // refusals and changes since the last recorded one
	telling           uint64 // those of omitted that the entry of a change has, which is being committed
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
func (h *History) cost(s *historyShare, most float64, count, size int) (cost float64, left bool) {
	now := h.now()
	if passed := now.Sub(s.asOf); passed > 0 {
		s.used = max(0, s.used-most*float64(passed)/float64(sharePeriod))
	}
	s.asOf = now
	entries, bytes := float64(h.limits.Entries), float64(h.limits.Bytes)
	cost = max(float64(count)/entries, float64(size)/bytes)
	return cost, s.used+cost <= max(most, leastEntries/entries, leastEntryBytes/bytes)
}

// entriesOf returns those of an entry's user, with the refusals in this second. mu must be held.
func (h *History) entriesOf(e *Entry) *userEntries {
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
func (h *History) forgetUser() {
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
func (e *Entry) user() uint32 {
	if e.Caller == nil {
		return ^uint32(0) // unknown
	}
	return e.Caller.UID
}
