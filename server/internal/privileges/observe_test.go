package privileges

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/server/internal/host/confine"
)

// TestObserverWritesNothing: a berthd that observes may write to nothing but the directory of its socket, and makes no directory for
// a ledger that it does not have.
func TestObserverWritesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := config.Default()
	c.Observe.Root, c.Listen, c.StateDir = "/", filepath.Join(dir, "run", "berth.sock"), filepath.Join(dir, "state")
	c.Observed()
	rules, err := landlockRules(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.StateDir); err == nil {
		t.Errorf("%s was made", c.StateDir)
	}
	for _, f := range rules.Files {
		if (f.Path == "/proc" && f.Rights != confine.Read) || f.Path == c.StateDir {
			t.Errorf("it may write to %s (rights %v)", f.Path, f.Rights)
		}
	}
}
