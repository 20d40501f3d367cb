package convert

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

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
	by := func(claim *typesv1.ExternalClaim) *typesv1.ExternalDevice {
		return &typesv1.ExternalDevice{Resource: "gpu.example.com/dra", Id: "n1/a", Claim: claim, Unlisted: claim.GetName() == "d"}
	}
	claim := func(name string, cdi ...string) *typesv1.ExternalClaim {
		return &typesv1.ExternalClaim{Name: name, Driver: "gpu.example.com", Pool: "n1", Device: "a", ShareId: "s", CdiDevices: cdi}
	}
	many := make([]*typesv1.ExternalDevice, maxExternalDevices+1)
	if err := ReadExternalDevices(&workload.Pod{Containers: []workload.Container{{Name: "main"}}},
		make([]*admissionv1.ExternalDevices, 1<<20)); err == nil || len(err.Error()) > 200 {
		t.Errorf("a million entries: %.200v", err)
	}
	for want, list := range map[string][]*admissionv1.ExternalDevices{
		"": of("main", gpu, device("example.com/gpu", "b"), device("example.com/nic", "a", 0, 1), by(claim("c", "x", "y")), by(claim("d"))),
		"external_devices[0].container_name: is required":                    of("", gpu),
		`external_devices[0].container_name: the pod has no container "x"`:   of("x", gpu),
		`external_devices[1].container_name: "main" is given twice`:          append(of("main", gpu), of("main", gpu)...),
		"external_devices[0].devices: has 257 devices, expected at most 256": of("main", many...),
		`external_devices[0].devices[0].resource: "cpu" is not the name`:     of("main", device("cpu", "a")),
		"external_devices[0].devices[0].id: has 0 bytes":                     of("main", device("example.com/gpu", "")),
		"external_devices[0].devices[0].id: has 1025 bytes": of("main",
			device("example.com/gpu", strings.Repeat("a", 1025))),
		`external_devices[0].devices[1].id: "a" of "example.com/gpu" is given twice`: of("main", gpu, gpu),
		"external_devices[0].devices[0].numa_nodes: node 64: expected 0 to 63":       of("main", device("example.com/gpu", "a", 64)),
		"external_devices[0].devices[0].claim.name: is required":                     of("main", by(claim(""))),
		"external_devices[0].devices[0].claim.driver: is required": of("main",
			by(&typesv1.ExternalClaim{Name: "c", Pool: "n1", Device: "a"})),
		"external_devices[0].devices[0].claim.pool: is required": of("main",
			by(&typesv1.ExternalClaim{Name: "c", Driver: "d", Device: "a"})),
		"external_devices[0].devices[0].claim.device: is required": of("main",
			by(&typesv1.ExternalClaim{Name: "c", Driver: "d", Pool: "n1"})),
		"external_devices[0].devices[0].claim: its texts have 4020 bytes together":    of("main", by(claim("c", make([]string, 4000)...))),
		`external_devices[0].devices[1].id: "n1/a" of "gpu.example.com/dra" is given`: of("main", by(claim("c")), by(claim("c"))),
	} {
		pod := &workload.Pod{Containers: []workload.Container{{Name: "main"}, {Name: "other"}}}
		err := ReadExternalDevices(pod, list)
		switch {
		case want == "" && err != nil:
			t.Error(err)
		case want == "":
			got := ExternalDevices(pod.Containers[0].ExternalDevices)
			if len(got) != 5 || !proto.Equal(got[3], by(claim("c", "x", "y"))) || !proto.Equal(got[4], by(claim("d"))) ||
				got[0].GetId() != "a" || got[0].GetNumaNodes().GetIds()[0] != 1 || got[1].GetNumaNodes() != nil {
				t.Errorf("read and written: %v", got)
			}
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
