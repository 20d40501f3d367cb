package workload

import (
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// Resource is the name of a resource as pods have it.
type Resource string

// The resources that berth handles by name. Huge pages and device resources are families: see HugePagesPrefix, IsExtended.
const (
	// CPU is counted in thousandths of a CPU.
	CPU Resource = "cpu"
	// Memory is counted in bytes.
	Memory Resource = "memory"
	// EphemeralStorage is counted in bytes.
	EphemeralStorage Resource = "ephemeral-storage"

	// HugePagesPrefix begins the names of huge page resources; the page size follows, as in hugepages-2Mi. Counted in bytes.
	HugePagesPrefix = "hugepages-"
)

// IsHugePages reports whether r belongs to the huge page family. The page size may still be malformed: see HugePageSize. A name
// with a domain never belongs to it, however it begins, so that a resource is in one family only.
func (r Resource) IsHugePages() bool {
	return strings.HasPrefix(string(r), HugePagesPrefix) && !strings.Contains(string(r), "/")
}

// PodLevel reports whether r may stand in Pod.Resources: cpu, memory and huge pages (KEP-2837).
func (r Resource) PodLevel() bool { return r == CPU || r == Memory || r.IsHugePages() }

// overcommits reports whether a container may request less of r than its limit, so that r is promised more than once. That holds for the
// resources that Kubernetes itself defines, huge pages excepted.
func (r Resource) overcommits() bool { return r.native() && !r.IsHugePages() }

// native names have no domain, or one that contains kubernetes.io/.
func (r Resource) native() bool {
	return !strings.Contains(string(r), "/") || strings.Contains(string(r), "kubernetes.io/")
}

// IsExtended reports whether r is a name that a device plugin may serve: domain/name, where the domain is not Kubernetes' own,
// does not begin with "requests.", and leaves room for that prefix within a DNS subdomain's 253 characters (a quota writes
// the name so).
func (r Resource) IsExtended() bool {
	const quota = "requests."
	domain, _, _ := strings.Cut(string(r), "/")
	return !r.native() && !strings.HasPrefix(string(r), quota) && len(quota)+len(domain) <= maxSubdomain && qualifiedName(string(r))
}

// sizeSuffixes are the decimal and binary suffixes of a page size.
var sizeSuffixes = map[string]int64{
	"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
}

// HugePageSize gives the page size in bytes of a huge page resource. Different names may mean the same size (1Gi, 1024Mi).
// A name that is no huge page resource, or whose size is not a positive whole number of bytes, is an error of class Invalid.
func HugePageSize(r Resource) (int64, error) {
	size, found := strings.CutPrefix(string(r), HugePagesPrefix)
	if !found {
		return 0, errdefs.Invalidf("%.80q is no huge page resource: expected %s and a page size", string(r), HugePagesPrefix)
	}
	digits := strings.IndexFunc(size, func(c rune) bool { return c < '0' || c > '9' })
	if digits < 0 {
		digits = len(size)
	}
	unit, known := sizeSuffixes[size[digits:]]
	n, err := strconv.ParseInt(size[:digits], 10, 64)
	if err != nil || !known || n == 0 || n > math.MaxInt64/unit {
		return 0, errdefs.Invalidf("%.80q has no valid page size: expected a positive whole number of bytes such as 2Mi or 1Gi", string(r))
	}
	return n * unit, nil
}

// HugePagesOf gives the resource of a page size in bytes as the kubelet names it: hugepages-2Mi. It is the inverse of HugePageSize.
func HugePagesOf(size int64) Resource { return HugePagesPrefix + Resource(Memory.Text(size)) }

// Quantities are amounts by resource: cpu in milli-CPU, everything else in its own unit (bytes, pieces), all rounded up to
// whole numbers (Excess keeps what the rounding put on, where it did). An absent key is not a zero: a container may request 0
// CPU, and may also not mention CPU.
//
// Milli-CPU are enough to detect whole CPUs. The reference compares 1000*ceil(x) with ceil(1000x). The two are
// equal exactly if milli = ceil(1000x) is a multiple of 1000. One way is plain. For the other, ceil(1000x) = 1000k means
// k - 1/1000 < x <= k, hence ceil(x) = k.
type Quantities map[Resource]int64

// MarshalJSON writes the amounts as any map, in the order of the names, without reflection: every
// decision has a digest of the pod.
func (q Quantities) MarshalJSON() ([]byte, error) {
	if q == nil {
		return []byte("null"), nil
	}
	out := append(make([]byte, 0, 2+32*len(q)), '{')
	for r, n := range q.Sorted() {
		if len(out) > 1 {
			out = append(out, ',')
		}
		if strings.ContainsFunc(string(r), unusual) {
			name, err := json.Marshal(string(r))
			if err != nil {
				return nil, fmt.Errorf("encode the name of resource %q: %w", r, err)
			}
			out = append(out, name...)
		} else {
			out = append(append(append(out, '"'), r...), '"')
		}
		out = strconv.AppendInt(append(out, ':'), n, 10)
	}
	return append(out, '}'), nil
}

// unusual returns whether a character is none of those that names of resources have.
func unusual(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '-' || c > '9') && c != '_'
}

// Sorted yields the amounts in the order of the names.
func (q Quantities) Sorted() iter.Seq2[Resource, int64] {
	return func(yield func(Resource, int64) bool) {
		var room [usualNames]Resource // on the stack: every decision calls this dozens of times
		names := room[:0]
		for r := range q {
			names = append(names, r)
		}
		slices.Sort(names)
		for _, r := range names {
			if !yield(r, q[r]) {
				return
			}
		}
	}
}

// usualNames is how many resources are compared without allocating memory.
const usualNames = 8

// WholeCPUs returns the number of requested CPUs if that is a whole number, else 0.
func (q Quantities) WholeCPUs() int {
	if milli := q[CPU]; milli%1000 == 0 {
		return int(milli / 1000)
	}
	return 0
}
