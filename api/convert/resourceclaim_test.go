package convert

import (
	"fmt"
	"strings"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// claimed is a device of a claim with one CPU.
func claimed(name string, node uint32) *admissionv1.ClaimDevice {
	return &admissionv1.ClaimDevice{Name: name, NumaNode: node, Resources: map[string]string{"cpu": "1", "memory": "1Gi"}}
}

func TestReadResourceClaim(t *testing.T) {
	t.Parallel()
	m := &admissionv1.ResourceClaim{Uid: "u", Name: "c", Devices: []*admissionv1.ClaimDevice{claimed("left", 3), claimed("right", 1)}}
	m.Devices[1].Resources["hugepages-1Gi"] = "2Gi"
	m.Pods = []*typesv1.ClaimPod{{Name: "web.1", Uid: "p"}, {Name: "web.1", Uid: "q"}} // a pod of the same name was made again
	pod, err := ReadResourceClaim(m)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(pod.ResourceClaim.Nodes(), pod.ResourceClaim.Pods)
	for i, c := range pod.Containers {
		d, _ := pod.ClaimDevice(i)
		got += fmt.Sprintf(" %s on %d: %d %d %d", c.Name, d.Node, c.Limits[workload.CPU], c.Requests[workload.Memory],
			c.Limits["hugepages-1Gi"])
	}
	if want := "1,3 [{web.1 p} {web.1 q}] left on 3: 1000 1073741824 0 right on 1: 1000 1073741824 2147483648"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestInvalidResourceClaims: each violation has the path of its field.
func TestInvalidResourceClaims(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*admissionv1.ResourceClaim){
		"resource_claim.uid":            func(m *admissionv1.ResourceClaim) { m.Uid = "" },
		"resource_claim.name":           func(m *admissionv1.ResourceClaim) { m.Name = "" },
		"resource_claim.namespace":      func(m *admissionv1.ResourceClaim) { m.Namespace = "A" },
		"resource_claim.devices: has 0": func(m *admissionv1.ResourceClaim) { m.Devices = nil },
		"resource_claim.devices: has 33": func(m *admissionv1.ResourceClaim) {
			m.Devices = make([]*admissionv1.ClaimDevice,
				33)
		},
		"resource_claim.devices[0].name: is required": func(m *admissionv1.ResourceClaim) { m.Devices[0].Name = "" },
		"resource_claim.devices[1].name":              func(m *admissionv1.ResourceClaim) { m.Devices[1].Name = "left" },
		"resource_claim.devices[1].numa_node: 64":     func(m *admissionv1.ResourceClaim) { m.Devices[1].NumaNode = 64 },
		`resource_claim.devices[0].resources["cpu"]`:  func(m *admissionv1.ResourceClaim) { m.Devices[0].Resources["cpu"] = "1500m" },
		`resource_claim.devices[0].resources["memory"]`: func(m *admissionv1.ResourceClaim) {
			delete(m.Devices[0].Resources,
				"memory")
		},
		`resource_claim.devices[0].resources["gold"]`:          func(m *admissionv1.ResourceClaim) { m.Devices[0].Resources["gold"] = "1" },
		`resource_claim.devices[0].resources["hugepages-2Mi"]`: func(m *admissionv1.ResourceClaim) { m.Devices[0].Resources["hugepages-2Mi"] = "1Mi" },
		"resource_claim.devices[1].cpu_options: has 9": func(m *admissionv1.ResourceClaim) {
			m.Devices[1].CpuOptions = make([]string, 9)
		},
		"resource_claim.pods: has 257": func(m *admissionv1.ResourceClaim) {
			m.Pods = make([]*typesv1.ClaimPod, 257)
		},
		"resource_claim.pods[1].name": func(m *admissionv1.ResourceClaim) {
			m.Pods = append(m.Pods,
				&typesv1.ClaimPod{Name: "A", Uid: "q"})
		},
		"resource_claim.pods[1].uid": func(m *admissionv1.ResourceClaim) {
			m.Pods = append(m.Pods,
				&typesv1.ClaimPod{Name: "a", Uid: "../q"})
		},
		"resource_claim.pods[1]: pod p is given": func(m *admissionv1.ResourceClaim) { m.Pods = append(m.Pods, m.Pods[0]) },
		"resource_claim.devices[0].resources: has 17": func(m *admissionv1.ResourceClaim) {
			for i := range 15 {
				m.Devices[0].Resources[fmt.Sprint(i)] = "1"
			}
		},
	} {
		m := &admissionv1.ResourceClaim{Uid: "u", Name: "c", Devices: []*admissionv1.ClaimDevice{claimed("left", 0), claimed("right", 1)},
			Pods: []*typesv1.ClaimPod{{Name: "p", Uid: "p"}}}
		change(m)
		if _, err := ReadResourceClaim(m); errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
