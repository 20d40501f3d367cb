package workload

import (
	"strconv"
	"strings"
)

// binary are the suffixes of whole powers of 1024.
var binary = [...]string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}

// Text gives an amount of r as a Kubernetes quantity for people, exactly: 2 or 500m of cpu, 64Mi of memory, 3 of a device.
func (r Resource) Text(amount int64) string {
	switch {
	case r == CPU && amount%1000 != 0:
		return strconv.FormatInt(amount, 10) + "m"
	case r == CPU:
		return strconv.FormatInt(amount/1000, 10)
	case r == Memory, r == EphemeralStorage, r.IsHugePages():
		unit := 0
		for amount != 0 && amount%1024 == 0 && unit < len(binary)-1 {
			amount /= 1024
			unit++
		}
		return strconv.FormatInt(amount, 10) + binary[unit]
	}
	return strconv.FormatInt(amount, 10)
}

// Bytes gives a number of bytes in the largest binary unit that leaves at least one, with one digit behind the point
// where it is not whole: 512, 1.5Ki, 16Gi.
func Bytes(n uint64) string {
	i := 0
	for n>>(10*(i+1)) > 0 && i < len(binary)-1 {
		i++
	}
	if n&(1<<(10*i)-1) == 0 {
		return strconv.FormatUint(n>>(10*i), 10) + binary[i]
	}
	s := strconv.FormatFloat(float64(n)/float64(uint64(1)<<(10*i)), 'f', 1, 64)
	return strings.TrimSuffix(s, ".0") + binary[i]
}
