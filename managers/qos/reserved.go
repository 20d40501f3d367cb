package qos

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// Percent is a whole percentage, 0 to 100.
type Percent int

// of gives the percentage of an amount, rounded down.
func (p Percent) of(amount int64) int64 {
	if amount <= 0 || p <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(amount), uint64(p))
	part, _ := bits.Div64(hi, lo, 100)
	return int64(part)
}

// ParseReserved reads qosReserved: for memory, the only resource allowed, a whole
// percentage such as 50%. Anything else is an error of class Invalid.
func ParseReserved(given map[string]string) (Percent, error) {
	var memory Percent
	for resource, text := range given {
		if resource != string(workload.Memory) {
			return 0, errdefs.Invalidf("qosReserved: cannot reserve %q resource, expected %s only", resource, workload.Memory)
		}
		digits := strings.TrimRight(text, "%")
		n, err := strconv.Atoi(digits)
		if err != nil || digits == text || n < 0 || n > 100 {
			return 0, errdefs.Invalidf("qosReserved: %s=%q, expected a whole percentage from 0%% to 100%%", resource, text)
		}
		memory = Percent(n)
	}
	return memory, nil
}
