// Package epoch makes the ids of epochs of the ledger.
package epoch

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/berthd/berth/managers/ledger"
)

// NewID draws the id of a new epoch: 64 random bits, never zero.
func NewID() ledger.EpochID {
	for {
		var bits [8]byte
		_, _ = rand.Read(bits[:]) // never fails, says its documentation
		if id := binary.NativeEndian.Uint64(bits[:]); id != 0 {
			return ledger.EpochID(id)
		}
	}
}
