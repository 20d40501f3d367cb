package convert

import (
	"strings"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/workload"
)

// TestReadExternalDevices: the errors name the field and what was expected.
func TestReadExternalDevices(t *testing.T) {
	t.Parallel()
	device := func(resource, id string, nodes ...uint32) *typesv1.ExternalDevice {
		return &typesv1.ExternalDevice{Resource: resource, Id: id, NumaNodes: &typesv1.NUMANodeSet{Ids: nodes}}
	}
	of := func(container string, list ...*typesv1.ExternalDevice) []*admissionv1.ExternalDevices {
		return []*admissionv1.ExternalDevices{{ContainerName: container, Devices: list}}
	}
	gpu := device("example.com/gpu", "a", 1)
	many := make([]*typesv1.ExternalDevice, maxExternalDevices+1)
	if err := ReadExternalDevices(&workload.Pod{Containers: []workload.Container{{Name: "main"}}}, make([]*admissionv1.ExternalDevices, 1<<20)); err == nil || len(err.Error()) > 200 {
		t.Errorf("a million entries: %.200v", err)
	}
	for want, list := range map[string][]*admissionv1.ExternalDevices{
		"": of("main", gpu, device("example.com/gpu", "b"), device("example.com/nic", "a", 0, 1)),
		"external_devices[0].container_name: is required":                            of("", gpu),
		`external_devices[0].container_name: the pod has no container "x"`:           of("x", gpu),
		`external_devices[1].container_name: "main" is given twice`:                  append(of("main", gpu), of("main", gpu)...),
		"external_devices[0].devices: has 257 devices, expected at most 256":         of("main", many...),
		`external_devices[0].devices[0].resource: "cpu" is not the name`:             of("main", device("cpu", "a")),
		"external_devices[0].devices[0].id: has 0 bytes":                             of("main", device("example.com/gpu", "")),
		"external_devices[0].devices[0].id: has 1025 bytes":                          of("main", device("example.com/gpu", strings.Repeat("a", 1025))),
		`external_devices[0].devices[1].id: "a" of "example.com/gpu" is given twice`: of("main", gpu, gpu),
		"external_devices[0].devices[0].numa_nodes: node 64: expected 0 to 63":       of("main", device("example.com/gpu", "a", 64)),
	} {
		pod := &workload.Pod{Containers: []workload.Container{{Name: "main"}, {Name: "other"}}}
		err := ReadExternalDevices(pod, list)
		switch {
		case want == "" && err != nil:
			t.Error(err)
		case want == "":
			got := externalDevices(pod.Containers[0].ExternalDevices)
			if len(got) != 3 || got[0].GetId() != "a" || got[0].GetNumaNodes().GetIds()[0] != 1 || got[1].GetNumaNodes() != nil {
				t.Errorf("read and written: %v", got)
			}
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
