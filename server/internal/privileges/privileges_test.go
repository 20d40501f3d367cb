package privileges

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/server/internal/host/confine"
)

// TestDocumentedCapabilities: docs/security.md has every capability with what it is for
// and what fails without it, and no other.
func TestDocumentedCapabilities(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	row, rows := regexp.MustCompile("^\\| `CAP_[A-Z_]+` \\|"), 0
	for line := range strings.Lines(string(text)) {
		if row.MatchString(line) {
			rows++
		}
	}
	if rows != len(needs) {
		t.Errorf("docs/security.md has %d rows, there are %d needs", rows, len(needs))
	}
	for _, n := range needs {
		begins, ends := fmt.Sprintf("| `%s` | %s | ", n.capability, n.feature), " | "+n.without+" |\n"
		found := false
		for line := range strings.Lines(string(text)) {
			found = found || strings.HasPrefix(line, begins) && strings.HasSuffix(line, ends)
		}
		if !found {
			t.Errorf("docs/security.md lacks: %s…%s", begins, ends)
		}
	}
}

// TestNeedsOfAConfiguration: a capability is kept only for a feature that is in use.
func TestNeedsOfAConfiguration(t *testing.T) {
	t.Parallel()
	with := func(change func(*config.Config)) confine.Set {
		c := config.Default()
		change(&c)
		var s confine.Set
		for _, n := range needs {
			if n.wanted(c) {
				s |= confine.Of(n.capability)
			}
		}
		return s
	}
	cgroups := confine.Of(confine.Kill, confine.SysNice, confine.SysResource, confine.DACOverride)
	for name, row := range map[string]struct {
		change func(*config.Config)
		want   confine.Set
	}{
		"default":    {func(*config.Config) {}, cgroups},
		"no cgroups": {func(c *config.Config) { c.Cgroups.Tree = config.TreeMemory }, confine.Of(confine.DACOverride)},
		"it observes": {func(c *config.Config) {
			c.Observe.Root = "/"
			c.Observed()
		}, 0},
		"a port of ours": {func(c *config.Config) { c.HTTP = "localhost:10470" }, cgroups},
		"root's port":    {func(c *config.Config) { c.HTTP = "localhost:80" }, cgroups | confine.Of(confine.NetBindService)},
		"any port":       {func(c *config.Config) { c.HTTP = ":0" }, cgroups},
	} {
		if got := with(row.change); got != row.want {
			t.Errorf("%s: %s, want %s", name, got, row.want)
		}
	}
	lines := Lacking(config.Default(), cgroups&^confine.Of(confine.Kill))
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "berthd lacks CAP_KILL, which it needs to end ") {
		t.Errorf("%q", lines)
	}
}
