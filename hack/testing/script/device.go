package script

import (
	"fmt"
	"strconv"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Device is one device.
type Device struct {
	ID        string
	Unhealthy bool
	// Nodes are its NUMA nodes; nil sends no topology, empty one without nodes.
	Nodes []int64
}

// ParseDevice parses a device: its id, then "@" and its NUMA nodes joined by "+" ("@" without
// nodes is a topology without nodes), then "!" if it is unhealthy:
//
//	gpu0@0  nic2@0+1  x3  odd@  gpu4@1!
func ParseDevice(text string) (Device, error) {
	rest, unhealthy := strings.CutSuffix(text, "!")
	id, nodes, near := strings.Cut(rest, "@")
	if id == "" {
		return Device{}, fmt.Errorf("device %q has no id", text)
	}
	d := Device{ID: id, Unhealthy: unhealthy}
	if !near {
		return d, nil
	}
	d.Nodes = []int64{}
	if nodes == "" {
		return d, nil
	}
	for n := range strings.SplitSeq(nodes, "+") {
		node, err := strconv.ParseInt(n, 10, 64)
		if err != nil {
			return Device{}, fmt.Errorf("device %q: %q is no NUMA node", text, n)
		}
		d.Nodes = append(d.Nodes, node)
	}
	return d, nil
}

// ParseDevices reads devices separated by commas or blanks.
func ParseDevices(text string) ([]Device, error) {
	devices := []Device{}
	for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		d, err := ParseDevice(one)
		if err != nil {
			return nil, err
		}
		devices = append(devices, d)
	}
	return devices, nil
}

// wire returns the device as it is sent.
func (d Device) wire() *pluginapi.Device {
	w := &pluginapi.Device{ID: d.ID, Health: pluginapi.Healthy}
	if d.Unhealthy {
		w.Health = pluginapi.Unhealthy
	}
	if d.Nodes != nil {
		w.Topology = &pluginapi.TopologyInfo{}
		for _, n := range d.Nodes {
			w.Topology.Nodes = append(w.Topology.Nodes, &pluginapi.NUMANode{ID: n})
		}
	}
	return w
}
