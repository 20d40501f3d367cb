package live

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// Disruption tells how much a change disturbs the running containers of a pod; greater is worse.
type Disruption int

const (
	// AnyDisruption is the absence of a limit.
	AnyDisruption Disruption = iota
	// NoDisruption: the containers only get other amounts.
	NoDisruption
	// MovesCPUs: a container gets other CPUs of its own.
	MovesCPUs
	// MovesMemory: a container gets other NUMA nodes for its memory.
	MovesMemory
	// RestartsContainers: a container has to be restarted.
	RestartsContainers
)

var disruptions = [...]string{"any", "none", "other CPUs", "other memory nodes", "a restart"}

// String returns the name of the disruption for messages.
func (d Disruption) String() string { return disruptions[d] }

// disruption returns how much a change of a pod's record disturbs its containers.
func disruption(old, new *ledger.Pod, restarts []string) Disruption {
	out := NoDisruption
	for _, c := range old.Claims {
		now := slices.IndexFunc(new.Claims, func(n ledger.Claim) bool {
			return n.Key() == c.Key()
		})
		if now < 0 {
			continue
		}
		if c.CPUs != nil && !reflect.DeepEqual(c.CPUs, new.Claims[now].CPUs) {
			out = max(out, MovesCPUs)
		}
		if !slices.EqualFunc(c.Memory, new.Claims[now].Memory, func(a, b ledger.Block) bool { return a.Nodes == b.Nodes }) {
			out = max(out, MovesMemory)
		}
	}
	if len(restarts) > 0 {
		return RestartsContainers
	}
	return out
}

// tooMuch returns a refusal if a change disturbs more than is allowed.
func tooMuch(d, most Disruption, restarts []string) error {
	if most == AnyDisruption || d <= most {
		return nil
	}
	if d == RestartsContainers {
		return errdefs.Refuse(errdefs.DisruptionNotAllowed, "the resize restarts %q by their resize policy, and max_disruption allows %s",
			restarts, most)
	}
	return errdefs.Refuse(errdefs.DisruptionNotAllowed, "the resize gives containers %s, and max_disruption allows %s", d, fmt.Sprint(most))
}
