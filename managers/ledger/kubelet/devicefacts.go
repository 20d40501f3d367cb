package kubelet

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// readDevice converts kubelet_internal_checkpoint to claims and resources that had plugins. The
// claims keep the plugins' responses, with which the containers start. The plugins report again
// which devices are healthy.
func readDevice(data []byte, in Input) (Facts, error) {
	s, err := parseDevice(data)
	if err != nil {
		return Facts{}, err
	}
	facts := Facts{Format: deviceFormat, Resources: slices.Sorted(maps.Keys(s.Registered))}
	// Of two entries for the same the kubelet takes the last one.
	last := map[[3]string]DeviceEntry{}
	for _, e := range s.Entries {
		last[[3]string{e.Pod, e.Container, e.Resource}] = e
	}
	order := func(a, b [3]string) int { return slices.Compare(a[:], b[:]) }
	for _, key := range slices.SortedFunc(maps.Keys(last), order) {
		e := last[key]
		owner := ledger.Owner{Pod: e.Pod, Container: e.Container}
		if n := len(facts.Pods); n == 0 || facts.Pods[n-1] != e.Pod {
			facts.Pods = append(facts.Pods, e.Pod)
		}
		pod := in.pod(e.Pod)
		if pod == nil || pod.Container(e.Container) == nil {
			facts.skip("%s of %s", e.text(), owner)
			continue
		}
		facts.holdDevices(owner, e, pod.Container(e.Container).Limits[workload.Resource(e.Resource)])
	}
	return facts, nil
}

// text lists the devices of an entry.
func (e *DeviceEntry) text() string {
	var ids []string
	for _, list := range e.IDs {
		ids = append(ids, list...)
	}
	slices.Sort(ids)
	return e.Resource + " " + strings.Join(slices.Compact(ids), ", ")
}

// holdDevices adds a claim on devices. An entry without any is not a fact.
func (f *Facts) holdDevices(owner ledger.Owner, e DeviceEntry, requested int64) {
	devices := map[string]ledger.Device{}
	for node, ids := range e.IDs {
		for _, id := range ids {
			d := devices[id]
			d.ID = id
			switch {
			case node >= 0 && node < numa.MaxNodes:
				d.Nodes, d.Topology = d.Nodes.With(int(node)), true
			case node != noNode:
				f.note("device %s of %s is said to be near NUMA node %d, which no machine has", Printable(id), Printable(e.Resource), node)
			}
			devices[id] = d
		}
	}
	if len(devices) == 0 {
		f.note("%s has an entry without devices of %s", owner, Printable(e.Resource))
		return
	}
	if int64(len(devices)) != requested {
		f.note("%s holds %d devices of %s and requests %d", owner, len(devices), Printable(e.Resource), requested)
	}
	claim := ledger.Claim{
		Owner: owner, Provider: string(Device), Resource: e.Resource,
		Devices: &ledger.Devices{
			Devices:  slices.SortedFunc(maps.Values(devices), func(a, b ledger.Device) int { return cmp.Compare(a.ID, b.ID) }),
			Response: e.Response,
		},
	}
	if !message(e.Response) {
		// The kubelet drops such an entry, and a running pod may lose its devices to another.
		f.Flaws = append(f.Flaws, Flaw{Printable(e.Resource) + " of " + owner.String(),
			"AllocResp: what the device plugin answered cannot be read, so it is left out"})
		claim.Devices.Response = []byte{}
	}
	f.Claims = append(f.Claims, claim)
}

// message reports whether bytes can be a protobuf message of any type: fields of known wire types
// within the length.
func message(b []byte) bool {
	varint := func() (v uint64, ok bool) {
		for i := 0; i < len(b) && i < 10; i++ {
			v |= uint64(b[i]&0x7f) << (7 * i)
			if b[i] < 0x80 {
				b = b[i+1:]
				return v, true
			}
		}
		return 0, false
	}
	for len(b) > 0 {
		tag, ok := varint()
		if !ok || tag>>3 == 0 {
			return false
		}
		skip := uint64(0)
		switch tag & 7 {
		case 0:
			_, ok = varint()
		case 1:
			skip = 8
		case 2:
			skip, ok = varint()
		case 5:
			skip = 4
		default:
			return false
		}
		if !ok || skip > uint64(len(b)) {
			return false
		}
		b = b[skip:]
	}
	return true
}

// writeDevice makes kubelet_internal_checkpoint of a view. Claims that were never
// prepared are left out, as a kubelet does.
func writeDevice(view *ledger.View, settings Settings, format int) (File, error) {
	if format != 0 && format != deviceFormat {
		return File{}, badFormat("%d: expected %d", format, deviceFormat)
	}
	s := DeviceState{Registered: map[string][]string{}}
	for r := range view.SeenResources() {
		s.Registered[r.Name] = slices.Sorted(slices.Values(settings.HealthyDevices[r.Name]))
	}
	for c := range view.Claims() {
		if c.Devices == nil || c.Provider != string(Device) || c.Devices.Response == nil {
			continue
		}
		e := DeviceEntry{
			Pod: c.Owner.Pod, Container: c.Owner.Container, Resource: c.Resource,
			IDs: map[int64][]string{}, Response: c.Devices.Response,
		}
		for _, d := range c.Devices.Devices {
			if d.Nodes.IsEmpty() {
				e.IDs[noNode] = append(e.IDs[noNode], d.ID)
			}
			for node := range d.Nodes.All() {
				e.IDs[int64(node)] = append(e.IDs[int64(node)], d.ID)
			}
		}
		s.Entries = append(s.Entries, e)
	}
	data, err := s.Marshal()
	return File{Format: deviceFormat, Data: data}, err
}
