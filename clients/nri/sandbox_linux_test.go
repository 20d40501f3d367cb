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
			err := moveSandbox(pid, "", cgroup, cpuset.Of(0))
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
		for name, text := range map[string]string{"v1": v1, "v2": fmt.Sprintf("0::%s\n",
			"/kubepods/burstable/podx/kubepods-podx.slice/c")} {
			if got := inCgroup(text, cgroup); got != want {
				t.Errorf("%s: in %q: %t", name, cgroup, got)
			}
		}
	}
}

// TestIsSandbox: a sandbox's process is known by its cgroup's name, of both drivers, also where the path begins at the cgroup
// of another container of its pod.
func TestIsSandbox(t *testing.T) {
	t.Parallel()
	const id = "5516d84a8f4be3cdd64148e1dee897"
	for text, want := range map[string]bool{
		"0::/../cri-containerd-" + id + ".scope\n": true, "0::/../" + id + "\n": true, "0::/../crio-" + id + ".scope\n": true,
		"12:cpuset:/\n1:name=systemd:/kubepods/podx/" + id + "\n": true, "0::/../../podx/" + id + "\n": true,
		"0::/\n": false, "": false, "0::/../cri-containerd-" + id + "0.scope\n": false, "0::/../0" + id + "\n": false,
		"0::/" + id + "/nested\n": false,
	} {
		if got := isSandbox(text, id); got != want {
			t.Errorf("%q: %t", text, got)
		}
		if isSandbox(text, "") {
			t.Errorf("%q is that of a sandbox without an id", text)
		}
	}
}
