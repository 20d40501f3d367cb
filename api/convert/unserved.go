package convert

import (
	"fmt"
	"slices"
	"strings"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// linuxOS is the system of the nodes that berth works on.
const linuxOS = "linux"

// Unserved lists, in sentences, the fields of a pod that decide its place on a node
// and that berth does not serve.
func Unserved(m *typesv1.Pod) []string {
	var out []string
	spec := m.GetSpec()
	if claims := claimed(spec); len(claims) > 0 {
		out = append(out, fmt.Sprintf("pod.spec.resourceClaims requests dynamic resources (%s), which berth does not allocate", short(strings.Join(claims, ", "))))
	}
	if added := spec.GetEphemeralContainers(); len(added) > 0 {
		var names []string
		for _, c := range added {
			names = append(names, c.GetName())
		}
		out = append(out, fmt.Sprintf("pod.spec.ephemeralContainers are not placed (%s)", short(strings.Join(names, ", "))))
	}
	if os := spec.GetOs().GetName(); os != "" && os != linuxOS {
		out = append(out, fmt.Sprintf("pod.spec.os.name is %q, and berth gives places on %s", short(os), linuxOS))
	}
	return out
}

// claimed lists the claims of a pod by name, with those that only its containers name.
func claimed(spec *typesv1.PodSpec) []string {
	var names []string
	for _, c := range spec.GetResourceClaims() {
		names = append(names, c.GetName())
	}
	for _, c := range slices.Concat(spec.GetInitContainers(), spec.GetContainers()) {
		for _, use := range c.GetResources().GetClaims() {
			names = append(names, use.GetName())
		}
	}
	for _, use := range spec.GetResources().GetClaims() {
		names = append(names, use.GetName())
	}
	slices.Sort(names)
	return slices.Compact(names)
}
