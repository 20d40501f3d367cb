package workload

import (
	"strconv"
)

const specPath = "pod.spec"

// The two lists of amounts that containers and pods have.
const (
	Requests = "requests"
	Limits   = "limits"
)

// ContainerPath gives the place of the container at an index of Containers in the Kubernetes pod that it came from:
// pod.spec.initContainers[i] for init containers and sidecars, pod.spec.containers[i] for app containers.
func (p *Pod) ContainerPath(index int) string {
	list, first := "containers", 0
	if p.Containers[index].Role != App {
		list = "initContainers"
	}
	for i := range index {
		if (p.Containers[i].Role == App) == (p.Containers[index].Role == App) {
			first++
		}
	}
	return specPath + "." + list + "[" + strconv.Itoa(first) + "]"
}

// QuantityPath gives a function from resource names to paths of the form parent.resources.requests["cpu"], where parent is a
// container's path or pod.spec and list is Requests or Limits.
func QuantityPath(parent, list string) func(Resource) string {
	return func(r Resource) string {
		return parent + ".resources." + list + `["` + string(r) + `"]`
	}
}
