package convert

import (
	"fmt"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// Amounts reads quantities in Kubernetes' grammar by resource, with what rounding up put
// on them; field names the map in what is wrong with them.
func Amounts(field string, texts map[string]string) (amounts, excess workload.Quantities, bad errdefs.Violations) {
	amounts, excess = quantities(texts, func(r workload.Resource) string { return fmt.Sprintf("%s[%q]", field, r) }, &bad)
	return amounts, excess, bad
}

// AmountTexts writes quantities as Amounts reads them.
func AmountTexts(q, excess workload.Quantities) map[string]string { return amounts(q, excess) }
