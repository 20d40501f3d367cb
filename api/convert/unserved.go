package convert

import (
	"errors"
	"fmt"
	"strings"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
)

// linuxOS is the only operating system for which berth admits pods.
const linuxOS = "linux"

// Unserved describes, in sentences, what a pod has and berth does not place, although the
// pod can be admitted: ephemeral containers, which have no resources of their own.
func Unserved(m *typesv1.Pod) []string {
	added := m.GetSpec().GetEphemeralContainers()
	if len(added) == 0 {
		return nil
	}
	var names []string
	for _, c := range added {
		names = append(names, c.GetName())
	}
	return []string{fmt.Sprintf("pod.spec.ephemeralContainers are not placed (%s)", short(strings.Join(names, ", ")))}
}

// unsupported lists the fields of a pod that decide its placement and that berth does not
// support. A pod without them would be another pod, so it is refused.
func unsupported(m *typesv1.Pod) (vs errdefs.Violations) {
	spec := m.GetSpec()
	if len(spec.GetResourceClaims()) > 0 {
		vs.Addf("pod.spec.resourceClaims", "%s", NoClaims)
	}
	claims(&vs, "pod.spec.resources", spec.GetResources())
	for i, c := range spec.GetInitContainers() {
		claims(&vs, fmt.Sprintf("pod.spec.initContainers[%d].resources", i), c.GetResources())
	}
	for i, c := range spec.GetContainers() {
		claims(&vs, fmt.Sprintf("pod.spec.containers[%d].resources", i), c.GetResources())
	}
	for i, c := range spec.GetEphemeralContainers() {
		if r := c.GetResources(); len(r.GetRequests())+len(r.GetLimits())+len(r.GetClaims()) > 0 {
			vs.Addf(fmt.Sprintf("pod.spec.ephemeralContainers[%d].resources", i),
				"is not supported: Kubernetes has none for ephemeral containers")
		}
	}
	if name := spec.GetOs().GetName(); name != "" && name != linuxOS {
		vs.Addf("pod.spec.os.name", "%q is not supported: expected %s", short(name), linuxOS)
	}
	return vs
}

const NoClaims = "is not supported: berth does not allocate dynamic resources"

func claims(vs *errdefs.Violations, path string, r *typesv1.ResourceRequirements) {
	if len(r.GetClaims()) > 0 {
		vs.Addf(path+".claims", "%s", NoClaims)
	}
}

// refused gives the error of a pod that is refused only because of unsupported fields the
// code for these.
func refused(err error) error {
	if e := new(errdefs.Error); errors.As(err, &e) {
		return e.Coded(errdefs.UnsupportedPodField)
	}
	return err
}
