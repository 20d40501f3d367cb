package ledger

import (
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
)

// PastRules are earlier rules as they are stored.
type PastRules struct {
	Machine string `json:"machine,omitempty"` // fingerprint
	// Topology is the earlier machine, as its difference from the later one; nil for the same
	// machine, and where it is not known.
	Topology *machine.Difference `json:"topology,omitempty"`

	Config      string       `json:"config,omitempty"` // digest
	Reservation Reservation  `json:"reservation"`
	Memory      []NodeMemory `json:"memory,omitempty"`
	Claims      ClaimRules   `json:"claims,omitzero"`
	TakenPages  []TakenPages `json:"taken_pages,omitempty"`
	Override    *Override    `json:"override,omitempty"`
}

// PastRules returns the view's rules and its override as they are stored.
func (v *View) PastRules() *PastRules {
	return &PastRules{
		Machine: v.rules.Machine.Fingerprint(), Config: v.rules.ConfigDigest,
		Reservation: v.rules.Reservation(), Memory: v.rules.Memory, Claims: v.rules.Claims(), TakenPages: v.rules.TakenPages,
		Override: v.override,
	}
}

// On returns the earlier rules, on the machine of that time.
func (r *PastRules) On(m *machine.Topology) Rules {
	return Rules{
		Machine: m, ReservedCPUs: r.Reservation.Reserved, StrictReservation: r.Reservation.Strict, Memory: r.Memory,
		ClaimCPUs: r.Claims.CPUs, ClaimMemory: r.Claims.Memory, OnePool: r.Claims.OnePool, TakenPages: r.TakenPages,
		ConfigDigest: r.Config,
	}
}

// Equal returns whether these are the same rules and the same override, on a machine with the same fingerprint.
func (r *PastRules) Equal(o *PastRules) bool {
	return r.Machine == o.Machine && r.On(nil).Equal(o.On(nil)) && r.Override == o.Override
}

// ClaimRules is the part of the rules about resource claims.
type ClaimRules struct {
	CPUs    cpuset.Set   `json:"cpus,omitzero"`
	Memory  []NodeMemory `json:"memory,omitempty"`
	OnePool bool         `json:"one_pool,omitempty"`
}

// IsZero returns whether resource claims may have nothing.
func (c ClaimRules) IsZero() bool { return c.Equal(ClaimRules{}) }

// Equal returns whether resource claims may have the same.
func (c ClaimRules) Equal(o ClaimRules) bool {
	return c.CPUs == o.CPUs && slices.Equal(c.Memory, o.Memory) && c.OnePool == o.OnePool
}

// Claims returns the part of the rules about resource claims.
func (r Rules) Claims() ClaimRules {
	return ClaimRules{CPUs: r.ClaimCPUs, Memory: r.ClaimMemory, OnePool: r.OnePool}
}

// Reservation is the part of the rules about CPUs.
type Reservation struct {
	Reserved cpuset.Set `json:"reserved"`
	Strict   bool       `json:"strict,omitempty"`
}

// Reservation returns the part of the rules about CPUs.
func (r Rules) Reservation() Reservation {
	return Reservation{Reserved: r.ReservedCPUs, Strict: r.StrictReservation}
}
