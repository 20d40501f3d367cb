package convert

import (
	"cmp"
	"fmt"
	"slices"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// ProviderAllocations returns the message form of what pods hold of one provider.
func ProviderAllocations(view *ledger.View, provider string) []*hintv1.ProviderAllocation {
	var out []*hintv1.ProviderAllocation
	for p := range view.Pods() {
		var h *hintv1.ProviderAllocation
		for i := range p.Claims {
			if p.Claims[i].Provider != provider {
				continue
			}
			if h == nil {
				h = &hintv1.ProviderAllocation{AdmissionId: p.AdmissionID, PodUid: p.UID(), Namespace: p.Pod.Namespace, Name: p.Pod.Name}
				out = append(out, h)
			}
			h.Claims = append(h.Claims, Claim(&p.Claims[i]))
		}
	}
	return out
}

// ReadAllocations reads what pods hold of a provider, as records with only these
// claims; path names them in errors. Of the pods' specifications they have the
// names of the containers that hold something.
func ReadAllocations(path string, allocations []*hintv1.ProviderAllocation) ([]*ledger.Pod, error) {
	var vs errdefs.Violations
	out := make([]*ledger.Pod, len(allocations))
	for i, h := range allocations {
		at := fmt.Sprintf("%s[%d]", path, i)
		p := &ledger.Pod{
			AdmissionID: h.GetAdmissionId(),
			Pod:         workload.Pod{UID: h.GetPodUid(), Namespace: h.GetNamespace(), Name: h.GetName()},
			Claims:      readClaims(at+".claims", h.GetClaims(), &vs),
		}
		if p.UID() == "" {
			vs.Addf(at+".pod_uid", "is required")
		}
		for j, c := range p.Claims {
			if c.Owner.Pod != p.UID() {
				vs.Addf(fmt.Sprintf("%s.claims[%d].pod_uid", at, j), "%.80q: expected the pod %.80q", c.Owner.Pod, p.UID())
			}
			if name := c.Owner.Container; name != "" && p.Pod.Container(name) == nil {
				p.Pod.Containers = append(p.Pod.Containers, workload.Container{Name: name})
			}
		}
		out[i] = p
	}
	return out, vs.Err("request")
}

// ReadClaims reads claims of an outside provider, which are on devices or have
// bytes of its own; path names them in errors.
func ReadClaims(path string, claims []*typesv1.Claim) ([]ledger.Claim, error) {
	var vs errdefs.Violations
	out := readClaims(path, claims, &vs)
	return out, vs.Err("request")
}

func readClaims(path string, claims []*typesv1.Claim, vs *errdefs.Violations) []ledger.Claim {
	out := make([]ledger.Claim, len(claims))
	for i, m := range claims {
		at := fmt.Sprintf("%s[%d]", path, i)
		c := ledger.Claim{
			Owner:    ledger.Owner{Pod: m.GetPodUid(), Container: m.GetContainerName()},
			Provider: m.GetProvider(), Resource: m.GetResource(),
		}
		if c.Resource == "" {
			vs.Addf(at+".resource", "is required")
		}
		if m.GetAffinity() != nil {
			h := readHint(at+".affinity", m.GetAffinity(), vs)
			c.Affinity = &h
		}
		switch p := m.GetPayload().(type) {
		case *typesv1.Claim_Cpu, *typesv1.Claim_Memory:
			vs.Addf(at, "berthd itself allocates CPUs and memory: expected devices or opaque bytes")
		case *typesv1.Claim_Device:
			c.Devices = readDevices(at+".device.devices", p.Device.GetDevices(), vs)
		case *typesv1.Claim_Opaque:
			c.Opaque = p.Opaque
		}
		if c.Devices == nil && len(c.Opaque) == 0 && m.GetCpu() == nil && m.GetMemory() == nil {
			vs.Addf(at, "expected either devices or opaque bytes")
		}
		out[i] = c
	}
	return out
}

// ReadPlan reads claims of any provider, as berthd itself sends them; path names
// them in errors.
func ReadPlan(path string, claims []*typesv1.Claim) ([]ledger.Claim, error) {
	var vs errdefs.Violations
	out := make([]ledger.Claim, len(claims))
	for i, m := range claims {
		at := fmt.Sprintf("%s[%d]", path, i)
		if m.GetCpu() == nil && len(m.GetMemory().GetBlocks()) == 0 {
			out[i] = readClaims(path, claims[i:i+1], &vs)[0]
			continue
		}
		out[i] = ledger.Claim{
			Owner: ledger.Owner{Pod: m.GetPodUid(), Container: m.GetContainerName()}, Provider: m.GetProvider(), Resource: m.GetResource(),
		}
		if m.GetAffinity() != nil {
			h := readHint(at+".affinity", m.GetAffinity(), &vs)
			out[i].Affinity = &h
		}
		if m.GetCpu() != nil {
			set := ReadCPUSet(at+".cpu.cpus", m.GetCpu().GetCpus(), &vs)
			out[i].CPUs = &ledger.CPUs{Set: set, Use: ledger.CPUUse(Word(m.GetCpu().GetSharing()))}
		}
		for _, b := range m.GetMemory().GetBlocks() {
			out[i].Memory = append(out[i].Memory, ledger.Block{Nodes: ReadMask(at+".memory.blocks.numa_nodes", b.GetNumaNodes(), &vs),
				Bytes: b.GetBytes()})
		}
	}
	return out, vs.Err("request")
}

func readDevices(path string, devices []*typesv1.Device, vs *errdefs.Violations) *ledger.Devices {
	if len(devices) == 0 {
		vs.Addf(path, "expected at least one device")
	}
	out := make([]ledger.Device, len(devices))
	for i, m := range devices {
		at := fmt.Sprintf("%s[%d]", path, i)
		if n := len(m.GetId()); n == 0 || n > maxName {
			vs.Addf(at+".id", "%d characters: expected 1 to %d", n, maxName)
		}
		out[i] = ledger.Device{
			ID: m.GetId(), Topology: m.GetNumaNodes() != nil,
			Nodes: ReadMask(at+".numa_nodes", m.GetNumaNodes(), vs),
		}
	}
	slices.SortFunc(out, func(a, b ledger.Device) int { return cmp.Compare(a.ID, b.ID) })
	return &ledger.Devices{Devices: out}
}
