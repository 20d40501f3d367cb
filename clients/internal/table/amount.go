package table

import (
	"strconv"
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
