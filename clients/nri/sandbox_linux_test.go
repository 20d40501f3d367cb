package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// TestMoveNobodyElse: a process that is not in the pod's cgroup stays where it is, whatever
// the runtime says: the first one, a thread of the kernel's, this one, its parent.
func TestMoveNobodyElse(t *testing.T) {
	t.Parallel()
	for _, pid := range []int{1, 2, os.Getpid(), os.Getppid(), 0, -1, 1 << 30} {
		before, lives := cpusOf(pid)
		for _, cgroup := range []string{"/kubepods/burstable/podx", "kubepods-podx.slice", "", "/", ".", ".."} {
			err := moveSandbox(pid, cgroup, cpuset.Of(0))
			if err == nil || lives == nil && errdefs.ClassOf(err) != errdefs.PermissionDenied {
				t.Errorf("process %d of cgroup %q: %v", pid, cgroup, err)
			}
		}
		if after, err := cpusOf(pid); lives == nil && (err != nil || after != before) {
			t.Errorf("process %d is on %s, %v; it was on %s", pid, after, err, before)
		}
	}
}

func TestInCgroup(t *testing.T) {
	t.Parallel()
	const v1 = "12:cpuset:/kubepods/burstable/podx/c1\n1:name=systemd:/a:b/kubepods-podx.slice/cri.scope\n0::/\n"
	for cgroup, want := range map[string]bool{
		"/kubepods/burstable/podx": true, "kubepods-podx.slice": true, "/kubepods": true, "/other/podx": true,
		"/kubepods/pod": false, "podx/": true, "/kubepods/podxx": false, "": false, "/": false, "cpuset:": false,
	} {
		for name, text := range map[string]string{"v1": v1, "v2": fmt.Sprintf("0::%s\n", "/kubepods/burstable/podx/kubepods-podx.slice/c")} {
			if got := inCgroup(text, cgroup); got != want {
				t.Errorf("%s: in %q: %t", name, cgroup, got)
			}
		}
	}
}
