package workload

import "strconv"

const specPath = "pod.spec"

// The two lists of amounts that containers and pods have, as QuantityPath takes them.
const (
	Requests = "requests"
	Limits   = "limits"
)

// ContainerPaths gives, for each of Containers, its place in the Kubernetes pod that it came from: pod.spec.containers[i] for
// app containers, pod.spec.initContainers[i] for init containers and sidecars.
func (p *Pod) ContainerPaths() []string {
	paths := make([]string, len(p.Containers))
	apps, inits := 0, 0
	for i, c := range p.Walk() {
		if c.Role == App {
			paths[i] = specPath + ".containers[" + strconv.Itoa(apps) + "]"
			apps++
		} else {
			paths[i] = specPath + ".initContainers[" + strconv.Itoa(inits) + "]"
			inits++
		}
	}
	return paths
}

// QuantityPath gives a function from resource names to paths of the form parent.resources.requests["cpu"], where parent is a
// container's path or pod.spec, and list is Requests or Limits.
func QuantityPath(parent, list string) func(Resource) string {
	return func(r Resource) string {
		return parent + ".resources." + list + "[" + strconv.Quote(string(r)) + "]"
	}
}

// OverheadPath gives the path of one amount of a pod's overhead.
func OverheadPath(r Resource) string {
	return specPath + ".overhead[" + strconv.Quote(string(r)) + "]"
}
