package config

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/machine/machinetest"
)

// TestClaimsFrom: dra.from says whether claims have a part of what is reserved, or what pods may have.
func TestClaimsFrom(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("2s4c2t,mem=8Gi")
	const division, static = "cpus: 1-2, memory: [{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 1, limits: {memory: 1Gi}}]", "static"
	for _, row := range []struct {
		dra, policy string
		onePool     bool
		want        string // of the error
	}{
		{division, static, false, ""},
		{"from: reserved, " + division, static, false, ""},
		{"from: reserved", static, false, "dra.memory: is required"},
		{"from: allocatable", static, true, ""},
		{"from: allocatable, " + division, static, true, "leave out cpus and memory, or from"},
		{"from: allocatable", "none", true, "dra: needs cpu.policy: static"},
		{"from: pods", static, true, `dra.from: "pods": expected reserved or allocatable`},
	} {
		c := Default()
		_, _ = c.BesideKubelet()
		err := c.ApplyBerth("test", []byte(`apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
cpu: {policy: `+row.policy+`}
reserved: {cpus: 0-2, system: {memory: 4Gi}, evictionHard: {}}
memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 2Gi}}, {numaNode: 1, limits: {memory: 2Gi}}]}
dra: {`+row.dra+`}
`))
		if err != nil {
			t.Fatal(err)
		}
		if err = c.Validate(); err == nil && row.want == "" {
			cfg, err := c.ManagerSet(m)
			if err != nil || cfg.Claims == nil || cfg.Claims.OnePool != row.onePool {
				t.Errorf("%s: %+v, %v", row.dra, cfg.Claims, err)
			}
			continue
		}
		if err == nil || row.want == "" || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s, cpu.policy %s: %v, want %q", row.dra, row.policy, err, row.want)
		}
	}
}
