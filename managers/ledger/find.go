package ledger

import (
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// Find returns the record of an admitted pod and a container of it, which is nil
// if the owner is the pod as a whole. An unknown pod or container is an error of
// class NotFound.
func (v *View) Find(o Owner) (*Pod, *workload.Container, error) {
	p, ok := v.Pod(o.Pod)
	if !ok {
		return nil, nil, errdefs.NotFoundf("pod %s is not admitted", o.Pod).Coded(errdefs.PodNotFound, "pod_uid", o.Pod)
	}
	if o.Container == "" {
		return p, nil, nil
	}
	c := p.Pod.Container(o.Container)
	if c == nil {
		return nil, nil, errdefs.NotFoundf("pod %s has no container %q", o.Pod, o.Container).
			Coded(errdefs.ContainerNotFound, "pod_uid", o.Pod, "container_name", o.Container)
	}
	return p, c, nil
}
