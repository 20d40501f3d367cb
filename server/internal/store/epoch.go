package store

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/berthd/berth/managers/ledger"
)

// NewEpochID draws the id of a new epoch: 64 random bits, never zero.
func NewEpochID() ledger.EpochID {
	for {
		var bits [8]byte
		_, _ = rand.Read(bits[:]) // never fails, says its documentation
		if id := binary.NativeEndian.Uint64(bits[:]); id != 0 {
			return ledger.EpochID(id)
		}
	}
}
