package ledger

import (
	"github.com/berthd/berth/managers/machine/machinetest"
)

// SchemaVersion is for tests outside the package.
const SchemaVersion = schemaVersion

// dumpable completes a decoded view.
func dumpable(v View) *View {
	v.rules = Rules{Machine: machinetest.Build("1s1n1c1t")}
	v.traces.limits = traceLimits{DefaultTraces, DefaultTraceBytes}
	v.derive()
	return &v
}

// SealText makes the entry for a text.
func SealText(bucket, key, text string) Entry { return sealText(bucket, key, []byte(text)) }
