package command

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/workload"
)

// Set reads CPUs that berthd sent; an unreadable set counts as empty.
func Set(m *typesv1.CPUSet) cpuset.Set {
	s, err := cpuset.Parse(m.GetList())
	if err != nil {
		return cpuset.Set{}
	}
	return s
}

// Health returns the health of a device as the kubelet does; empty if unknown.
func Health(h typesv1.Health) string {
	text := convert.Word(h)
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// Word returns a value of an enum: PREFIX_MOVE_CPUS is move-cpus; empty if it is not specified.
func Word(value fmt.Stringer, prefix string) string {
	name := strings.TrimPrefix(value.String(), prefix)
	if name == "UNSPECIFIED" {
		return ""
	}
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

// DeviceCounts returns how many devices of each resource claims hold.
func DeviceCounts(claims []*typesv1.Claim) string {
	counts := make(map[string]int)
	for _, c := range claims {
		if c.GetDevice() != nil {
			counts[c.GetResource()] += len(c.GetDevice().GetDevices())
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, name+"="+strconv.Itoa(counts[name]))
	}
	return strings.Join(out, ",")
}

// Memory returns the memory that claims hold, for a cell.
func Memory(claims []*typesv1.Claim) string {
	var out []string
	for _, c := range claims {
		for _, b := range c.GetMemory().GetBlocks() {
			out = append(out, fmt.Sprintf("%s=%s@%s", c.GetResource(), table.Bytes(b.GetBytes()), sentences.Nodes(b.GetNumaNodes())))
		}
	}
	return strings.Join(out, ",")
}

// YesNo returns a truth.
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Joined puts texts into one cell.
func Joined(texts []string) string { return strings.Join(texts, ",") }

// maxNames bounds the names in a cell of names that the authors of pods choose: each row of a table is as wide as its widest one.
const maxNames = 3

// Some puts names into one cell, and the number of the further ones.
func Some(names []string) string {
	if len(names) <= maxNames {
		return Joined(names)
	}
	return fmt.Sprintf("%s and %d more", Joined(names[:maxNames]), len(names)-maxNames)
}

// CPUsText prints CPUs, and whether they are exclusive.
func CPUsText(cpus string, exclusive bool) string {
	switch {
	case cpus == "":
		return ""
	case exclusive:
		return cpus + " (its own)"
	}
	return cpus + " (shared)"
}

func Pairs(m map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return out
}

// Amount returns an amount of a resource as people read it: 4Gi for 4294967296 bytes, and cpu as in manifests. A text that is none is
// returned as it is.
func Amount(resource, text string) string {
	amounts, excess, bad := convert.Amounts("", map[string]string{resource: text})
	r := workload.Resource(resource)
	switch n := amounts[r]; {
	case len(bad)+len(excess) > 0 || n < 0:
		return text
	case r == workload.Memory || r == workload.EphemeralStorage || r.IsHugePages():
		return table.Bytes(uint64(n))
	default:
		return r.Text(n)
	}
}

// SameAmount reports whether two texts are the same amount of a resource, such as 1 and 1000m.
func SameAmount(resource, a, b string) bool {
	left, leftExcess, bad := convert.Amounts("", map[string]string{resource: a})
	right, rightExcess, worse := convert.Amounts("", map[string]string{resource: b})
	if len(bad)+len(worse) > 0 {
		return a == b
	}
	return maps.Equal(left, right) && maps.Equal(leftExcess, rightExcess)
}

// AmountTexts returns amounts by resource, ordered, with a separator behind the name.
func AmountTexts(amounts map[string]string, separator string) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		out = append(out, name+separator+Amount(name, amounts[name]))
	}
	return out
}

// LimitText prints a limit: a dash for no limit, nothing if it is unknown.
func LimitText(n *int64, text func(int64) string) string {
	switch {
	case n == nil:
		return ""
	case *n < 0:
		return "-"
	}
	return text(*n)
}

func BytesText(n int64) string { return table.Bytes(uint64(max(n, 0))) }

func Plain(n int64) string { return strconv.FormatInt(n, 10) }

// CPUs returns the CPUs of a container: its exclusive ones, or the shared CPUs of the last answer
// with that field.
func (c *Ctl) CPUs(a *typesv1.ContainerAllocation) string {
	return cmp.Or(a.GetCpus().GetList(), c.Shared.GetList())
}

// AllClaims returns the claims of a pod and of its containers.
func AllClaims(p *typesv1.PodAllocation) []*typesv1.Claim {
	claims := p.GetClaims()[:len(p.GetClaims()):len(p.GetClaims())]
	for _, c := range p.GetContainers() {
		claims = append(claims, c.GetClaims()...)
	}
	return claims
}

// OwnCPUs returns the CPUs that a pod or its containers have for themselves.
func OwnCPUs(p *typesv1.PodAllocation) cpuset.Set {
	var own cpuset.Set
	for _, c := range p.GetContainers() {
		if c.GetExclusiveCpus() {
			own = own.Union(Set(c.GetCpus()))
		}
	}
	for _, c := range p.GetClaims() {
		own = own.Union(Set(c.GetCpu().GetCpus()))
	}
	return own
}

// OrShared prints the exclusive CPUs of a pod, or "shared".
func OrShared(own cpuset.Set) string {
	if own.IsEmpty() {
		return "shared"
	}
	return own.String()
}

// Options returns the options of a policy behind its name.
func Options(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	return " (" + strings.Join(Pairs(m), ", ") + ")"
}

// Number returns a number for a cell.
func Number(n uint64) string { return strconv.FormatUint(n, 10) }

// HugePageCells returns the huge pages of a node by size.
func HugePageCells(n *nodev1.NUMANode) string {
	var out []string
	for _, h := range n.GetHugePages() {
		if h.GetCount() > 0 {
			out = append(out, fmt.Sprintf("%dx%s", h.GetCount(), table.Bytes(h.GetPageSizeBytes())))
		}
	}
	return Joined(out)
}

// Distances returns how far a node is from each, in the order of their ids.
func Distances(n *nodev1.NUMANode) string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(n.GetDistances())) {
		out = append(out, fmt.Sprintf("%d:%d", id, n.GetDistances()[id]))
	}
	return Joined(out)
}
