package node

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// Threshold tells how little of a resource may be left: an amount, or a part of the
// capacity.
type Threshold struct {
	Amount int64
	// Excess is what rounding put on it; see workload.Excess.
	Excess int64
	// Part is in the range 0 to 1. It has the kubelet's 32 bits, whose rounding
	// shows in large amounts.
	Part float32
}

// of gives the amount for a capacity.
func (t Threshold) of(capacity int64) workload.Exact {
	if t.Part != 0 {
		return workload.Exact{Whole: int64(float64(capacity) * float64(t.Part))}
	}
	return workload.Exact{Whole: t.Amount, Excess: t.Excess}
}

// Thresholds are the hard eviction thresholds by the resource that they keep
// free. Only memory and ephemeral storage can be among them.
type Thresholds map[workload.Resource]Threshold

// evictionSignals are the kubelet's eviction signals with the resource that each
// keeps free, empty where pods cannot request it.
var evictionSignals = map[string]workload.Resource{
	"memory.available":            workload.Memory,
	"nodefs.available":            workload.EphemeralStorage,
	"nodefs.inodesFree":           "",
	"imagefs.available":           "",
	"imagefs.inodesFree":          "",
	"containerfs.available":       "",
	"containerfs.inodesFree":      "",
	"allocatableMemory.available": "",
	"pid.available":               "",
}

// KeepsNothing reports whether a signal is one of the kubelet's that keeps free nothing that
// pods can request.
func KeepsNothing(signal string) bool {
	r, known := evictionSignals[signal]
	return known && r == ""
}

// DefaultEviction returns what the kubelet takes where evictionHard is absent.
func DefaultEviction() map[string]string {
	return map[string]string{
		"memory.available":   "100Mi",
		"nodefs.available":   "10%",
		"nodefs.inodesFree":  "5%",
		"imagefs.available":  "15%",
		"imagefs.inodesFree": "5%",
	}
}

// ParseEviction reads evictionHard: a positive quantity or a percentage for each
// eviction signal; 0% and 100% turn a signal off. quantity reads a quantity.
// Errors are of class Invalid and name the signal.
func ParseEviction(given map[string]string, quantity func(string) (workload.Exact, error)) (Thresholds, error) {
	out := Thresholds{}
	var bad errdefs.Violations
	for _, signal := range slices.Sorted(maps.Keys(given)) {
		resource, known := evictionSignals[signal]
		if !known {
			bad.Addf("evictionHard["+strconv.Quote(signal)+"]", "unknown eviction signal, expected any of %s",
				strings.Join(slices.Sorted(maps.Keys(evictionSignals)), ", "))
			continue
		}
		t, err := parseThreshold(given[signal], quantity)
		if err != nil {
			bad.Addf("evictionHard["+strconv.Quote(signal)+"]", "%v", err)
			continue
		}
		if resource != "" && t != (Threshold{}) {
			out[resource] = t
		}
	}
	return out, bad.Err("the configuration of eviction")
}

// parseThreshold reads one value; the zero threshold for one that is turned off.
func parseThreshold(text string, quantity func(string) (workload.Exact, error)) (Threshold, error) {
	// The kubelet takes any number of percent signs.
	digits := strings.TrimRight(text, "%")
	switch percent := digits != text; {
	case text == "0%" || text == "100%":
		return Threshold{}, nil
	case percent:
		n, err := strconv.ParseFloat(digits, 32)
		if err != nil || !(n >= 0 && n <= 100) {
			return Threshold{}, errdefs.Invalidf("%q: expected a percentage from 0%% to 100%%", text)
		}
		return Threshold{Part: float32(n) / 100}, nil
	}
	amount, err := quantity(text)
	if err != nil {
		return Threshold{}, errdefs.Invalidf("%q: expected a quantity such as 100Mi or a percentage: %w", text, err)
	}
	if amount.Whole <= 0 {
		return Threshold{}, errdefs.Invalidf("%q: expected a positive quantity", text)
	}
	return Threshold{Amount: amount.Whole, Excess: amount.Excess}, nil
}
