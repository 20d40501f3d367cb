package importer

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
)

// longestDeviceID is the longest id of a device, as for device plugins.
const longestDeviceID = 1024

// sift removes the entries that no kubelet would start with on this machine: it compares them with the machine and
// with what their containers request. Without Force such an entry is an error of class Precondition; with Force it
// is listed among the skipped ones.
func (i *importing) sift() error {
	f := &i.out.Facts
	var flaws errdefs.Violations
	drop := func(entry, text string) {
		if i.Force {
			f.Skipped = append(f.Skipped, entry+": "+text)
			return
		}
		flaws.Addf(entry, "%s: %s", entry, text)
	}
	for _, flaw := range f.Flaws {
		drop(flaw.Entry, flaw.Text)
	}
	f.Claims = slices.DeleteFunc(slices.Clone(f.Claims), func(c ledger.Claim) bool {
		if i.contradicts(&c) {
			return false // of the ledger and the file, the ledger is named
		}
		text := i.flaw(&c)
		if text != "" {
			drop(fmt.Sprintf("%s of %s", kubelet.Printable(c.Resource), c.Owner), text)
		}
		return text != ""
	})
	f.Resources = slices.DeleteFunc(slices.Clone(f.Resources), func(name string) bool {
		extended := workload.Resource(name).IsExtended()
		if !extended {
			drop("RegisteredDevices "+kubelet.Printable(name), "expected the name of an extended resource such as example.com/gpu")
		}
		return !extended
	})
	if len(flaws) > 0 {
		return flaws.Precondition("no kubelet would start with this here, and --force takes only the other entries: ").Coded(errdefs.ImportContradicts)
	}
	return nil
}

// contradicts returns whether a claim is compared with the ledger: its container holds such a resource already, or
// the given specification is another one than the ledger's.
func (i *importing) contradicts(c *ledger.Claim) bool {
	have, known := i.view.Pod(c.Owner.Pod)
	if !known {
		return false
	}
	given := i.given[c.Owner.Pod]
	return given != nil && given.Digest != have.Digest || slices.ContainsFunc(have.Claims, func(h ledger.Claim) bool {
		return h.Key() == c.Key()
	})
}

// flaw returns why a claim cannot be; empty if it can.
func (i *importing) flaw(c *ledger.Claim) string {
	var requests, limits workload.Quantities
	pod := i.specification(c.Owner.Pod)
	if ctr := pod.Container(c.Owner.Container); ctr != nil {
		requests, limits = ctr.Requests, ctr.Limits
	}
	whole := c.Owner.Container == "" // its amounts are those of pod-level resources
	switch {
	case c.CPUs != nil:
		return i.wrongCPUs(c, requests, whole)
	case len(c.Memory) > 0:
		r := workload.Resource(c.Resource)
		requested := requests[r]
		if pod.HasPodLevel() { // a container may have a share of what its pod has as a whole
			requested = max(requested, pod.Resources.Requests[r])
		}
		return i.wrongMemory(c, requested)
	case c.Devices != nil:
		return wrongDevices(c, limits[workload.Resource(c.Resource)])
	}
	return ""
}

// specification returns the pod of a uid; an empty one if it is not known.
func (i *importing) specification(uid string) *workload.Pod {
	if given := i.given[uid]; given != nil {
		return &given.Pod
	}
	if have, ok := i.view.Pod(uid); ok {
		return &have.Pod
	}
	return &workload.Pod{}
}

func (i *importing) wrongCPUs(c *ledger.Claim, requests workload.Quantities, whole bool) string {
	if foreign := c.CPUs.Set.Minus(i.view.Machine().CPUs()); !foreign.IsEmpty() {
		return fmt.Sprintf("the machine does not have CPUs %s", foreign)
	}
	if n := requests.WholeCPUs(); !whole && c.CPUs.Use == ledger.CPUExclusive && n != c.CPUs.Set.Len() {
		return fmt.Sprintf("it has %d exclusive CPUs, and requests %d", c.CPUs.Set.Len(), n)
	}
	return ""
}

func (i *importing) wrongMemory(c *ledger.Claim, requested int64) string {
	m := i.view.Machine()
	var sum uint64
	for _, b := range c.Memory {
		if !b.Nodes.IsSubsetOf(m.NodeMask()) {
			return fmt.Sprintf("the machine has NUMA nodes %s, and not %s", m.NodeMask(), b.Nodes)
		}
		if sum+b.Bytes < sum {
			return "its blocks have more than 2^64 bytes"
		}
		sum += b.Bytes
	}
	if sum > uint64(max(0, requested)) {
		return fmt.Sprintf("it has %d bytes, and requests %d", sum, requested)
	}
	return ""
}

func wrongDevices(c *ledger.Claim, requested int64) string {
	if !workload.Resource(c.Resource).IsExtended() {
		return "expected the name of an extended resource such as example.com/gpu"
	}
	for i := range c.Devices.Devices {
		if id := c.Devices.Devices[i].ID; id == "" || len(id) > longestDeviceID ||
			strings.ContainsFunc(id, unicode.IsControl) || !utf8.ValidString(id) {
			return fmt.Sprintf("device id %.80q: expected 1 to %d bytes of text without control characters", id, longestDeviceID)
		}
	}
	if n := len(c.Devices.Devices); int64(n) != requested {
		return fmt.Sprintf("it has %d devices, and requests %d", n, requested)
	}
	return ""
}
