package convert

import (
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// Owner checks the name of an agent in a request, and notes one that is no DNS label.
// Empty means the default one.
func Owner(field, owner string, vs *errdefs.Violations) {
	if owner != "" && !workload.IsDNSLabel(owner) {
		vs.Addf(field, "%.80q: expected a DNS label of at most 63 characters", owner)
	}
}
