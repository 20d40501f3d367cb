package cluster

import (
	"errors"
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
	s, err := newSpace(file, Address)
	if s != nil || err == nil {
		t.Errorf("a space below a file: %v, %v", s, err)
	}
	for name, s := range map[string]*space{"without a space": s, "with one": {work: make(chan func()), ended: make(chan struct{})}} {
		c := &Cluster{Options: Options{Timeout: time.Second}, Host: newHost(t, t.TempDir(), 1)}
		c.Cgroup, c.space = "/berth-test-none", s
		c.remove()
		if _, err := os.Stat(c.dir); !os.IsNotExist(err) {
			t.Errorf("%s: the directory stays: %v", name, err)
		}
		if s == nil {
			continue
		}
		// A call in flight may connect once more.
		if err := s.do(func() error { return nil }); !errors.Is(err, errEnded) {
			t.Errorf("after the end: %v", err)
		}
	}
}
