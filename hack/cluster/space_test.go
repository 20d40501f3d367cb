package cluster

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestRemoveAfterHalfAStart: if no space could be made, because a directory cannot be made or a right is missing, the
// end still removes what was made.
func TestRemoveAfterHalfAStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := newSpace(file)
	if s != nil || err == nil {
		t.Errorf("a space below a file: %v, %v", s, err)
	}
	for name, s := range map[string]*space{"without a space": s, "with one": {work: make(chan func())}} {
		c := &Cluster{t: t, Options: Options{Timeout: time.Second}, dir: t.TempDir(), Cgroup: "/berth-test-none", space: s}
		c.remove()
		if _, err := os.Stat(c.dir); !os.IsNotExist(err) {
			t.Errorf("%s: the directory stays: %v", name, err)
		}
	}
}
