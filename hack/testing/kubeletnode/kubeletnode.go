// Package kubeletnode makes the files of a node whose kubelet decides, for tests.
package kubeletnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// New makes a directory with the files of a node with two NUMA nodes of four CPUs, whose kubelet has no pods yet.
func New(t testing.TB) (root string) {
	t.Helper()
	root = t.TempDir()
	files := map[string]string{
		"sys/devices/system/cpu/online": "0-7\n", "sys/devices/system/cpu/present": "0-7\n", "sys/devices/system/cpu/possible": "0-7\n",
		"sys/devices/system/node/online": "0-1\n", "sys/devices/system/node/possible": "0-1\n",
		"sys/devices/system/node/has_memory": "0-1\n",
		"proc/sys/kernel/pid_max":            "32768\n", "proc/sys/kernel/threads-max": "60000\n",
		"proc/meminfo": "MemTotal:       16777216 kB\n",
		"var/lib/kubelet/config.yaml": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: " +
			"KubeletConfiguration\ncpuManagerPolicy: static\n" +
			"reservedSystemCPUs: \"0\"\ntopologyManagerPolicy: single-numa-node\n",
	}
	for cpu := range 8 {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", cpu)
		files[dir+"core_id"], files[dir+"physical_package_id"] = fmt.Sprintf("%d\n", cpu%4), fmt.Sprintf("%d\n", cpu/4)
		files[fmt.Sprintf("sys/devices/system/node/node%d/cpu%d", cpu/4, cpu)] = ""
	}
	for node := range 2 {
		dir := fmt.Sprintf("sys/devices/system/node/node%d/", node)
		files[dir+"cpulist"] = fmt.Sprintf("%d-%d\n", 4*node, 4*node+3)
		files[dir+"meminfo"] = fmt.Sprintf("Node %d MemTotal:        8388608 kB\n", node)
		files[dir+"distance"] = []string{"10 20\n", "20 10\n"}[node]
	}
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
