package journal

import (
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// SchemaVersion is for tests outside the package.
const SchemaVersion = schemaVersion

// dumpable is the view of a decoded state.
func dumpable(s ledger.State) *ledger.View {
	s.Rules = ledger.Rules{Machine: machinetest.Build("1s1n1c1t")}
	s.TraceLimits = ledger.TraceLimits{Count: DefaultTraces, Bytes: DefaultTraceBytes}
	return ledger.NewView(s)
}
