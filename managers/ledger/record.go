package ledger

import (
	"slices"
	"time"

	"github.com/berthd/berth/managers/workload"
)

// Pod is the record of one admitted pod. Records are immutable once committed;
// a draft replaces them whole.
type Pod struct {
	// Pod as it was admitted, defaults applied.
	Pod workload.Pod `json:"pod"`
	// Digest of the pod as the caller sent it, to tell a repeated admission from
	// a changed one.
	Digest string            `json:"digest"`
	QoS    workload.QoSClass `json:"qos"`
	// OwnedBy is the agent that the pod belongs to; empty for DefaultOwner.
	OwnedBy     string    `json:"owned_by,omitempty"`
	AdmissionID string    `json:"admission_id"`
	AdmittedAt  time.Time `json:"admitted_at"`
	// AdmittedGeneration is that of the commit that brought the pod here; 0 where
	// that was before berth kept it. The ledger sets it.
	AdmittedGeneration uint64 `json:"admitted_generation,omitempty"`
	// ChangedGeneration is that of the commit that last changed the record or the
	// claims; 0 where that was before berth kept it. The ledger sets it.
	ChangedGeneration uint64 `json:"changed_generation,omitempty"`
	// Acknowledged are the claims that the last acknowledged change left, where a
	// later change may be in force that nobody was told of: Claims are the union of
	// both then. Nil otherwise; empty where that change left none.
	Acknowledged []Claim `json:"acknowledged,omitzero"`
	// CgroupParent is the pod's cgroup as runtimes want it named.
	CgroupParent string `json:"cgroup_parent,omitempty"`
	// Claims in the order of compareClaims. They are stored under keys of their
	// own, not inside the record.
	Claims []Claim `json:"-"`
	// Trace of the admission; stored under a key of its own.
	Trace *Trace `json:"-"`
}

// UID returns the pod's uid.
func (p *Pod) UID() string { return p.Pod.UID }

// Claim returns the claim that a container (or with an empty name the pod as a
// whole) holds on a resource.
func (p *Pod) Claim(container, resource string) (Claim, bool) {
	for _, c := range p.Claims {
		if c.Owner.Container == container && c.Resource == resource {
			return c, true
		}
	}
	return Claim{}, false
}

// Holds reports whether the pod or one of its containers holds a claim on a
// resource.
func (p *Pod) Holds(resource string) bool {
	return slices.ContainsFunc(p.Claims, func(c Claim) bool { return c.Resource == resource })
}

func (p *Pod) holdsDevices() bool {
	return slices.ContainsFunc(p.Claims, func(c Claim) bool { return c.Devices != nil })
}

// Affinity returns the merged hint that the plan for a container followed; nil
// where no merge ran or the container holds nothing.
func (p *Pod) Affinity(container string) *Affinity {
	for i := range p.Claims {
		if c := &p.Claims[i]; c.Owner.Container == container && c.Affinity != nil {
			return c.Affinity
		}
	}
	return nil
}

// Binding ties a runtime's container id to a container of an admitted pod.
type Binding struct {
	ID    string `json:"-"`
	Owner Owner  `json:"owner"`
	// CgroupPath is the container's cgroup below the mount point, empty until
	// it is known.
	CgroupPath string `json:"cgroup_path,omitempty"`
	// Own is true if berth made the cgroup itself and so must remove it.
	Own bool `json:"own,omitempty"`
	// Sequence orders the bindings of one container, the newest highest: a
	// restarted container has several until its old ids are dropped.
	Sequence uint64 `json:"sequence"`
}

// SeenResource remembers a device resource across restarts, so that its capacity
// is zero rather than unknown until its plugin returns.
type SeenResource struct {
	Name string `json:"-"`
	// LastSeen is when its plugin last had a connection.
	LastSeen time.Time `json:"last_seen"`
	// PreStart: its plugin wants to be told before each start of a container, so
	// none starts with its devices until the plugin is back.
	PreStart bool `json:"prestart,omitempty"`
}

// ExternalProvider is the registration of a hint provider that is a process of its own.
// It is kept so that one that is away is known to be missing.
type ExternalProvider struct {
	Name string `json:"-"`
	// Endpoint is the absolute path of the provider's socket.
	Endpoint string `json:"endpoint"`
	// UID is the user that has registered it. The socket and the process behind it
	// are that user's.
	UID uint32 `json:"uid,omitempty"`
	// Required says that a failure of the provider refuses the admission. Whether it
	// does, the configuration decides: this is what the provider has asked for.
	Required bool `json:"required,omitempty"`
	// Deadline bounds each call of an admission to the provider.
	Deadline time.Duration `json:"deadline_ns"`
	// Index orders outside providers, lower first, before their names do.
	Index int `json:"index,omitempty"`
	// Resources that the provider serves, in order; a pod that asks for none of
	// them does not concern it. Empty: every pod concerns it.
	Resources []string `json:"resources,omitempty"`
	// Validates and Explains say that the provider is a hint.Validator, or a
	// hint.Explainer.
	Validates bool `json:"validates,omitempty"`
	Explains  bool `json:"explains,omitempty"`
}

// Lease is what an outside provider has reserved for an admission, until the
// provider has confirmed that it knows of the commit. It is written in the commit
// that makes the claims, so one that is found at a start is confirmed late.
type Lease struct {
	ID          string `json:"-"`
	Provider    string `json:"provider"`
	AdmissionID string `json:"admission_id"`
	// Expires is when the provider gives up what the ledger did not commit.
	Expires time.Time `json:"expires"`
}
