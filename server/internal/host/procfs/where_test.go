package procfs

import (
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

func TestInCallersNamespace(t *testing.T) {
	t.Parallel()
	proc := tree(map[string]string{
		"7/status": "Name:\tcontainerd\nNSpid:\t7\nUid:\t0\n", "8/status": "Name:\tnginx\nNSpid:\t8\t1\n", "9/status": "Name:\told\n",
	})
	for pid, want := range map[int]bool{7: true, 8: false, 9: true} {
		if got, err := InCallersNamespace(proc, pid); got != want || err != nil {
			t.Errorf("process %d: %t, %v", pid, got, err)
		}
	}
	if _, err := InCallersNamespace(proc, 10); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("nobody: %v", err)
	}
}

// TestCgroup is section 14.2 of the specification of cgroups, for the kubelet's own cgroup.
func TestCgroup(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text, want string
		class            errdefs.Class
	}{
		{"v2", "0::/system.slice/containerd.service\n", "/system.slice/containerd.service", 0},
		{"v1 with systemd", "9:name=systemd:/system.slice/a.service\n4:memory:/\n3:cpu,cpuacct:/\n0::/x\n", "/system.slice/a.service", 0},
		{"v1 without", "4:memory:/runtime\n3:cpu,cpuacct:/runtime\n", "/runtime", 0},
		{"they differ", "9:name=systemd:/s\n4:memory:/a\n3:cpu,cpuacct:/b\n", "", errdefs.Precondition},
		{"none", "9:name=systemd:/s\n", "", errdefs.Precondition},
		{"garbage", "x\n", "", errdefs.Unavailable},
	} {
		got, err := Cgroup(tree(map[string]string{"7/cgroup": tt.text}), 7)
		if got != tt.want || (err == nil) != (tt.want != "") || err != nil && errdefs.ClassOf(err) != tt.class {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
	}
	if _, err := Cgroup(tree(nil), 7); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("nobody: %v", err)
	}
}
