package device

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// external returns an answer for each resource of which another program has allocated
// devices: the node sets that have a node of each of these devices. Such a device cannot be
// exchanged, so everything else must be aligned with it. A resource that is allocated here
// cannot have external devices.
func external(req hint.Request, machine numa.Mask, allocatedHere func(name string) bool) []hint.ResourceAnswer {
	byResource := map[string][]workload.ExternalDevice{}
	for d := range req.External() {
		byResource[d.Resource] = append(byResource[d.Resource], d)
	}
	if len(byResource) == 0 {
		return nil
	}
	var answers []hint.ResourceAnswer
	for _, name := range slices.Sorted(maps.Keys(byResource)) {
		answer := fixed(byResource[name], machine)
		if allocatedHere(name) {
			answer = impossible("devices of %s are allocated by a device plugin that is registered with berthd: external_devices must not have any", name)
		}
		answers = append(answers, hint.ResourceAnswer{Resource: name, Answer: answer})
	}
	return answers
}

// fixed is the answer for devices of which every one is needed.
func fixed(external []workload.ExternalDevice, machine numa.Mask) hint.Answer {
	var near []Device
	var texts []string
	for _, d := range external {
		if d.Nodes.IsEmpty() {
			continue
		}
		if !d.Nodes.Overlaps(machine) {
			return impossible("external device %s is near to NUMA nodes %s, and the machine has %s", d.ID, d.Nodes, machine)
		}
		near = append(near, Device{ID: d.ID, Nodes: d.Nodes & machine, Topology: true})
		texts = append(texts, fmt.Sprintf("%s on node %s", d.ID, d.Nodes))
	}
	if len(near) == 0 {
		return hint.Answer{Kind: hint.NoPreference}
	}
	f := family{machine: machine, need: len(near), all: near, free: near}
	answer := f.answer()
	if more := len(texts) - shownExternal; more > 0 {
		texts = append(texts[:shownExternal], fmt.Sprintf("%d more", more))
	}
	answer.Because = "another program has allocated " + strings.Join(texts, ", ")
	return answer
}

// shownExternal is how many external devices an explanation names.
const shownExternal = 8
