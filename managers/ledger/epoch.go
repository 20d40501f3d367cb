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

// Epoch is the lifetime of the file, and the boot, of a view.
type Epoch struct {
	Base uint64 // of the revisions: Options.Epoch at the ledger's creation
	ID   EpochID
	Boot string
}

// Generation returns the generation of a revision; false if it is of another epoch.
func (e Epoch) Generation(revision uint64) (generation uint64, ok bool) {
	return revision - e.Base<<epochShift, e.Base < 1<<(64-epochShift) && revision >= e.Base<<epochShift
}

// Epoch returns the ledger's epoch, and the boot of BootID.
func (v *View) Epoch() Epoch { return v.epoch }

// EpochID returns the id of the ledger's epoch; zero if the ledger was opened without one.
// A new id is durable with the first commit.
func (v *View) EpochID() EpochID { return v.epoch.ID }

// BootID returns the kernel's id of the boot in which the ledger was opened or, without
// Options.BootID, of the last commit. Report.LastBootID is that of the last commit before
// the start.
func (v *View) BootID() string { return v.epoch.Boot }

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
	next := *l.View()
	next.epoch.ID = id
	return l.commit(ctx, &next, nil)
}
