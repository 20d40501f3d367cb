package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

const (
	// maxClaimResources is how many resources a device may name: cpu, memory, and each size of huge pages.
	maxClaimResources = 16
	// maxClaimOptions is how many options a device may name.
	maxClaimOptions = 8
	// maxClaimDevices is how many devices a claim may have, as at the API server, and maxClaimPods how many pods it may be
	// reserved for.
	maxClaimDevices, maxClaimPods = 32, 256
)

// ReadResourceClaim reads a claim on dynamic resources as a pod with a container for each device. Violations
// name the field's path. Names, the uid and the namespace are checked as those of a pod.
func ReadResourceClaim(m *admissionv1.ResourceClaim) (workload.Pod, error) {
	var vs errdefs.Violations
	pod := workload.Pod{
		UID: m.GetUid(), Namespace: m.GetNamespace(), Name: m.GetName(), ResourceClaim: &workload.ResourceClaim{},
	}
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	if pod.Name == "" {
		vs.Addf("resource_claim.name", "is required")
	}
	if n := len(m.GetDevices()); n == 0 || n > maxClaimDevices {
		vs.Addf("resource_claim.devices", "has %d devices, expected 1 to %d", n, maxClaimDevices)
		return workload.Pod{}, vs.Err("request")
	}
	for i, d := range m.GetDevices() {
		device, container := readClaimDevice(fmt.Sprintf("resource_claim.devices[%d]", i), d, &vs)
		pod.ResourceClaim.Devices = append(pod.ResourceClaim.Devices, device)
		pod.Containers = append(pod.Containers, container)
	}
	pod.ResourceClaim.Pods = readClaimPods(m.GetPods(), &vs)
	if len(vs) == 0 {
		for _, v := range workload.Check(&pod, workload.Bounds{}) {
			field := strings.TrimPrefix(strings.TrimPrefix(v.Field, "pod."), "metadata.")
			vs.Addf("resource_claim."+strings.Replace(field, "spec.containers[", "devices[", 1), "%s", v.Description)
		}
	}
	return pod, vs.Err("request")
}

// readClaimPods reads the pods that a claim is reserved for.
func readClaimPods(pods []*typesv1.ClaimPod, vs *errdefs.Violations) (out []workload.ClaimPod) {
	const path = "resource_claim.pods"
	if len(pods) > maxClaimPods {
		vs.Addf(path, "has %d pods, expected at most %d", len(pods), maxClaimPods)
		return nil
	}
	for i, p := range pods {
		pod := workload.ClaimPod{Name: p.GetName(), UID: p.GetUid()}
		switch {
		case !workload.IsDNSSubdomain(pod.Name):
			vs.Addf(fmt.Sprintf("%s[%d].name", path, i), "%.80q: expected the name of a pod, a DNS-1123 subdomain", pod.Name)
		case !workload.IsUID(pod.UID):
			vs.Addf(fmt.Sprintf("%s[%d].uid", path, i), "%.80q: expected the uid of a pod", pod.UID)
		case slices.Contains(out, pod):
			vs.Addf(fmt.Sprintf("%s[%d]", path, i), "pod %s is given twice", pod.Name)
		default:
			out = append(out, pod)
		}
	}
	return out
}

// readClaimDevice reads a device as a container whose limits are its requests.
func readClaimDevice(path string, m *admissionv1.ClaimDevice, vs *errdefs.Violations) (workload.ClaimDevice, workload.Container) {
	out := workload.ClaimDevice{}
	if node := m.GetNumaNode(); node < numa.MaxNodes {
		out.Node = int(node)
	} else {
		vs.Addf(path+".numa_node", "%d: expected 0 to %d", node, numa.MaxNodes-1)
	}
	if n := len(m.GetCpuOptions()); n > maxClaimOptions {
		vs.Addf(path+".cpu_options", "has %d options, expected at most %d", n, maxClaimOptions)
	} else {
		out.CPUOptions = slices.Compact(slices.Sorted(slices.Values(m.GetCpuOptions())))
	}
	requests := workload.Quantities{}
	if n := len(m.GetResources()); n > maxClaimResources {
		vs.Addf(path+".resources", "has %d resources, expected at most %d", n, maxClaimResources)
		return out, workload.Container{}
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetResources())) {
		resource, path := workload.Resource(name), fmt.Sprintf("%s.resources[%.80q]", path, name)
		size, pageErr := workload.HugePageSize(resource)
		if resource != workload.CPU && resource != workload.Memory && (!resource.IsHugePages() || pageErr != nil) {
			vs.Addf(path, "claims cannot have this: expected cpu, memory or hugepages-<size>")
			continue
		}
		n, excess, err := quantity(resource, m.GetResources()[name])
		switch {
		case err != nil:
			vs.Addf(path, "%v", err)
		case n <= 0:
			vs.Addf(path, "expected an amount above 0")
		case excess != 0 || resource == workload.CPU && n%1000 != 0:
			vs.Addf(path, "expected a whole number")
		case resource.IsHugePages() && n%size != 0:
			vs.Addf(path, "%d bytes are not a whole number of pages of %d bytes", n, size)
		default:
			requests[resource] = n
		}
	}
	for _, required := range []string{string(workload.CPU), string(workload.Memory)} {
		if _, given := m.GetResources()[required]; !given {
			vs.Addf(fmt.Sprintf("%s.resources[%q]", path, required), "is required")
		}
	}
	return out, workload.Container{Name: m.GetName(), Requests: requests, Limits: maps.Clone(requests)}
}
