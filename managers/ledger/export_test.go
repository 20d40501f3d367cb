package ledger

import (
	"github.com/berthd/berth/managers/machine/machinetest"
)

// SchemaVersion is for tests outside the package.
const SchemaVersion = schemaVersion

// dumpable is the view of a decoded state.
func dumpable(s State) *View {
	s.Rules, s.TraceLimits = Rules{Machine: machinetest.Build("1s1n1c1t")}, TraceLimits{DefaultTraces, DefaultTraceBytes}
	return NewView(s)
}
