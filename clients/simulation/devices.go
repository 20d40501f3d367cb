package simulation

import (
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// maxDevices bounds how many devices one text may stand for.
const maxDevices = 1 << 16

// ParseDevices reads devices separated by commas or blanks. Each is an id, then "@"
// and the NUMA nodes that it is near to joined by "+", then "!" if it is unhealthy.
// A number and "*" before the id make as many, numbered from 0:
//
//	gpu0@0,gpu1@0  4*a@0,4*b@1  nic@0+1  x  bad@1!
//
// Errors are of class Invalid.
func ParseDevices(text string) ([]device.Device, error) {
	var out []device.Device
	seen := map[string]bool{}
	for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		d, ids, err := parseDevice(one)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if seen[id] {
				return nil, errdefs.Invalidf("device %q: there are two of this id", id)
			}
			seen[id] = true
			d.ID = id
			out = append(out, d)
		}
		if len(out) > maxDevices {
			return nil, errdefs.Invalidf("more than %d devices", maxDevices)
		}
	}
	return out, nil
}

func parseDevice(text string) (d device.Device, ids []string, err error) {
	rest, unhealthy := strings.CutSuffix(text, "!")
	name, nodes, near := strings.Cut(rest, "@")
	d = device.Device{Healthy: !unhealthy, Topology: near}
	if near && nodes != "" {
		for id := range strings.SplitSeq(nodes, "+") {
			n, err := strconv.Atoi(id)
			if err != nil || n < 0 || n >= numa.MaxNodes {
				return d, nil, errdefs.Invalidf("device %q: expected NUMA nodes of 0 to %d after @, got %q", text, numa.MaxNodes-1, id)
			}
			d.Nodes = d.Nodes.With(n)
		}
	}
	count, base, several := strings.Cut(name, "*")
	if !several {
		count, base = "1", name
	}
	n, err := strconv.Atoi(count)
	switch {
	case err != nil || n < 1 || n > maxDevices:
		return d, nil, errdefs.Invalidf("device %q: expected a number of 1 to %d before *, got %q", text, maxDevices, count)
	case base == "":
		return d, nil, errdefs.Invalidf("device %q has no id", text)
	case !several:
		return d, []string{base}, nil
	}
	for i := range n {
		ids = append(ids, base+strconv.Itoa(i))
	}
	return d, ids, nil
}
