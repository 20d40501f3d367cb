package ledger

import (
	"strings"

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
		return errdefs.Unavailablef("pod %s is not in the ledger, which may lack pods (%s): admit the pod again, or send SyncPods", uid,
			v.Uncertain()).
			Coded(errdefs.LedgerUncertain, "pod_uid", uid)
	}
	return errdefs.NotFoundf("pod %s is not admitted", uid).Coded(errdefs.PodNotFound, "pod_uid", uid)
}

// FindName returns the pod with a name. Errors are those of Find; several pods with this name
// are an error of class Precondition.
func (v *View) FindName(namespace, name string) (*Pod, error) {
	var found []*Pod
	for p := range v.Pods() {
		if p.Pod.Namespace == namespace && p.Pod.Name == name {
			found = append(found, p)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		uids := make([]string, 0, namedUIDs)
		for _, p := range found[:min(len(found), namedUIDs)] {
			uids = append(uids, p.UID())
		}
		return nil, errdefs.Preconditionf("%d pods are called %s/%s: name one by its uid, as %s", len(found), namespace, name,
			strings.Join(uids, ", "))
	case v.Uncertain() != "":
		return nil, errdefs.Unavailablef("pod %s/%s is not in the ledger, which may lack pods (%s): admit the pod again, or send SyncPods", namespace, name, v.Uncertain()).
			Coded(errdefs.LedgerUncertain)
	}
	return nil, errdefs.NotFoundf("pod %s/%s is not admitted", namespace, name).Coded(errdefs.PodNotFound)
}

// namedUIDs is how many uids an error lists.
const namedUIDs = 8
