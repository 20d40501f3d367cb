package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStateDirectoryOfOthers: who owns a directory above the state could put another one in
// its place.
func TestStateDirectoryOfOthers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs root, which can give files to other users: the effective user is %d", os.Geteuid())
	}
	const nobody = 65534
	for name, row := range map[string]struct {
		mode made
		want string
	}{
		"parent of theirs":       {made{0o755, nobody}, "belongs to user 65534"},
		"parent open to all":     {made{0o777, 0}, "can be written to by everybody"},
		"parent of root's alone": {made{0o755, 0}, ""},
	} {
		parent := filepath.Join(t.TempDir(), "parent")
		if err := os.Mkdir(parent, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(parent, row.mode.perm); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(parent, row.mode.uid, -1); err != nil {
			t.Fatal(err)
		}
		unlock, err := lock(filepath.Join(parent, "state"))
		switch {
		case row.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case row.want == "":
			unlock()
		case err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), "--state-dir: "+parent):
			t.Errorf("%s: %v, want a refusal with %q", name, err, row.want)
		}
	}
}

// made is whose a directory is, and its mode.
type made struct {
	perm os.FileMode
	uid  int
}
