package vector

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/workload"
)

// Gates are the feature gates of a case, as far as they differ from the base of
// the recordings.
type Gates map[string]bool

// The gates that recordings switch.
const (
	PodLevelResources            = "PodLevelResources"
	PodLevelResourceManagers     = "PodLevelResourceManagers"
	CustomCPUCFSQuotaPeriod      = "CustomCPUCFSQuotaPeriod"
	CPUManagerPolicyBetaOptions  = "CPUManagerPolicyBetaOptions"
	CPUManagerPolicyAlphaOptions = "CPUManagerPolicyAlphaOptions"
)

// baseGates are the values that a case leaves out.
var baseGates = map[string]bool{
	PodLevelResources:            true,
	PodLevelResourceManagers:     false,
	CustomCPUCFSQuotaPeriod:      true,
	CPUManagerPolicyBetaOptions:  true,
	CPUManagerPolicyAlphaOptions: true,
}

// UnmarshalJSON refuses a gate that nothing here requests: a case that hangs on it
// would be decided as if it were not there.
func (g *Gates) UnmarshalJSON(text []byte) error {
	var gates map[string]bool
	if err := json.Unmarshal(text, &gates); err != nil {
		return err
	}
	for name := range gates {
		if _, known := baseGates[name]; !known {
			return fmt.Errorf("unknown feature gate %q, expected any of %q", name, slices.Sorted(maps.Keys(baseGates)))
		}
	}
	*g = gates
	return nil
}

// On reports whether a gate is on for the case. Without PodLevelResources the gate
// that builds on it is off too.
func (g Gates) On(name string) bool {
	if name == PodLevelResourceManagers && !g.On(PodLevelResources) {
		return false
	}
	if on, given := g[name]; given {
		return on
	}
	return baseGates[name]
}

// Features are the gates of pod-level resources.
func (g Gates) Features() workload.Features {
	return workload.Features{
		PodLevelResources:        g.On(PodLevelResources),
		PodLevelResourceManagers: g.On(PodLevelResourceManagers),
	}
}

// Error is a recorded error: Class is the recording's own short name, Type the
// admission reason that the error itself carries, Message the reference's text.
type Error struct {
	Class   string `json:"class"`
	Type    string `json:"type,omitempty"`
	Message string `json:"message"`
}
