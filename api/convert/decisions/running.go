package decisions

import (
	"fmt"
	"strings"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/recovery"
)

// ReadRunning reads what the containers of a running pod hold. Violations name the
// field's path; what needs the pod is checked by the admission.
func ReadRunning(list []*admissionv1.RunningAllocation) (out []admission.RunningAllocation, err error) {
	var vs errdefs.Violations
	for i, m := range list {
		path := fmt.Sprintf("running_allocations[%d]", i)
		h := admission.RunningAllocation{Container: m.GetContainerName()}
		h.CPUs = convert.ReadCPUSet(path+".cpus", m.GetCpus(), &vs)
		for j, block := range m.GetMemory() {
			h.Memory = append(h.Memory, admission.RunningMemory{
				Resource: block.GetResource(), Bytes: block.GetBytes(),
				Nodes: convert.ReadMask(fmt.Sprintf("%s.memory[%d].numa_nodes", path, j), block.GetNumaNodes(), &vs),
			})
		}
		for j, d := range m.GetDevices() {
			if h.Devices == nil {
				h.Devices = map[string][]string{}
			}
			if _, twice := h.Devices[d.GetResource()]; twice {
				vs.Addf(fmt.Sprintf("%s.devices[%d].resource", path, j), "%.80q is given twice", d.GetResource())
			}
			h.Devices[d.GetResource()] = d.GetIds()
		}
		out = append(out, h)
	}
	return out, vs.Err("request")
}

var podSources = convert.Words[inspectv1.PodSource]()

// PodCases returns what a start found about each pod.
func PodCases(decisions []recovery.Decision) (out []*inspectv1.PodCase) {
	for _, d := range decisions {
		out = append(out, &inspectv1.PodCase{
			Uid: d.UID, Namespace: d.Namespace, Name: d.Name, Found: string(d.Case), Living: d.Living,
			Kept: d.Content(), Source: podSources[strings.ReplaceAll(string(d.Source), " ", "-")], Waits: d.Waits, Note: d.Text,
		})
	}
	return out
}
