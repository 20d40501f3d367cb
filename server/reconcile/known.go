package reconcile

import (
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// known tells the classes of the pods of a view.
func known(view *ledger.View) func(uid string) (workload.QoSClass, bool) {
	return func(uid string) (workload.QoSClass, bool) {
		p, ok := view.Pod(uid)
		if !ok {
			return "", false
		}
		return p.QoS, true
	}
}
