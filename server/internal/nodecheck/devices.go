package nodecheck

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/ledger/kubelet"
)

// deviceIDs are the devices of an entry.
func deviceIDs(e kubelet.DeviceEntry) (out []string) {
	for _, ids := range e.IDs {
		for _, id := range ids {
			out = append(out, kubelet.Printable(id))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// held are the entries of containers by resource.
func (n *node) held() map[string][]kubelet.DeviceEntry {
	out := map[string][]kubelet.DeviceEntry{}
	for _, e := range n.Devices.Entries {
		out[e.Resource] = append(out[e.Resource], e)
	}
	return out
}

// noPlugin finds resources with allocated devices and without a plugin.
func noPlugin(n *node) (out []found) {
	held := n.held()
	for _, resource := range slices.Sorted(maps.Keys(held)) {
		if len(n.Devices.Registered[resource]) > 0 {
			continue
		}
		var proof []string
		for _, e := range held[resource] {
			proof = append(proof, fmt.Sprintf("%s has %s", n.owner(e.Pod, e.Container), strings.Join(deviceIDs(e), ", ")))
		}
		text := "no plugin has registered for the resource, and containers have devices of it"
		if _, listed := n.Devices.Registered[resource]; listed {
			text = "no plugin is connected, or all devices are unhealthy, and containers have devices of the resource"
		}
		out = append(out, found{kubelet.Printable(resource), text, proof})
	}
	return out
}

// unregistered finds devices of containers that the plugin does not have as healthy.
func unregistered(n *node) (out []found) {
	for _, e := range n.Devices.Entries {
		healthy := n.Devices.Registered[e.Resource]
		if len(healthy) == 0 {
			continue // no plugin
		}
		missing := deviceIDs(e)
		missing = slices.DeleteFunc(missing, func(id string) bool {
			return slices.ContainsFunc(healthy, func(h string) bool { return kubelet.Printable(h) == id })
		})
		if len(missing) > 0 {
			text := fmt.Sprintf("its devices %s of %s are unhealthy, or the plugin does not have them any more", strings.Join(missing, ", "),
				kubelet.Printable(e.Resource))
			proof := fmt.Sprintf("the plugin has %d healthy devices", len(healthy))
			out = append(out, found{n.owner(e.Pod, e.Container), text, []string{proof}})
		}
	}
	return out
}

// elsewhere finds devices of containers that the kernel has on another NUMA node than the plugin has told.
func elsewhere(n *node) (out []found) {
	for _, e := range n.Devices.Entries {
		told := map[string][]int64{}
		for id, names := range e.IDs {
			for _, name := range names {
				told[name] = append(told[name], id)
			}
		}
		var proof []string
		for _, name := range slices.Sorted(maps.Keys(told)) {
			slices.Sort(told[name])
			if is, known := n.PCI[name]; known && !slices.Contains(told[name], int64(is)) && !slices.Contains(told[name], -1) {
				proof = append(proof, fmt.Sprintf("%s of %s is on NUMA node %d by /sys/bus/pci/devices/%s/numa_node, and on %v by the plugin",
					name, kubelet.Printable(e.Resource), is, name, told[name]))
			}
		}
		if len(proof) > 0 {
			out = append(out, found{n.owner(e.Pod, e.Container), "its CPUs and memory are aligned with a NUMA node that its devices are not on", proof})
		}
	}
	return out
}
