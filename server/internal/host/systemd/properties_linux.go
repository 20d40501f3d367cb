package systemd

import (
	"maps"
	"math"
	"slices"
	"strconv"

	units "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/berthd/berth/managers/cgroup"
)

// The versions of systemd that introduced properties. With an older one the values are only
// written to the files.
const (
	sinceQuotaPeriod = 242
	sinceCpuset      = 244
)

func property(name string, value any) units.Property {
	return units.Property{Name: name, Value: dbus.MakeVariant(value)}
}

// beginning are the properties of a new slice. Accounting enables a controller. On v2, however,
// systemd accounts CPU time without the cpu controller, and disables the controller when no
// sibling has a weight. Each slice therefore has a weight, initially the kernel's default.
func beginning(parent string, f cgroup.Facts) []units.Property {
	io, weight := "IOAccounting", property("CPUWeight", uint64(100))
	if f.Version == cgroup.V1 {
		io, weight = "BlockIOAccounting", property("CPUShares", uint64(1024))
	}
	return []units.Property{
		weight,
		units.PropDescription("berth: a cgroup of pods"),
		units.PropWants(parent),
		property("MemoryAccounting", true), property("CPUAccounting", true),
		property(io, true), property("TasksAccounting", true),
		property("DefaultDependencies", false),
	}
}

// memoryProperties are the systemd properties of v2's memory files.
var memoryProperties = map[string]string{
	"memory.high": "MemoryHigh", "memory.low": "MemoryLow", "memory.min": "MemoryMin", "memory.swap.max": "MemorySwapMax",
}

// properties gives values as systemd has them (systemd.resource-control(5)), as far as
// it has them.
func properties(v cgroup.Values, f cgroup.Facts, version int) []units.Property {
	v = v.For(f)
	var out []units.Property
	add := func(name string, value any) { out = append(out, property(name, value)) }
	memory := "MemoryMax"
	if f.Version == cgroup.V1 {
		memory = "MemoryLimit"
	}
	if v.MemoryBytes != nil {
		add(memory, limit(*v.MemoryBytes))
	}
	if v.CPUShares != nil {
		add("CPUShares", *v.CPUShares)
	}
	if v.CPUWeight != nil {
		add("CPUWeight", *v.CPUWeight)
	}
	if v.CPUPeriodUS != nil && version >= sinceQuotaPeriod {
		add("CPUQuotaPeriodUSec", *v.CPUPeriodUS)
	}
	if v.CPUQuotaUS != nil {
		add("CPUQuotaPerSecUSec", perSecond(v))
	}
	if v.PIDs != nil {
		add("TasksMax", limit(*v.PIDs))
	}
	if !v.CPUs.IsEmpty() && version >= sinceCpuset {
		add("AllowedCPUs", bits(v.CPUs.IDs()))
	}
	if !v.Mems.IsEmpty() && version >= sinceCpuset {
		add("AllowedMemoryNodes", bits(v.Mems.IDs()))
	}
	for _, file := range slices.Sorted(maps.Keys(memoryProperties)) {
		if text, ok := v.Unified[file]; ok {
			if bytes, err := strconv.ParseUint(text, 10, 64); err == nil {
				add(memoryProperties[file], bytes)
			} else if text == "max" {
				add(memoryProperties[file], uint64(math.MaxUint64))
			}
		}
	}
	return out
}

// limit gives a number with systemd's infinity.
func limit(n int64) uint64 {
	if n < 0 {
		return math.MaxUint64
	}
	return uint64(n)
}

// perSecond gives a quota in microseconds for each second. It is in whole percents
// already (Values.For), but for what its division by the period loses.
func perSecond(v cgroup.Values) uint64 {
	const second, percent = 1_000_000, 10_000
	if *v.CPUQuotaUS < 0 {
		return math.MaxUint64
	}
	period := uint64(cgroup.DefaultPeriodUS)
	if v.CPUPeriodUS != nil {
		period = *v.CPUPeriodUS
	}
	quota := uint64(*v.CPUQuotaUS) * second / period
	return (quota + percent - 1) / percent * percent
}

// bits gives a set as systemd's mask: bit 0 of byte 0 is number 0.
func bits(ids []int) []byte {
	out := make([]byte, ids[len(ids)-1]/8+1)
	for _, id := range ids {
		out[id/8] |= 1 << (id % 8)
	}
	return out
}
