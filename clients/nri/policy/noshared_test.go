package policy

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// TestNoSharedCPUs: the last shared CPU goes offline. Containers without exclusive CPUs run on the reserved CPUs, as in a
// berthd that moves them itself, but not on those that claims have of the reserved ones.
func TestNoSharedCPUs(t *testing.T) {
	t.Parallel()
	file := ""
	become := func(options ...machinetest.Option) {
		t.Helper()
		m, err := machinetest.Build("2s4c1t,mem=64Gi", options...).Marshal()
		if err == nil {
			err = errors.Join(os.WriteFile(file+".new", m, 0o600), os.Rename(file+".new", file))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	d := startDividedWith(t, func(c *config.Config) {
		file = c.RootDir + "/machine.json"
		become()
		c.Machine, c.Hotplug.Poll.Duration, c.Hotplug.Debounce.Duration = file, 10*time.Millisecond, time.Millisecond
		c.CPU.Options = map[string]string{"strict-cpu-reservation": "true"}
	})
	d.claims() // CPUs 1, 5 and 6 of the reserved CPUs 0-2 and 4-6
	e := newEngine(t, Config{Client: d.Client})
	e.follow()
	own, shares := pod("own", "guaranteed"), pod("shares", "besteffort")
	e.run(own, container(own, "main", "own-1", 1000, gib))
	if got := e.run(shares, container(shares, "first", "shares-1", 2, 0)); got != "7" {
		t.Fatalf("shared are CPUs %s", got)
	}
	become(machinetest.Offline("7"))
	eventually(t, "it runs on reserved CPUs", func() bool { return e.on("shares-1") == "0,2,4" })
	if _, err := e.create(shares, container(shares, "second", "shares-2", 2, 0)); err == nil ||
		!strings.Contains(err.Error(), "shared pool") {
		t.Errorf("another container: %v", err)
	}
	if got := e.on("own-1"); got != "3" {
		t.Errorf("the container with an exclusive CPU runs on %s", got)
	}
	become()
	eventually(t, "the shared CPU is online again", func() bool { return e.on("shares-1") == "7" })
}
