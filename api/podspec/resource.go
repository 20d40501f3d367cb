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
func unknownResources(doc object) (out []string) {
	for path, list := range requirementsOf(doc) {
		amounts, _ := list.(object)
		for _, name := range slices.Sorted(maps.Keys(amounts)) {
			if !knownResource(corev1.ResourceName(name)) {
				out = append(out, fmt.Sprintf("unknown resource %q in %q (expected cpu, memory, ephemeral-storage, hugepages-SIZE, or a name with a domain such as example.com/gpu)",
					name, path))
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
