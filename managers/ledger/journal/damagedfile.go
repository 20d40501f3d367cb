package journal

import (
	"time"

	"github.com/berthd/berth/managers/ledger"
)

// DamagedFile is the report on a file that was set aside.
type DamagedFile struct {
	// Time of the discovery.
	Time time.Time `json:"time"`
	// File as it was named, and SetAside as it is named now.
	File     string `json:"file"`
	SetAside string `json:"set_aside"`
	// Error that the file was refused with.
	Error string `json:"error"`
	// Report of the ledger: the damage, the lost pods, and the unreadable parts.
	Report Report `json:"report"`
	// EpochID and Generation of the file that was created from the intact records. The ledger
	// still has them until its first commit.
	EpochID    ledger.EpochID `json:"epoch_id"`
	Generation uint64         `json:"generation"`
}
