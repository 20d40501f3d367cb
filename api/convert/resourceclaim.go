package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// maxClaimResources is how many resources a claim may name: cpu, memory, and each size of huge pages.
const maxClaimResources = 16

// ReadResourceClaim reads a claim on dynamic resources as a pod of one container. Violations name the
// field's path. The uid, name and namespace are checked as those of a pod.
func ReadResourceClaim(m *admissionv1.ResourceClaim) (workload.Pod, error) {
	var vs errdefs.Violations
	pod := workload.Pod{
		UID: m.GetUid(), Namespace: m.GetNamespace(), Name: m.GetName(),
		ResourceClaim: &workload.ResourceClaim{Nodes: readMask("resource_claim.numa_nodes", m.GetNumaNodes(), &vs)},
	}
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	if pod.Name == "" {
		vs.Addf("resource_claim.name", "is required")
	}
	if n := len(m.GetNumaNodes().GetIds()); n != 1 {
		vs.Addf("resource_claim.numa_nodes", "has %d NUMA nodes, expected exactly one", n)
	}
	if n := len(m.GetResources()); n > maxClaimResources {
		vs.Addf("resource_claim.resources", "has %d resources, expected at most %d", n, maxClaimResources)
		return workload.Pod{}, vs.Err("request")
	}
	requests := workload.Quantities{}
	for _, name := range slices.Sorted(maps.Keys(m.GetResources())) {
		resource, path := workload.Resource(name), fmt.Sprintf("resource_claim.resources[%.80q]", name)
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
			vs.Addf(fmt.Sprintf("resource_claim.resources[%q]", required), "is required")
		}
	}
	pod.Containers = []workload.Container{{Name: workload.ClaimContainer, Requests: requests, Limits: maps.Clone(requests)}}
	if len(vs) == 0 {
		for _, v := range workload.Check(&pod, workload.Bounds{}) {
			vs.Addf("resource_claim."+strings.TrimPrefix(v.Field, "pod.metadata."), "%s", v.Description)
		}
	}
	return pod, vs.Err("request")
}
