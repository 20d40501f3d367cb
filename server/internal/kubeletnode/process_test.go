package kubeletnode

import (
	"testing"
	"testing/fstest"
)

// TestKubeletOfAPod: a process of a pod that calls itself kubelet is none. This is how a reader in a pod with a cgroup namespace of
// its own, as that of the overlay observe, sees the cgroups of another pod with the cgroupfs driver (cgroup_namespaces(7)).
func TestKubeletOfAPod(t *testing.T) {
	t.Parallel()
	root := fstest.MapFS{
		"proc/500/cmdline": {Data: []byte("kubelet\x00--root-dir=/var/lib/kubelet/pods/evil/volumes/kubernetes.io~empty-dir/v\x00")},
		"proc/500/cgroup":  {Data: []byte("0::/../../pod3c2d3d5e-5a0b-4b7f-9d0e-1f2a3b4c5d6e/c0ffee\n")},
		"proc/900/cmdline": {Data: []byte("/usr/bin/kubelet\x00--config=/var/lib/kubelet/config.yaml\x00")}, // was restarted
		"proc/900/cgroup":  {Data: []byte("0::/../../../../system.slice/kubelet.service\n")},
	}
	r := &reader{root: regularIn(root)}
	if s, ok := r.running(); !ok || s.from != "/proc/900/cmdline" {
		t.Errorf("the kubelet is %+v", s)
	}
}
