package convert

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

const (
	// maxQuantity bounds the text of an amount: longer ones are no honest input.
	maxQuantity = 64
	// maxExponent bounds the digits of a decimal exponent. The parser works with
	// numbers with as many digits as the exponent, for hours where that is
	// -2147483647, and it takes 1e4294967296 for 1.
	maxExponent = 2
	// maxResource is the longest name of a resource: a DNS subdomain, a slash and
	// a name.
	maxResource = 253 + 1 + 63
)

// quantity reads one amount and what rounding up put on it. Errors are
// descriptions for a violation.
func quantity(name workload.Resource, text string) (amount, excess int64, err error) {
	if n, ok := plain(name, text); ok {
		return n, 0, nil
	}
	if len(text) > maxQuantity {
		return 0, 0, fmt.Errorf("%d characters: expected a quantity of at most %d", len(text), maxQuantity)
	}
	if n := exponentDigits(text); n > maxExponent {
		return 0, 0, fmt.Errorf("%q: expected an exponent of at most %d digits", text, maxExponent)
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, 0, fmt.Errorf("%q: expected a Kubernetes quantity such as 2, 500m or 1Gi", text)
	}
	if whole, ok := wholeUnits(name, &q); ok {
		return whole, 0, nil
	}
	d := q.AsDec()
	amount, excess, ok := workload.RoundUp(name, d.UnscaledBig(), int(d.Scale()))
	if !ok {
		return 0, 0, fmt.Errorf("%q: does not fit into 64 bits", text)
	}
	return amount, excess, nil
}

// plainDigits is how many digits plain reads: with the largest suffix they fit into 63 bits.
const plainDigits = 6

// plain reads what nearly every manifest has: a few digits, with m for CPU and with a
// binary suffix for all else. Kubernetes' parser takes ten times as long.
func plain(name workload.Resource, text string) (amount int64, ok bool) {
	digits := 0
	for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
		amount = amount*10 + int64(text[digits]-'0')
		if digits++; digits > plainDigits {
			return 0, false
		}
	}
	if digits == 0 {
		return 0, false
	}
	switch suffix := text[digits:]; {
	case name == workload.CPU && suffix == "":
		return amount * 1000, true
	case name == workload.CPU:
		return amount, suffix == "m"
	case suffix == "":
		return amount, true
	case suffix == "Ki":
		return amount << 10, true
	case suffix == "Mi":
		return amount << 20, true
	case suffix == "Gi":
		return amount << 30, true
	case suffix == "Ti":
		return amount << 40, true
	}
	return 0, false
}

// wholeUnits reads an amount that is a whole number of its unit, as nearly every one
// is. Only the others, and those that are too large, take arithmetic without bounds.
func wholeUnits(name workload.Resource, q *resource.Quantity) (amount int64, ok bool) {
	if name == workload.CPU {
		amount = q.MilliValue()
		return amount, q.Cmp(*resource.NewMilliQuantity(amount, resource.DecimalSI)) == 0
	}
	amount = q.Value()
	return amount, q.Cmp(*resource.NewQuantity(amount, resource.DecimalSI)) == 0
}

// exponentDigits counts the digits behind an e or E.
func exponentDigits(text string) int {
	at := strings.IndexAny(text, "eE")
	if at < 0 {
		return 0
	}
	digits := strings.TrimLeft(text[at+1:], "+-")
	return len(digits) - len(strings.TrimLeft(digits, "0123456789"))
}

// tooLong notes a resource name that cannot be one, so that no error has to
// carry it.
func tooLong(name, path string, vs *errdefs.Violations) bool {
	if len(name) <= maxResource {
		return false
	}
	vs.Addf(path, "%d characters: expected a resource name of at most %d", len(name), maxResource)
	return true
}

// short cuts a name that is too long to be shown.
func short(name string) string {
	if len(name) <= maxResource {
		return name
	}
	return strings.ToValidUTF8(name[:40], "") + "..."
}
