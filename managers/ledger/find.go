package ledger

import (
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// Find returns the record of an admitted pod and a container of it, which is nil
// if the owner is the pod as a whole. An unknown pod is the error of NotAdmitted, an
// unknown container one of class NotFound.
func (v *View) Find(o Owner) (*Pod, *workload.Container, error) {
	p, ok := v.Pod(o.Pod)
	if !ok {
		return nil, nil, v.NotAdmitted(o.Pod)
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

// NotAdmitted returns the error for a pod that is not in the ledger. It is of class NotFound
// only if the pod is certainly not here: as long as the ledger may lack pods, and for an
// unknown living pod, it is of class Unavailable.
func (v *View) NotAdmitted(uid string) error {
	switch {
	case v.UnknownLive(uid):
		return errdefs.Unavailablef("pod %s lives here, and its record in the ledger was lost: admit it again first", uid).
			Coded(errdefs.LedgerUncertain, "pod_uid", uid)
	case v.Uncertain() != "":
		return errdefs.Unavailablef("pod %s is not in the ledger, which may lack pods (%s): admit the pod again, or send SyncPods", uid, v.Uncertain()).
			Coded(errdefs.LedgerUncertain, "pod_uid", uid)
	}
	return errdefs.NotFoundf("pod %s is not admitted", uid).Coded(errdefs.PodNotFound, "pod_uid", uid)
}
