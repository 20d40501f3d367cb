package table

import (
	"strconv"
	"strings"
	"time"

	"github.com/berthd/berth/managers/workload"
)

// Bytes returns a number of bytes as shortages have it.
func Bytes(n uint64) string {
	return workload.Bytes(n)
}

// Age returns a time span in its largest unit: 42s, 3m, 5h, 12d. A time in the future is 0s.
func Age(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return strconv.Itoa(int(d/time.Second)) + "s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + "m"
	case d < 2*day:
		return strconv.Itoa(int(d/time.Hour)) + "h"
	}
	return strconv.Itoa(int(d/day)) + "d"
}

// Count puts a number before a noun: 1 core, 2 cores.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// unit is a binary unit: 1 is Ki, 2 is Mi.
type unit int

// spell gives an amount in the unit, with one digit behind the point where it is not whole.
func (u unit) spell(n uint64) string {
	if n == 0 {
		return "0"
	}
	s := strconv.FormatFloat(float64(n)/float64(uint64(1)<<(10*u)), 'f', 1, 64)
	return strings.TrimSuffix(s, ".0") + []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}[u]
}

// commonUnit is the largest unit, at most Gi, in which no amount but 0 is below 1, and at least Ki.
func commonUnit(amounts []uint64) unit {
	u := unit(3)
	for _, n := range amounts {
		for n > 0 && u > 1 && n>>(10*u) == 0 {
			u--
		}
	}
	return u
}
