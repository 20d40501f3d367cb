package ledger

import (
	"iter"
	"time"

	"github.com/berthd/berth/managers/workload"
)

// UnknownLivePod is a running pod without a ledger record, for example after the ledger was
// lost. Its processes are not touched. Its known claims count like those of any pod: no
// other pod gets them.
type UnknownLivePod struct {
	UID string `json:"-"`
	// Since is when it was found, or when the agent first named it.
	Since time.Time `json:"since"`
	// Namespace and Name, if known.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Source of the claims; empty if none are known.
	Source ClaimSource `json:"source,omitempty"`
	// Digest of the pod's specification and its class, if known.
	Digest string            `json:"digest,omitempty"`
	QoS    workload.QoSClass `json:"qos,omitempty"`
	// OwnedBy is the pod's agent; empty for DefaultOwner and if unknown.
	OwnedBy string `json:"owned_by,omitempty"`
	// ResourceClaim is present if it is a resource claim, as far as that is known.
	ResourceClaim *workload.ResourceClaim `json:"resource_claim,omitempty"`
	// Claims that are known, in the order of records. The owner of claims from the kernel
	// is the last component of the container's cgroup.
	Claims []Claim `json:"claims,omitempty"`
	// Bindings of its containers, if known.
	Bindings []RecordedBinding `json:"bindings,omitempty"`
	// DevicesUnknown means that it may have devices in addition to its claims.
	DevicesUnknown bool `json:"devices_unknown,omitempty"`

	holds *Pod // the claims as a record, for sums; immutable
}

// RecordedBinding is a binding in a claim record.
type RecordedBinding struct {
	ID         string `json:"id"`
	Container  string `json:"container"`
	CgroupPath string `json:"cgroup_path,omitempty"`
	Own        bool   `json:"own,omitempty"`
}

// ClaimSource is the source of a pod's known claims.
type ClaimSource string

const (
	// FromLedger: the pod's record in the ledger, or its readable part.
	FromLedger ClaimSource = "ledger"
	// FromClaimRecord: the pod's claim record.
	FromClaimRecord ClaimSource = "claim record"
	// FromBoth: the union of the ledger's and the claim record's claims.
	FromBoth ClaimSource = "ledger and claim record"
	// FromKernel: the CPUs and memory nodes of its containers' cgroups.
	FromKernel ClaimSource = "kernel"
)

// kept returns the pod in the form of a view.
func (u UnknownLivePod) kept() *UnknownLivePod {
	u.holds = &Pod{
		Pod: workload.Pod{UID: u.UID, Namespace: u.Namespace, Name: u.Name, ResourceClaim: u.ResourceClaim},
		QoS: u.QoS, OwnedBy: u.OwnedBy, Claims: u.Claims,
	}
	return &u
}

// Held returns the claims of a pod of a view as those of a pod without a specification. It must not be changed.
func (u *UnknownLivePod) Held() *Pod { return u.holds }

// UnknownLive returns whether a running pod is not in the ledger.
func (v *View) UnknownLive(uid string) bool {
	_, ok := v.unknown.Get(uid)
	return ok
}

// UnknownLivePod returns what is known of a running pod that is not in the ledger.
func (v *View) UnknownLivePod(uid string) (UnknownLivePod, bool) {
	if u, ok := v.unknown.Get(uid); ok {
		return *u, true
	}
	return UnknownLivePod{}, false
}

// NumUnknownLive returns the number of running pods that are not in the ledger.
func (v *View) NumUnknownLive() int { return v.unknown.Len() }

// UnknownLivePods yields the running pods that are not in the ledger, by uid.
func (v *View) UnknownLivePods() iter.Seq[UnknownLivePod] {
	return func(yield func(UnknownLivePod) bool) {
		for u := range v.unknown.Values() {
			if !yield(*u) {
				return
			}
		}
	}
}

// putUnknown applies changes of unknown living pods, nil for removed ones, to records that
// no view shares yet.
func (r *records) putUnknown(changes map[string]*UnknownLivePod) {
	if len(changes) == 0 {
		return
	}
	contested := !r.facts.contested.IsEmpty()
	next := r.facts.next()
	for uid, u := range changes {
		if old, ok := r.unknown.Get(uid); ok {
			r.facts.release(old.holds)
			next.sums.gone = append(next.sums.gone, old.holds)
			r.unknown = r.unknown.Delete(uid)
		}
		if u != nil {
			u = u.kept()
			r.unknown = r.unknown.Set(uid, u)
			next.sums.come = append(next.sums.come, u.holds)
		}
	}
	for _, p := range next.sums.come {
		r.facts.hold(p)
	}
	r.follow(next)
	if contested { // released CPUs may belong to another pod, too
		r.derive()
	}
}

// allocations yields the records of all pods with claims: those in the ledger, and the unknown
// living ones with their known claims.
func (r *records) allocations() iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		for p := range r.pods.Values() {
			if !yield(p) {
				return
			}
		}
		for u := range r.unknown.Values() {
			if !yield(u.holds) {
				return
			}
		}
	}
}

// PutUnknownLive stores what is known of running pods that are not in the ledger. Pods in the
// ledger are ignored.
func (d *Draft) PutUnknownLive(pods ...UnknownLivePod) {
	view := d.View()
	for _, u := range pods {
		if _, known := view.pods.Get(u.UID); !known {
			set(&d.changes.Unknown, u.UID, &u)
		}
	}
	d.view = nil
}

// ForgetUnknownLive removes an unknown living pod.
func (d *Draft) ForgetUnknownLive(uid string) {
	if drop(&d.changes.Unknown, uid, d.base.UnknownLive(uid)) {
		d.view = nil
	}
}
