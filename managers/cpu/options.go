package cpu

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
)

// The options of the static policy, as the kubelet's cpuManagerPolicyOptions
// names them.
const (
	// FullPCPUsOnly refuses containers that would not get whole cores (KEP-2625).
	FullPCPUsOnly = "full-pcpus-only"
	// DistributeAcrossNUMA spreads a container evenly over the NUMA nodes that it
	// needs (KEP-2902).
	DistributeAcrossNUMA = "distribute-cpus-across-numa"
	// AlignBySocket takes CPUs on the sockets of the chosen nodes, and prefers
	// hints by socket (KEP-3327).
	AlignBySocket = "align-by-socket"
	// DistributeAcrossCores takes CPUs by number instead of core by core (KEP-4176).
	DistributeAcrossCores = "distribute-cpus-across-cores"
	// StrictReservation keeps the reserved CPUs out of the shared pool (KEP-4540).
	StrictReservation = "strict-cpu-reservation"
	// PreferUncores keeps a container's CPUs under one last level cache where
	// that is possible (KEP-4800).
	PreferUncores = "prefer-align-cpus-by-uncorecache"
)

// options are the parsed options.
type options struct {
	fullCores, acrossNUMA, bySocket, acrossCores, strict, uncores bool
}

// level is what has to be enabled before an option may be used.
type level int

const (
	stable level = iota
	beta
	alpha
)

// known are the options, in the order of their levels.
var known = []struct {
	name  string
	needs level
	field func(*options) *bool
}{
	{FullPCPUsOnly, stable, func(o *options) *bool { return &o.fullCores }},
	{StrictReservation, stable, func(o *options) *bool { return &o.strict }},
	{PreferUncores, stable, func(o *options) *bool { return &o.uncores }},
	{DistributeAcrossNUMA, beta, func(o *options) *bool { return &o.acrossNUMA }},
	{AlignBySocket, alpha, func(o *options) *bool { return &o.bySocket }},
	{DistributeAcrossCores, alpha, func(o *options) *bool { return &o.acrossCores }},
}

// OptionNames are the options that the static policy has.
func OptionNames() (names []string) {
	for _, k := range known {
		names = append(names, k.name)
	}
	return names
}

// ClaimOptions are the options that a resource claim may have for itself. The others are about several NUMA
// nodes or about the shared CPUs.
func ClaimOptions() []string { return []string{FullPCPUsOnly, DistributeAcrossCores, PreferUncores} }

// parseOptions reads the options of the static policy. Values are what Go's
// strconv.ParseBool takes, but not the empty text.
func parseOptions(given map[string]string, f Features, bad *errdefs.Violations) options {
	var o options
	for _, name := range slices.Sorted(maps.Keys(given)) {
		path := "cpuManagerPolicyOptions[" + strconv.Quote(name) + "]"
		at := slices.Index(OptionNames(), name)
		switch {
		case at < 0:
			bad.Addf(path, "the static policy has no such option; it has %s", strings.Join(OptionNames(), ", "))
			continue
		case known[at].needs == alpha && !f.AlphaOptions:
			bad.Addf(path, "is an alpha option; enable CPUManagerPolicyAlphaOptions to use it")
			continue
		case known[at].needs == beta && !f.BetaOptions:
			bad.Addf(path, "is a beta option; enable CPUManagerPolicyBetaOptions to use it")
			continue
		}
		set, err := strconv.ParseBool(given[name])
		if err != nil {
			bad.Addf(path, "expected true or false, got %q", given[name])
			continue
		}
		*known[at].field(&o) = set
	}
	return o
}

// check refuses combinations of options that contradict each other, and options
// that the machine or the topology policy cannot serve.
func (o options) check(topologyPolicy string, topo *machine.Topology, bad *errdefs.Violations) {
	exclude := func(a, b string, both bool) {
		if both {
			bad.Addf("cpuManagerPolicyOptions", "%s and %s cannot be used together", a, b)
		}
	}
	exclude(FullPCPUsOnly, DistributeAcrossCores, o.fullCores && o.acrossCores)
	exclude(DistributeAcrossNUMA, DistributeAcrossCores, o.acrossNUMA && o.acrossCores)
	exclude(PreferUncores, DistributeAcrossCores, o.uncores && o.acrossCores)
	exclude(PreferUncores, DistributeAcrossNUMA, o.uncores && o.acrossNUMA)
	if !o.bySocket {
		return
	}
	if topologyPolicy == singleNUMANode {
		bad.Addf("cpuManagerPolicyOptions", "%s cannot be used with the topology policy %s", AlignBySocket, singleNUMANode)
	}
	if topo.NumSockets() > topo.NumNUMANodes() {
		bad.Addf("cpuManagerPolicyOptions", "%s needs at least one NUMA node per socket, and the machine has %d nodes for %d sockets",
			AlignBySocket, topo.NumNUMANodes(), topo.NumSockets())
	}
}
