package claimrecord

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// recordedDevices are the devices of a claim in a claim record. Plugins that count memory have tens of
// thousands of devices with numbered ids, so ids that differ in a last number are ranges.
type recordedDevices struct {
	Groups []recordedGroup `json:"groups"`
	Answer string          `json:"answer,omitempty"`
}

// recordedGroup has the devices on the same NUMA nodes.
type recordedGroup struct {
	Nodes    numa.Mask    `json:"nodes,omitempty"`
	Topology bool         `json:"topology,omitempty"`
	IDs      []string     `json:"ids,omitempty"`
	Ranges   []rangeOfIDs `json:"ranges,omitempty"`
}

// rangeOfIDs are the ids of a prefix and the numbers from First to Last; with zeros in front up to Width digits.
type rangeOfIDs struct {
	Prefix string `json:"prefix"`
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Width  int    `json:"width,omitempty"`
}

const (
	// mostRecordedDevices limits the devices of a record, which ranges could make endless.
	mostRecordedDevices = 1 << 18
	// longestNumber limits the digits of a number in a range, so that it fits into 64 bits.
	longestNumber = 19
	// shortestRange is the number of ids from which on a range is shorter than a list.
	shortestRange = 3
)

// numbered is an id, divided before its last number.
type numbered struct {
	prefix string
	width  int // 0 without zeros in front
	number uint64
	id     string
}

// divide divides an id; false if it ends with no number that a range can have.
func divide(id string) (n numbered, ok bool) {
	prefix := strings.TrimRight(id, "0123456789")
	digits := id[len(prefix):]
	if digits == "" || len(digits) > longestNumber {
		return numbered{id: id}, false
	}
	n = numbered{prefix: prefix, id: id}
	n.number, _ = strconv.ParseUint(digits, 10, 64)
	if digits[0] == '0' && len(digits) > 1 {
		n.width = len(digits)
	}
	return n, true
}

// recordOf returns the devices as a record has them. The same devices give the same groups.
func recordOf(d *ledger.Devices) *recordedDevices {
	if d == nil {
		return nil
	}
	out := &recordedDevices{Answer: d.Answer}
	if d.Response != nil {
		out.Answer = answerDigest(d.Response)
	}
	type key struct {
		nodes    numa.Mask
		topology bool
	}
	groups := map[key][]string{}
	for _, one := range d.Devices {
		k := key{one.Nodes, one.Topology}
		groups[k] = append(groups[k], one.ID)
	}
	for k, ids := range groups {
		g := recordedGroup{Nodes: k.nodes, Topology: k.topology}
		g.IDs, g.Ranges = inRanges(ids)
		out.Groups = append(out.Groups, g)
	}
	slices.SortFunc(out.Groups, func(a, b recordedGroup) int {
		return cmp.Or(cmp.Compare(a.Nodes, b.Nodes), compareBool(a.Topology, b.Topology))
	})
	return out
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// inRanges returns ids as ranges, and those that are in none.
func inRanges(ids []string) (single []string, ranges []rangeOfIDs) {
	var all []numbered
	for _, id := range ids {
		if n, ok := divide(id); ok {
			all = append(all, n)
		} else {
			single = append(single, id)
		}
	}
	slices.SortFunc(all, func(a, b numbered) int {
		return cmp.Or(cmp.Compare(a.prefix, b.prefix), cmp.Compare(a.width, b.width), cmp.Compare(a.number, b.number))
	})
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].prefix == all[0].prefix && all[n].width == all[0].width && all[n].number == all[n-1].number+1 {
			n++
		}
		if n >= shortestRange {
			ranges = append(ranges, rangeOfIDs{all[0].prefix, all[0].number, all[n-1].number, all[0].width})
		} else {
			for _, one := range all[:n] {
				single = append(single, one.id)
			}
		}
		all = all[n:]
	}
	slices.Sort(single)
	return single, ranges
}

// devices returns the devices that a record has. left is how many a record may still have.
func (r *recordedDevices) devices(left *int) (*ledger.Devices, error) {
	if r == nil {
		return nil, nil
	}
	out := &ledger.Devices{Answer: r.Answer}
	for _, g := range r.Groups {
		add := func(id string) {
			out.Devices = append(out.Devices, ledger.Device{ID: id, Nodes: g.Nodes, Topology: g.Topology})
		}
		if *left -= len(g.IDs); *left < 0 {
			return nil, tooManyRecorded()
		}
		for _, id := range g.IDs {
			add(id)
		}
		for _, one := range g.Ranges {
			if one.Last < one.First || one.Last-one.First >= uint64(*left) || one.Width < 0 || one.Width > longestNumber {
				return nil, tooManyRecorded()
			}
			count := int(one.Last-one.First) + 1
			*left -= count
			for i := range count {
				digits := strconv.FormatUint(one.First+uint64(i), 10)
				add(one.Prefix + strings.Repeat("0", max(0, one.Width-len(digits))) + digits)
			}
		}
	}
	slices.SortFunc(out.Devices, func(a, b ledger.Device) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

func tooManyRecorded() error {
	return fmt.Errorf("it has more than %d devices, or a range of ids that is none", mostRecordedDevices)
}

// DigestOf returns the digest of what only a claim's provider, or its plugin, has chosen: the ids of devices, or
// opaque bytes. It is empty for other claims.
func DigestOf(c ledger.Claim) string {
	sum := sha256.New()
	switch {
	case c.Devices != nil:
		for i := range c.Devices.Devices {
			fmt.Fprintf(sum, "%q\n", c.Devices.Devices[i].ID)
		}
	case len(c.Opaque) > 0:
		sum.Write(c.Opaque)
	default:
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
}
