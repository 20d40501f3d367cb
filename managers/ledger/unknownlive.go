package ledger

import (
	"iter"
	"strings"
	"time"

	"github.com/berthd/berth/managers/workload"
)

// UnknownLivePod is a pod that lives here although the ledger has no record of it, as
// after the ledger was lost. Its processes are not touched. What is known of its claims
// is held by it as by any pod: nobody else gets any of that.
type UnknownLivePod struct {
	UID string `json:"-"`
	// Since is when it was found, or when the agent first named it.
	Since time.Time `json:"since"`
	// Namespace and Name, where they are known.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Source says where the claims come from; empty where nothing is known.
	Source ClaimSource `json:"source,omitempty"`
	// Digest of the pod's specification and its class, where they are known.
	Digest string            `json:"digest,omitempty"`
	QoS    workload.QoSClass `json:"qos,omitempty"`
	// OwnedBy is the agent that the pod belongs to; empty for DefaultOwner, and where
	// that is not known.
	OwnedBy string `json:"owned_by,omitempty"`
	// Claims that are known, in the order of records. Those that the kernel shows are
	// owned by the container's cgroup, by its last component.
	Claims []Claim `json:"claims,omitempty"`
	// Bindings of its containers, where they are known.
	Bindings []RecordedBinding `json:"bindings,omitempty"`
	// DevicesUnknown says that it may hold devices beside those of its claims.
	DevicesUnknown bool `json:"devices_unknown,omitempty"`

	holds *Pod // the claims as a record, for what counts claims; never changed
}

// ClaimSource says where it is known from what a pod holds.
type ClaimSource string

const (
	// FromLedger: the pod's record in the ledger, or what is left of it.
	FromLedger ClaimSource = "ledger"
	// FromClaimRecord: the pod's claim record.
	FromClaimRecord ClaimSource = "claim record"
	// FromBoth: the union of what the ledger and the claim record have.
	FromBoth ClaimSource = "ledger and claim record"
	// FromKernel: the CPUs and memory nodes of its containers' cgroups.
	FromKernel ClaimSource = "kernel"
)

// kept returns the pod as a view has it.
func (u UnknownLivePod) kept() *UnknownLivePod {
	u.holds = &Pod{
		Pod: workload.Pod{UID: u.UID, Namespace: u.Namespace, Name: u.Name},
		QoS: u.QoS, OwnedBy: u.OwnedBy, Claims: u.Claims,
	}
	return &u
}

// UnknownLive reports whether a pod lives here that the ledger does not know.
func (v *View) UnknownLive(uid string) bool {
	_, ok := v.unknown.Get(uid)
	return ok
}

// UnknownLivePod returns what is known of a pod that lives here and is not in the
// ledger.
func (v *View) UnknownLivePod(uid string) (UnknownLivePod, bool) {
	if u, ok := v.unknown.Get(uid); ok {
		return *u, true
	}
	return UnknownLivePod{}, false
}

// UnknownLivePods yields the pods that live here and are not in the ledger, by uid.
func (v *View) UnknownLivePods() iter.Seq[UnknownLivePod] {
	return func(yield func(UnknownLivePod) bool) {
		for u := range v.unknown.Values() {
			if !yield(*u) {
				return
			}
		}
	}
}

// putUnknown applies changes of unknown living pods, nil for those that are forgotten,
// to a view that nobody else has yet.
func (v *View) putUnknown(changes map[string]*UnknownLivePod) {
	if len(changes) == 0 {
		return
	}
	contested := !v.facts.contested.IsEmpty()
	next := &sums{base: v.facts.sums}
	for uid, u := range changes {
		if old, ok := v.unknown.Get(uid); ok {
			v.facts.release(old.holds)
			next.gone = append(next.gone, old.holds)
			v.unknown = v.unknown.Delete(uid)
		}
		if u != nil {
			u = u.kept()
			v.unknown = v.unknown.Set(uid, u)
			next.come = append(next.come, u.holds)
		}
	}
	for _, p := range next.come {
		v.facts.hold(p)
	}
	next.pods, next.unknown = v.pods, v.unknown
	v.facts.sums = next
	if contested { // what was released may be another's still
		v.derive()
	}
}

// holdings yields the records of all who hold something: the pods of the ledger and,
// with what is known of them, the unknown living ones.
func (v *View) holdings() iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		for p := range v.pods.Values() {
			if !yield(p) {
				return
			}
		}
		for u := range v.unknown.Values() {
			if !yield(u.holds) {
				return
			}
		}
	}
}

// PutUnknownLive notes a pod that lives here and is not in the ledger, or what is known
// of it now. One that is in the ledger is left out.
func (d *Draft) PutUnknownLive(u UnknownLivePod) {
	if _, known := d.View().pods.Get(u.UID); known {
		return
	}
	set(&d.unknown, u.UID, &u)
	d.view = nil
}

// SetUnknownLive makes the given pods the ones that live here and are not known; those
// that were noted before stay as they were noted then. Known pods are left out.
func (d *Draft) SetUnknownLive(pods ...UnknownLivePod) {
	view := d.View()
	wanted := make(map[string]bool, len(pods))
	for _, u := range pods {
		if _, known := view.pods.Get(u.UID); known {
			continue
		}
		wanted[u.UID] = true
		if !view.UnknownLive(u.UID) {
			set(&d.unknown, u.UID, &u)
		}
	}
	for uid := range view.unknown.All() {
		if !wanted[uid] {
			drop(&d.unknown, uid, d.base.UnknownLive(uid))
		}
	}
	d.view = nil
}

// ForgetUnknownLive ends that a pod counts as living and unknown.
func (d *Draft) ForgetUnknownLive(uid string) {
	if drop(&d.unknown, uid, d.base.UnknownLive(uid)) {
		d.view = nil
	}
}

// unknown checks a pod that is noted as living and not in the ledger: nobody else holds
// what it holds. Its containers are not known, so who of them holds what is not looked
// at.
func (c *checker) unknown(uid string) {
	u, ok := c.view.unknown.Get(uid)
	if !ok {
		return
	}
	c.unknownIsKnown(uid)
	for i := range u.Claims {
		claim := &u.Claims[i]
		switch {
		case claim.payloads() != 1 || claim.Owner.Pod != uid:
			c.add(Structural, RulePayload, claim.Owner, Owner{}, claim.Resource,
				"claim of %s on %s has %d payloads, not one, or is not that of pod %s", claim.Owner, claim.Resource, claim.payloads(), uid)
		case claim.Devices != nil:
			c.holdDevices(u.holds, claim)
		}
	}
	c.unknownMemory(u)
}

// unknownIsKnown checks that a uid that is noted as living and not in the ledger is
// such a pod's.
func (c *checker) unknownIsKnown(uid string) {
	_, known := c.view.pods.Get(uid)
	if c.view.UnknownLive(uid) && (known || uid == "" || strings.Contains(uid, "/")) {
		c.add(Structural, RuleUnknownLive, Owner{Pod: uid}, Owner{}, "", "pod %q is noted as living and unknown, and is known or no pod", uid)
	}
}

// unknownMemory adds the memory of an unknown living pod to the sums. Which of its
// containers hand memory on is not known, so all counts.
func (c *checker) unknownMemory(u *UnknownLivePod) {
	for i := range u.Claims {
		claim := &u.Claims[i]
		if whole, ok := u.holds.Claim("", claim.Resource); ok && len(whole.Memory) > 0 && claim.Owner.Container != "" {
			continue
		}
		for _, b := range claim.Memory {
			if c.memory.pods == nil {
				c.memory.pods = make(map[memoryKey]uint64)
			}
			key := memoryKey{claim.Resource, b.Nodes}
			c.memory.pods[key] = saturate(c.memory.pods[key], b.Bytes)
		}
	}
}
