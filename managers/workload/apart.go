package workload

import "strings"

// Apart returns the uid and the name of the pod that stands for one container of a pod. An agent that does not know the
// specification of a pod, such as berth-nri, admits each container as a pod of its own.
func Apart(uid, name, container string) (apartUID, apartName string) {
	return uid + "." + container, name + "." + container
}

// ApartFrom returns the uid and the name of the pod of whose containers this pod is one; false for other pods. The uids of
// Kubernetes have no dots, so a pod of Kubernetes is never taken for a container of another pod.
func (p *Pod) ApartFrom() (uid, name string, apart bool) {
	if len(p.Containers) != 1 || p.ResourceClaim != nil {
		return "", "", false
	}
	suffix := "." + p.Containers[0].Name
	uid, inUID := strings.CutSuffix(p.UID, suffix)
	name, inName := strings.CutSuffix(p.Name, suffix)
	if !inUID || !inName || uid == "" || name == "" {
		return "", "", false
	}
	return uid, name, true
}
