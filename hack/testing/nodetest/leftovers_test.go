package nodetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestLeftovers: processes and cgroups of tests that were killed are removed, those of running tests are not.
func TestLeftovers(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	const prefix = "berthlefttest"
	owners := map[string]int{"killed": dead.Process.Pid, "running": os.Getpid()}
	processes, cgroups := map[string]*Process{}, map[string]string{}
	for name, owner := range owners {
		cmd := exec.Command("sleep", "1h")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", ownerVariable, owner))
		p := Start(t, cmd, Log(filepath.Join(t.TempDir(), "log")))
		t.Cleanup(func() { _ = p.End(os.Kill) })
		processes[name] = p

		cgroup := fmt.Sprintf("%s%d-1", prefix, owner)
		for _, parent := range []string{filepath.Join(mount, "cpuset"), mount} {
			if dir := filepath.Join(parent, cgroup); os.Mkdir(dir, 0o755) == nil {
				cgroups[name] = dir
				t.Cleanup(func() { _ = os.Remove(dir) })
				break
			}
		}
	}
	if err := Own(t.Context(), prefix); err != nil {
		t.Fatal(err)
	}
	Eventually(t, time.Minute, "the process of the killed test has ended", func() bool {
		select {
		case <-processes["killed"].Ended:
			return true
		default:
			return false
		}
	})
	if ended(processes["running"].Cmd.Process.Pid) {
		t.Error("a process of a running test was killed")
	}
	if len(cgroups) == 0 {
		t.Logf("no cgroup can be made below %s, so their removal was not tested", mount)
		return
	}
	if _, err := os.Stat(cgroups["killed"]); !os.IsNotExist(err) {
		t.Errorf("the cgroup of the killed test: %v", err)
	}
	if _, err := os.Stat(cgroups["running"]); err != nil {
		t.Errorf("the cgroup of the running test: %v", err)
	}
}
