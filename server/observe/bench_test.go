package observe_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/server/observe"
)

// BenchmarkOpen reads a node with 512 CPUs on 8 NUMA nodes and 250 pods of one CPU each, and lists them.
func BenchmarkOpen(b *testing.B) {
	const nodes, perNode, count = 8, 64, 250
	root := b.TempDir()
	files := machineFiles(nodes, perNode)
	for cpu := range nodes * perNode { // most of a machine's files
		for i, level := range []string{"1", "1", "2", "3"} {
			dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache/index%d/", cpu, i)
			files[dir+"level"], files[dir+"id"], files[dir+"type"], files[dir+"size"] = level, fmt.Sprint(cpu), "Unified", "32K"
			files[dir+"shared_cpu_map"] = fmt.Sprintf("%x", 1<<(cpu%32))
		}
	}
	files["var/lib/kubelet/config.yaml"] = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" +
		"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\nmaxPods: 500\n"
	snapshot, err := machine.ParseShape("8s1n64c")
	if err != nil {
		b.Fatal(err)
	}
	m, err := machine.New(snapshot)
	if err != nil {
		b.Fatal(err)
	}
	l := ledgertest.New(b, ledger.Rules{Machine: m})
	amounts := &typesv1.ResourceRequirements{Limits: map[string]string{"cpu": "1", "memory": "64Mi"}}
	pods := []observe.Pod{}
	for i := range count {
		uid := fmt.Sprintf("u-%d", i)
		pods = append(pods, observe.Pod{Pod: &typesv1.Pod{
			Metadata: &typesv1.PodMetadata{Name: fmt.Sprintf("p-%d", i), Namespace: "default", Uid: uid},
			Spec:     &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "main", Resources: amounts}}},
		}})
		held := ledgertest.With(ledgertest.Pod(uid, "main"), ledgertest.Exclusive("main", fmt.Sprint(2*i+1)))
		if _, err := l.Update(b.Context(), func(d *ledger.Draft) error { d.PutPod(held); return nil }); err != nil {
			b.Fatal(err)
		}
	}
	state, err := kubelet.Write(kubelet.CPU, l.View(), kubelet.Settings{Policy: "static"}, 0)
	if err != nil {
		b.Fatal(err)
	}
	files["var/lib/kubelet/cpu_manager_state"] = string(state.Data)
	writeAll(b, root, files)
	for b.Loop() {
		n, err := observe.Open(b.Context(), observe.Options{Root: root, Pods: pods})
		if err != nil {
			b.Fatal(err)
		}
		list, err := allocationv1.NewAllocationServiceClient(n).List(b.Context(), &allocationv1.ListRequest{})
		if err != nil || len(list.GetPods()) != count || list.GetPods()[0].GetContainers()[0].GetCpus().GetList() == "" {
			b.Fatalf("%d pods, missing %v, %v", len(list.GetPods()), n.Missing, err)
		}
	}
}

// machineFiles are the files of a machine with NUMA nodes of CPUs without hyperthreads, and 8 GiB each.
func machineFiles(nodes, perNode int) map[string]string {
	files := map[string]string{
		"sys/devices/system/cpu/online":      fmt.Sprintf("0-%d\n", nodes*perNode-1),
		"sys/devices/system/cpu/present":     fmt.Sprintf("0-%d\n", nodes*perNode-1),
		"sys/devices/system/node/online":     fmt.Sprintf("0-%d\n", nodes-1),
		"sys/devices/system/node/has_memory": fmt.Sprintf("0-%d\n", nodes-1),
		"proc/sys/kernel/pid_max":            "32768\n", "proc/sys/kernel/threads-max": "60000\n",
		"proc/meminfo": fmt.Sprintf("MemTotal: %d kB\n", nodes*8388608),
	}
	for i := range nodes {
		distances := ""
		for j := range nodes {
			distances += []string{"20 ", "10 "}[map[bool]int{true: 1}[i == j]]
		}
		dir := fmt.Sprintf("sys/devices/system/node/node%d/", i)
		files[dir+"cpulist"] = fmt.Sprintf("%d-%d\n", perNode*i, perNode*i+perNode-1)
		files[dir+"meminfo"] = fmt.Sprintf("Node %d MemTotal: 8388608 kB\n", i)
		files[dir+"distance"] = distances + "\n"
	}
	for cpu := range nodes * perNode {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", cpu)
		files[dir+"core_id"], files[dir+"physical_package_id"] = fmt.Sprintf("%d\n", cpu%perNode), fmt.Sprintf("%d\n", cpu/perNode)
		files[fmt.Sprintf("sys/devices/system/node/node%d/cpu%d", cpu/perNode, cpu)] = ""
	}
	return files
}

// writeAll writes files below a root.
func writeAll(t testing.TB, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}
