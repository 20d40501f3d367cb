package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// limited has berthd start in a cgroup of its own that has a memory limit, or none for 0.
func (n *node) limited(bytes int) {
	n.t.Helper()
	dir, file, value := filepath.Join(cgroupMount, "memory"), "memory.limit_in_bytes", strconv.Itoa(bytes)
	if onVersion2() {
		dir, file = cgroupMount, "memory.max"
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0) // it may be on
	}
	n.own = filepath.Join(dir, n.cgroup+"-own")
	if err := os.Mkdir(n.own, 0o755); err != nil {
		n.t.Skipf("needs to make a cgroup with a memory limit: %v", err)
	}
	n.t.Cleanup(func() { _ = os.Remove(n.own) })
	if bytes == 0 {
		return
	}
	if err := os.WriteFile(filepath.Join(n.own, file), []byte(value), 0); err != nil {
		n.t.Fatal(err)
	}
}

// TestMemoryLimit: berthd is the last one to be killed only where it cannot take all memory,
// and collects its garbage before it takes what its cgroup allows.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{0, 512 << 20} {
		n := newNode(t)
		n.needKernel()
		n.limited(limit)
		d := n.start()
		score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", d.Cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		log := d.log.String()
		said := strings.Contains(log, "berthd's cgroup has no memory limit")
		if lowered := strings.TrimSpace(string(score)) == "-999"; lowered && limit == 0 || said != (limit == 0) {
			t.Errorf("limit %d: score %s, log:\n%s", limit, score, log)
		}
		if collects := strings.Contains(log, fmt.Sprint("\"collected from\"=", limit-limit/10)); collects != (limit > 0) {
			t.Errorf("limit %d: collects %t, log:\n%s", limit, collects, log)
		}
		d.stop()
	}
}
