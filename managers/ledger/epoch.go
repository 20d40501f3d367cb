package ledger

import (
	"context"
	"fmt"
	"strconv"

	"github.com/berthd/berth/managers/errdefs"
)

// EpochID identifies one lifetime of a ledger's file: a random number, drawn when the file
// is created, restored or salvaged. Generations are comparable only within one epoch. Zero
// means that the epoch is unknown.
//
// It is not the base of the revisions (Options.Epoch), which is a time and orders ledgers.
// An EpochID has no order and is only compared for equality.
type EpochID uint64

// String returns 16 hexadecimal digits.
func (e EpochID) String() string { return fmt.Sprintf("%016x", uint64(e)) }

// MarshalText implements encoding.TextMarshaler.
func (e EpochID) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *EpochID) UnmarshalText(text []byte) error {
	number, err := strconv.ParseUint(string(text), 16, 64)
	if err != nil || len(text) != len(EpochID(0).String()) {
		return fmt.Errorf("%q is no epoch id: 16 hexadecimal digits are expected", text)
	}
	*e = EpochID(number)
	return nil
}

// epoch is the lifetime of the file, and the boot, of a view.
type epoch struct {
	base uint64 // of the revisions: Options.Epoch at the ledger's creation
	id   EpochID
	boot string
}

// EpochID returns the id of the ledger's epoch; zero if the ledger was opened without one.
// A new id is durable with the first commit.
func (v *View) EpochID() EpochID { return v.epoch.id }

// BootID returns the kernel's id of the boot in which the ledger was opened or, without
// Options.BootID, of the last commit. Report.LastBootID is that of the last commit before
// the start.
func (v *View) BootID() string { return v.epoch.boot }

// RenewEpoch begins a new epoch, as a separate generation, for a ledger that is found to be
// an older copy, or not the one that others have read. Revisions continue. Drafts on older
// views become stale. The id must not be zero (class Invalid) and should be random; other
// errors are those of a failed write.
func (l *Ledger) RenewEpoch(ctx context.Context, id EpochID) (*View, error) {
	if id == 0 {
		return nil, errdefs.Invalidf("renew the ledger's epoch: no id given")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.View()
	next := *old
	next.generation, next.epoch.id = old.generation+1, id
	record, err := l.record(ctx, old, &next)
	if err != nil {
		return nil, errdefs.Internalf("renew the ledger's epoch: %w", err)
	}
	entries, err := encodeMeta(&next, old.rules)
	if err != nil {
		return nil, errdefs.Internalf("renew the ledger's epoch: %w", err)
	}
	if err := l.write(ctx, old, &next, entries, record); err != nil {
		return nil, err
	}
	return &next, nil
}

// enter sets a loaded view's epoch and boot, and returns whether they differ from the
// stored ones.
func (o *Options) enter(v *View) (changed bool) {
	if v.epoch.id == 0 && o.EpochID != 0 {
		v.epoch.id, changed = o.EpochID, true
	}
	if o.BootID != "" && v.epoch.boot != o.BootID {
		v.epoch.boot, changed = o.BootID, true
	}
	return changed
}
