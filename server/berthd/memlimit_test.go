package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestMemoryLimit: berthd is the last one to be killed only where it cannot take all memory,
// and collects its garbage before it takes what its cgroup allows.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	const limitFile = "/sys/fs/cgroup/memory/memory.limit_in_bytes"
	if _, err := os.Stat(limitFile); err != nil {
		t.Skipf("needs the memory controller of cgroup v1, to make a limit: %v", err)
	}
	for _, limited := range []bool{false, true} {
		n := newNode(t)
		n.needKernel()
		// It starts in a cgroup of its own, whose limit is set before.
		own := filepath.Join("/sys/fs/cgroup/memory", fmt.Sprintf("berthlimit%d-%t", os.Getpid(), limited))
		if err := os.Mkdir(own, 0o755); err != nil {
			t.Skipf("needs to make cgroups: %v", err)
		}
		t.Cleanup(func() { _ = os.Remove(own) })
		if limited {
			if err := os.WriteFile(filepath.Join(own, "memory.limit_in_bytes"), []byte(strconv.Itoa(512<<20)), 0); err != nil {
				t.Fatal(err)
			}
		}
		n.own = own
		d := n.start()
		score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", d.Cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		log := d.log.String()
		said := strings.Contains(log, "berthd's cgroup has no memory limit")
		if lowered := strings.TrimSpace(string(score)) == "-999"; lowered && !limited || said == limited {
			t.Errorf("limited %t: score %s, log:\n%s", limited, score, log)
		}
		if collects := strings.Contains(log, fmt.Sprint("\"collected from\"=", 512<<20-(512<<20)/10)); collects != limited {
			t.Errorf("limited %t: collects %t, log:\n%s", limited, collects, log)
		}
		d.stop()
	}
}
