// Package explain finds what a refused pod lacked, and the changes with which it
// would fit.
//
// Words:
//
//   - refusal: a request that failed, with the views and the managers that it failed on.
//   - shortage: what a set of NUMA nodes lacks for the request, and who holds it.
//   - change: another amount, another policy, or pods gone. One is tried by a dry run.
//   - suggestion: a change with which a dry run admitted the pod. Nothing else is
//     offered.
//
// Invariants: the dry runs are bounded in number and in time, and the search among
// requests leaves enough of them for the search among pods; the ledger, the managers
// and the refused pod do not change; the same refusal gives the same answer. The
// package takes no lock and makes no remote call.
//
// Other modules may import this package, and every release may change it.
package explain

import (
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
)

// Refusal is a request that was refused, with what it was decided on.
type Refusal struct {
	// Request is the one that failed, for a pod or one of its containers, and Err why.
	Request hint.Request
	Err     error
	// Base is the view without the pod, and Planned with what the pod had when the
	// request failed.
	Base, Planned *ledger.View
	// Bus explains what a request lacks, and Policy is the one in force.
	Bus    hint.Explainer
	Policy *topology.Manager
}
