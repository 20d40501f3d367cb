package store

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/errdefs"
)

// TestNoNameToSetAside: where no name can be looked up, as with one that is too long, the
// start fails and does not look for ever.
func TestNoNameToSetAside(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), strings.Repeat("x", 240))
	if name, err := freeName(path, time.Now()); errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), path) {
		t.Errorf("%q, %v", name, err)
	}
}
