package simulation

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/machine"
)

// Record holds what a berthd has recorded.
type Record struct {
	// View is the state that the history leads to. Fingerprint is that of its machine, and
	// ConfigDigest that of the configuration in files and flags.
	View                      *ledger.View
	Fingerprint, ConfigDigest string
	// Machine and Config are nil if they are not known.
	Machine *machine.Topology
	Config  *config.Config
	// Today has the digests that today's berth gives configurations with other recorded digests.
	Today map[string]string
	// History calls each with the entries, the newest first, and with the damage of those that
	// cannot be read, until each returns false.
	History func(each func(*history.Entry, error) bool) error
}

// recorded is an entry of the history with what it changed.
type recorded struct {
	*history.Entry
	changes []ledger.Change
	unknown []unknownAfter
	// config is the digest of the configuration that decided.
	config string
	// basis is the number of entries that led to the state that a verdict was decided on, or notKnown.
	basis int
	// rules is nil unless the entry changed the rules or the override.
	rules *rulesAfter
}

// unknownAfter is what is known of a running pod after an entry; nil if it is not recorded.
type unknownAfter struct {
	uid string
	pod *ledger.UnknownLivePod
}

// rulesAfter are rules after an entry.
type rulesAfter struct {
	machine  *machine.Topology
	reserved cpuset.Set
	override *ledger.Override
	config   string
}

// timeline is a history in the order of its decisions.
type timeline struct {
	// begin is the state before the first entry.
	begin   *ledger.View
	entries []recorded
	// why there is no earlier state, and how many older entries were left out.
	why   string
	older int
}

// mostChanges limits the changes that a timeline has in memory, those of some 100,000 calls.
const mostChanges = 1 << 18

// read computes the states between the entries, from mostChanges of the newest changes. Refusals
// have their place by the revision that they were decided on: they are written with the next
// commit. An error is that of History, or of ctx.
func (r *Record) read(ctx context.Context) (timeline, error) {
	var out timeline
	rewinder, changes := history.NewRewinder(r.View), 0
	next := func(e *history.Entry, damage error) bool {
		if changes > mostChanges {
			rewinder.Why = fmt.Sprintf("a replay takes %d changes, and there are more", mostChanges)
		}
		last, after := rewinder.Oldest, rewinder.View
		if !rewinder.Next(e, damage) {
			return false
		}
		if last != nil {
			entry := between(rewinder.View, after, last)
			out.entries = append(out.entries, entry)
			changes += 1 + len(entry.changes) + len(entry.unknown)
		}
		return true
	}
	err := r.History(func(e *history.Entry, damage error) bool {
		if out.older > 0 || !next(e, damage) {
			out.older++
		}
		return ctx.Err() == nil
	})
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return out, err
	}
	if out.older == 0 && rewinder.Oldest != nil && rewinder.Oldest.Number > 0 {
		// The state before the oldest entry is known, too, unless it says otherwise.
		before := *rewinder.Oldest
		before.Number--
		next(&before, nil)
	}
	if out.begin, out.why = rewinder.View, rewinder.Why; rewinder.Oldest != nil {
		switch {
		case out.why != "":
			out.older++ // its own change is known, and not what it was decided on
		case rewinder.Oldest.Number > 0:
			out.why = "older entries were dropped"
		}
	}
	slices.Reverse(out.entries)
	revision := uint64(0)
	for i := range out.entries {
		e := &out.entries[i]
		if e.Revision == 0 {
			e.Revision = revision
		}
		revision = max(revision, e.Revision)
	}
	slices.SortStableFunc(out.entries, func(a, b recorded) int {
		switch {
		case a.Revision < b.Revision:
			return -1
		case a.Revision > b.Revision:
			return 1
		}
		return 0
	})
	out.findBases()
	return out, nil
}

// between returns an entry with the differences of the views before and after it.
func between(before, after *ledger.View, e *history.Entry) recorded {
	own := *e
	own.Before = nil // the changes have it
	out := recorded{Entry: &own, changes: ledger.Changes(before, after), config: before.Rules().ConfigDigest}
	if e.Before == nil {
		return out
	}
	for _, u := range e.Before.Unknown {
		now := unknownAfter{uid: u.UID}
		if pod, ok := after.UnknownLivePod(u.UID); ok {
			now.pod = &pod
		}
		out.unknown = append(out.unknown, now)
	}
	if e.Before.Rules != nil {
		out.rules = &rulesAfter{after.Machine(), after.Rules().ReservedCPUs, after.Override(), after.Rules().ConfigDigest}
	}
	return out
}

// after returns the record of the entry's pod after the entry; nil if it has none.
func (e *recorded) after() *ledger.Pod {
	for _, c := range e.changes {
		if (c.Kind == ledger.PodAdded || c.Kind == ledger.PodChanged) && c.Pod.UID() == e.Pod {
			return c.Pod
		}
	}
	return nil
}

// isOn returns whether a machine is that of the record, as far as it is known.
func (r *Record) isOn(m *machine.Topology) bool {
	if m.Fingerprint() != r.Fingerprint || r.Machine == nil {
		return m.Fingerprint() == r.Fingerprint
	}
	a, b := m.Snapshot(), r.Machine.Snapshot()
	a.Name, a.Description, a.Notes = b.Name, b.Description, b.Notes // a masked record has none
	return reflect.DeepEqual(a, b)
}

// inForce returns what decides in a state of the record: a configuration, or the policy that a call
// has set over it. A policy that was set over another configuration does not count, as at a start
// of berthd. today is Record.Today.
func inForce(c config.Config, o *ledger.Override, today map[string]string) (config.Config, error) {
	if o == nil {
		return c, nil
	}
	digest, err := c.Digest()
	if err != nil || cmp.Or(today[o.Over], o.Over) != digest {
		return c, err
	}
	policy, err := config.ReadPolicy(o.Settings)
	return c.With(policy), err
}

// RecordOf returns the record in a bundle. The machine is the bundle's; for one without, it is
// the one that the bundle's state is put on.
func RecordOf(b *bundle.Bundle, m *machine.Topology) (*Record, error) {
	if b.State == nil {
		return nil, errdefs.Invalidf("the bundle has no %s", bundle.StatePart)
	}
	if b.Machine != nil {
		m = b.Machine
	}
	view, err := b.State.View(m)
	if err != nil {
		return nil, errdefs.Invalidf("%s: %w", bundle.StatePart, err)
	}
	r := &Record{
		View: view, Fingerprint: b.State.Machine, ConfigDigest: b.State.Config,
		Machine: b.Machine, Config: b.Config, History: b.EachEntry,
	}
	files := b.State.Config
	if b.State.Override != nil {
		files = b.State.Override.Over
	}
	r.ConfigDigest = files
	if b.Config == nil {
		return r, nil
	}
	// An earlier berthd may have had fewer fields, and other digests.
	if r.ConfigDigest, err = b.Config.Digest(); err != nil {
		return nil, err
	}
	r.Today = map[string]string{files: r.ConfigDigest}
	if o := b.State.Override; o != nil {
		policy, err := config.ReadPolicy(o.Settings)
		if err != nil {
			return nil, errdefs.Invalidf("%s: %w", bundle.StatePart, err)
		}
		if r.Today[b.State.Config], err = b.Config.With(policy).Digest(); err != nil {
			return nil, err
		}
	}
	return r, nil
}
