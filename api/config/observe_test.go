package config_test

import (
	"strings"
	"testing"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// TestCheckObserve: a berthd that observes takes what it serves with, and nothing that decides.
func TestCheckObserve(t *testing.T) {
	t.Parallel()
	uid := uint32(1000)
	for field, change := range map[string]func(*config.Config){
		"": func(c *config.Config) {
			c.Listen, c.HTTP, c.HTTPPage, c.Log.Level = "/run/x.sock", "127.0.0.1:1", true, "debug"
			c.History.Entries, c.Limits.UserCalls = 7, 9
			c.Access = []access.Grant{{UID: &uid, Roles: []access.Role{access.Read}}}
			c.Observe = config.Observe{Root: "/host", Kubelet: "10.0.0.1", NodeName: "n", KubeletCA: "/ca", ServiceAccount: "/account"}
		},
		"cpu.policy":                  func(c *config.Config) { c.CPU.Policy = "static" },
		"cpu.options.full-pcpus-only": func(c *config.Config) { c.CPU.Options = map[string]string{"full-pcpus-only": "true"} },
		"topology.policy":             func(c *config.Config) { c.Topology.Policy = "restricted" },
		"reserved.cpus":               func(c *config.Config) { c.Reserved.CPUs = cpuset.Of(0) },
		"beside":                      func(c *config.Config) { c.Beside = config.Kubelet },
		"stateDir":                    func(c *config.Config) { c.StateDir = "/var/lib/x" },
		"devicePluginDir":             func(c *config.Config) { c.DevicePluginDir = new("/x") },
		"machine":                     func(c *config.Config) { c.Machine = "1s1n2c1t" },
		"strictState":                 func(c *config.Config) { c.StrictState = true },
		"observe.nodeName":            func(c *config.Config) { c.Observe.Kubelet = "10.0.0.1" },
	} {
		c := config.Default()
		c.Observe.Root = "/"
		change(&c)
		err := c.CheckObserve()
		if field == "" {
			if err != nil {
				t.Errorf("what it serves with: %v", err)
			}
			continue
		}
		if errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestObserveWithoutRoot: what is only for a berthd that observes is refused where berthd decides.
func TestObserveWithoutRoot(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Observe.Kubelet, c.Observe.NodeName = "10.0.0.1", "n"
	if err := c.Validate(); errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), "observe.root:") {
		t.Errorf("%v", err)
	}
}
