package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// unknownResources lists the requests and limits whose name is not a name of Kubernetes and has no domain. An API server
// refuses such a name on a container; most are misspelt, and the resource would never be provided.
func unknownResources(p *corev1.Pod) (out []string) {
	for _, list := range []struct {
		name string
		of   []corev1.Container
	}{{"initContainers", p.Spec.InitContainers}, {"containers", p.Spec.Containers}} {
		for i := range list.of {
			out = append(out, unknownNames(fmt.Sprintf("spec.%s[%d].resources", list.name, i), &list.of[i].Resources)...)
		}
	}
	if p.Spec.Resources != nil {
		out = append(out, unknownNames("spec.resources", p.Spec.Resources)...)
	}
	return out
}

func unknownNames(path string, r *corev1.ResourceRequirements) (out []string) {
	for _, list := range []struct {
		name    string
		amounts corev1.ResourceList
	}{{"requests", r.Requests}, {"limits", r.Limits}} {
		for _, name := range slices.Sorted(maps.Keys(list.amounts)) {
			if !knownResource(name) {
				out = append(out, fmt.Sprintf("unknown resource %q in %q (expected cpu, memory, ephemeral-storage, hugepages-SIZE, or a name with a domain such as example.com/gpu)",
					string(name), path+"."+list.name))
			}
		}
	}
	return out
}

func knownResource(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	return strings.Contains(string(name), "/") || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}
