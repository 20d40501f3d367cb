package podresources

import (
	"cmp"
	"slices"
	"time"

	"github.com/berthd/berth/managers/ledger"
)

// listed is a pod for readers.
type listed struct {
	namespace, name string
	admittedAt      time.Time
	// records has one record, or one for each container that is admitted apart, by their names.
	records []*ledger.Pod
}

// active returns the pods by namespace and name.
func active(view *ledger.View) []*listed {
	out := matching(view, func(string, string) bool { return true })
	slices.SortStableFunc(out, func(a, b *listed) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	return out
}

// newest finds a pod by its name, nil if there is none. A pod and its successor of the same name
// can exist at once; the later one counts.
func newest(view *ledger.View, namespace, name string) (found *listed) {
	for _, p := range matching(view, func(inNamespace, called string) bool { return inNamespace == namespace && called == name }) {
		if found == nil || p.admittedAt.After(found.admittedAt) {
			found = p
		}
	}
	return found
}

// matching returns the pods whose namespace and name match. Resource claims are no pods. A container that is admitted apart from
// its pod is one of the pod's containers; if the pod has a record, it is a container for debugging, which readers of a kubelet do
// not see.
func matching(view *ledger.View, match func(namespace, name string) bool) (out []*listed) {
	apart := map[string]*listed{} // by the uid of the pod
	for p := range view.Pods() {
		uid, name, isApart := p.Pod.ApartFrom()
		if !isApart {
			name = p.Pod.Name
		}
		if p.Pod.ResourceClaim != nil || !match(p.Pod.Namespace, name) {
			continue
		}
		if isApart {
			if _, whole := view.Pod(uid); whole {
				continue
			}
			if known := apart[uid]; known != nil {
				known.records = append(known.records, p)
				if p.AdmittedAt.After(known.admittedAt) {
					known.admittedAt = p.AdmittedAt
				}
				continue
			}
		}
		found := &listed{namespace: p.Pod.Namespace, name: name, admittedAt: p.AdmittedAt, records: []*ledger.Pod{p}}
		if out = append(out, found); isApart {
			apart[uid] = found
		}
	}
	return out
}
