package config_test

import (
	"testing"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/topology"
)

// TestPolicyWithoutPlanning: a policy that was stored before there was this setting stays in force.
func TestPolicyWithoutPlanning(t *testing.T) {
	t.Parallel()
	p, err := config.ReadPolicy([]byte(`{"cpu":{"policy":"none"},"memory":{"policy":"None","checkFreeHugePages":"ignore"},` +
		`"topology":{"policy":"restricted","scope":"container"},"reserved":{}}`))
	if err == nil {
		err = config.Default().With(p).Validate()
	}
	if err != nil || p.Topology.Planning != topology.ByPod {
		t.Errorf("planning %q, %v", p.Topology.Planning, err)
	}
}
