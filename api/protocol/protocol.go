// Package protocol has the constants that both sides of a protocol of berth need, where no message has them.
//
// Invariants: a constant is here only if a server and a client would differ without it.
package protocol

import "time"

// ClaimResource is the resource of the external devices with which berth-nri reports that a container uses a claim of berth-dra, and
// the kind of the CDI devices of such claims. The id of a device is UID:PART.
const ClaimResource = "dra.berthd.github.io/claim"

// MaxImmovableReason is the greatest length of immovable_reason in a report of memory (LifecycleService.ReportMemory), in bytes.
const MaxImmovableReason = 256

// MoveRetryInterval is the pause between two attempts to move memory that has stayed on its NUMA nodes: the pages may have been in
// use for a moment. A report that memory stays is valid for about as long.
const MoveRetryInterval = 30 * time.Second
