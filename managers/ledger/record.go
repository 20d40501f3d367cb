package ledger

import (
	"slices"
	"time"

	"github.com/berthd/berth/managers/workload"
)

// Pod is the record of one admitted pod. Records are immutable after their commit; a draft
// replaces the whole record.
type Pod struct {
	// Pod as it was admitted, defaults applied.
	Pod workload.Pod `json:"pod"`
	// Digest of the pod as the caller sent it. It distinguishes a repeated admission from a
	// changed pod.
	Digest string            `json:"digest"`
	QoS    workload.QoSClass `json:"qos"`
	// OwnedBy is the pod's agent; empty for DefaultOwner.
	OwnedBy     string `json:"owned_by,omitempty"`
	AdmissionID string `json:"admission_id"`
	// ResizeID is the admission id of the last resize; empty before the first one.
	ResizeID string `json:"resize_id,omitempty"`
	// EarlierResizeIDs are the admission ids of the resizes before it, the oldest first; only
	// the newest ones. A repeated request of such a resize must not undo a later one.
	EarlierResizeIDs []string  `json:"earlier_resize_ids,omitempty"`
	AdmittedAt       time.Time `json:"admitted_at"`
	// AdmittedGeneration is the generation of the pod's admission; 0 for records from
	// before this field. The ledger sets it.
	AdmittedGeneration uint64 `json:"admitted_generation,omitempty"`
	// ChangedGeneration is the generation of the last change of the record or the claims; 0
	// for records from before this field. The ledger sets it.
	ChangedGeneration uint64 `json:"changed_generation,omitempty"`
	// Acknowledged are the claims after the last acknowledged change, if a later change may
	// have happened without an answer. Claims are then the union of both. Otherwise nil;
	// empty if the acknowledged change left no claims.
	Acknowledged []Claim `json:"acknowledged,omitzero"`
	// Move is a change of the claims in progress; nil without one.
	Move *Move `json:"move,omitempty"`
	// CgroupParent is the pod's cgroup in the form for runtimes.
	CgroupParent string `json:"cgroup_parent,omitempty"`
	// Claims in the order of CompareClaims. They are stored under separate keys, not in the
	// record.
	Claims []Claim `json:"-"`
	// Trace of the admission, stored under a separate key.
	Trace *Trace `json:"-"`
}

// UID returns the pod's uid.
func (p *Pod) UID() string { return p.Pod.UID }

// Claim returns the claim of a container (or, with an empty name, of the pod as a whole) on
// a resource.
func (p *Pod) Claim(container, resource string) (Claim, bool) {
	for i := range p.Claims { // they are in order, but not of every record that is being made
		if c := &p.Claims[i]; c.Owner.Container == container && c.Resource == resource {
			return *c, true
		}
	}
	return Claim{}, false
}

// Holds returns whether the pod or one of its containers has a claim on a resource.
func (p *Pod) Holds(resource string) bool {
	return slices.ContainsFunc(p.Claims, func(c Claim) bool { return c.Resource == resource })
}

func (p *Pod) holdsDevices() bool {
	return slices.ContainsFunc(p.Claims, func(c Claim) bool { return c.Devices != nil })
}

// Affinity returns the merge result that the plan for a container followed; nil without a
// merge or without claims.
func (p *Pod) Affinity(container string) *Affinity {
	for i := range p.Claims {
		if c := &p.Claims[i]; c.Owner.Container == container && c.Affinity != nil {
			return c.Affinity
		}
	}
	return nil
}

// Binding is the connection between a runtime's container id and a container of an admitted
// pod.
type Binding struct {
	ID    string `json:"-"`
	Owner Owner  `json:"owner"`
	// CgroupPath is the container's cgroup below the mount point; empty while it is
	// unknown.
	CgroupPath string `json:"cgroup_path,omitempty"`
	// Own is whether berth created the cgroup, and so has to remove it.
	Own bool `json:"own,omitempty"`
	// Sequence orders the bindings of one container, the newest has the highest. A
	// restarted container has several until its old ids are removed.
	Sequence uint64 `json:"sequence"`
}

// SeenResource is a known device resource. After a restart its capacity is 0, not unknown,
// until its plugin registers.
type SeenResource struct {
	Name string `json:"-"`
	// LastSeen is when its plugin last had a connection.
	LastSeen time.Time `json:"last_seen"`
	// PreStart: its plugin requires a call before each start of a container, so no
	// container with its devices starts until the plugin is back.
	PreStart bool `json:"prestart,omitempty"`
}

// ExternalProvider is the registration of an external hint provider. It is stored so that a
// missing provider is known.
type ExternalProvider struct {
	Name string `json:"-"`
	// Endpoint is the absolute path of the provider's socket.
	Endpoint string `json:"endpoint"`
	// UID is the user that registered it, and that owns the socket and the process behind
	// it.
	UID uint32 `json:"uid,omitempty"`
	// GID is the group that the user has its role by; nil if the user has it by itself.
	GID *uint32 `json:"gid,omitempty"`
	// Required is the mode that the provider registered. The configuration decides whether
	// a failure of the provider refuses an admission.
	Required bool `json:"required,omitempty"`
	// Deadline limits each call during an admission.
	Deadline time.Duration `json:"deadline_ns"`
	// Index orders external providers, lower first, then their names.
	Index int `json:"index,omitempty"`
	// Resources of the provider, in order. Only pods that request one of them concern it;
	// if empty, all pods do.
	Resources []string `json:"resources,omitempty"`
	// Validates and Explains are whether the provider is a hint.Validator, or a
	// hint.Explainer.
	Validates bool `json:"validates,omitempty"`
	Explains  bool `json:"explains,omitempty"`
}

// Lease is a reservation of an external provider for an admission, until the provider has
// confirmed the commit. It is written in the commit of the claims. A lease found at a start
// is confirmed then.
type Lease struct {
	ID          string `json:"-"`
	Provider    string `json:"provider"`
	AdmissionID string `json:"admission_id"`
	// Expires is when the provider releases an uncommitted reservation.
	Expires time.Time `json:"expires"`
}
