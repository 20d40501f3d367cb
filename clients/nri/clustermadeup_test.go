package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/cri"
)

// The machine that is made up: two NUMA nodes, and two threads of a core. CPU n and n + madeUpCPUs/2 are one core.
const (
	madeUpNodes = 2
	madeUpCPUs  = 64
	madeUpImage = "localhost/nothing:latest"
)

// madeUpMachine are the files of the machine below /sys.
func madeUpMachine() map[string]string {
	const cpu, node = "sys/devices/system/cpu/", "sys/devices/system/node/"
	files := map[string]string{node + "online": fmt.Sprintf("0-%d\n", madeUpNodes-1)}
	for _, name := range []string{"online", "possible", "present"} {
		files[cpu+name] = fmt.Sprintf("0-%d\n", madeUpCPUs-1)
	}
	for _, name := range []string{"possible", "has_cpu", "has_memory", "has_normal_memory"} {
		files[node+name] = files[node+"online"]
	}
	const cores = madeUpCPUs / 2
	for id := range madeUpCPUs {
		core := id % cores
		on := core / (cores / madeUpNodes)
		at := fmt.Sprintf("%scpu%d/", cpu, id)
		files[at+"online"] = "1\n"
		for name, value := range map[string]string{
			"core_id": strconv.Itoa(core), "physical_package_id": strconv.Itoa(on), "die_id": "0", "cluster_id": "-1",
			"thread_siblings_list": fmt.Sprintf("%d,%d", core, core+cores), "core_cpus_list": fmt.Sprintf("%d,%d", core, core+cores),
		} {
			files[at+"topology/"+name] = value + "\n"
		}
		files[fmt.Sprintf("%snode%d/cpu%d", node, on, id)] = fmt.Sprintf("-> ../../cpu/cpu%d", id)
	}
	for id := range madeUpNodes {
		at := fmt.Sprintf("%snode%d/", node, id)
		first, last := id*cores/madeUpNodes, (id+1)*cores/madeUpNodes-1
		files[at+"cpulist"] = fmt.Sprintf("%d-%d,%d-%d\n", first, last, first+cores, last+cores)
		files[at+"meminfo"] = fmt.Sprintf("Node %d MemTotal:       67108864 kB\nNode %d MemFree:        67108864 kB\n", id, id)
		files[at+"distance"] = []string{"10 21\n", "21 10\n"}[id]
		files[at+"hugepages/hugepages-2048kB/nr_hugepages"], files[at+"hugepages/hugepages-2048kB/free_hugepages"] = "0\n", "0\n"
	}
	return files
}

// madeUpKernel keeps the cgroups of containers, with a process in each, below a directory.
type madeUpKernel struct {
	mu   sync.Mutex
	root string
	last int
	pids map[string]int
	errs []error
}

func (k *madeUpKernel) write(file, text string) {
	file = filepath.Join(k.root, file)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		k.errs = append(k.errs, err)
	}
}

// Placed implements cri.Kernel.
func (k *madeUpKernel) Placed(cgroup string, r *criv1.LinuxContainerResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pid := k.pids[cgroup]
	if pid == 0 {
		k.last++
		pid = 100_000 + k.last
		k.pids[cgroup] = pid
	}
	cpus := r.GetCpusetCpus()
	if cpus == "" {
		cpus = fmt.Sprintf("0-%d", madeUpCPUs-1)
	}
	quota := "max"
	if r.GetCpuQuota() > 0 {
		quota = strconv.FormatInt(r.GetCpuQuota(), 10)
	}
	k.widen(cgroup, cpus)
	k.write(path.Join("sys/fs/cgroup", cgroup, "cpu.max"), quota+" 100000\n")
	k.write(path.Join("sys/fs/cgroup", cgroup, "cpuset.mems.effective"), "0-1\n")
	k.write(path.Join("sys/fs/cgroup", cgroup, "cgroup.procs"), fmt.Sprintf("%d\n", pid))
}

// widen sets the CPUs of a cgroup. The caller holds mu.
func (k *madeUpKernel) widen(cgroup, cpus string) {
	pid := strconv.Itoa(k.pids[cgroup])
	k.write(path.Join("sys/fs/cgroup", cgroup, "cpuset.cpus.effective"), cpus+"\n")
	k.write(path.Join("proc", pid, "task", pid, "status"), "Name:\tapp\nCpus_allowed_list:\t"+cpus+"\n")
}

// Gone implements cri.Kernel.
func (k *madeUpKernel) Gone(cgroup string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.errs = append(k.errs, os.RemoveAll(filepath.Join(k.root, "sys/fs/cgroup", cgroup)),
		os.RemoveAll(filepath.Join(k.root, "proc", strconv.Itoa(k.pids[cgroup]))))
	delete(k.pids, cgroup)
}

// TestClusterObserveMany: on a node with 64 CPUs and two NUMA nodes, 200 pods come and go. berth says of each pod what the kubelet's
// podresources say, explains each rejection with the kubelet's reason, finds nothing wrong, and then five faults.
func TestClusterObserveMany(t *testing.T) {
	cluster.Need(t) // before something is built for it
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "rt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	kernel := &madeUpKernel{pids: map[string]int{}}
	runtime := cri.New(cri.Config{Images: []string{madeUpImage}, Kernel: kernel})
	socket := filepath.Join(dir, "cri.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- runtime.Serve(ctx, l) }()
	t.Cleanup(func() { end(); <-served })
	// The kernel's files are in the cluster's directory, which is made below; nothing runs before.
	c := cluster.Run(t, cluster.Options{
		Image: filepath.Join(built, "root", "probe"), Runtime: socket, Machine: madeUpMachine(), Timeout: 2 * time.Minute,
		Kubelet: map[string]any{
			"cpuManagerPolicy": "static", "reservedSystemCPUs": "0,32", "topologyManagerPolicy": "single-numa-node", "maxPods": 300,
			"cpuManagerReconcilePeriod": "2s",
		},
	})
	kernel.root = c.Path()
	kernel.describe(t, c.Path("kubelet.json"))
	m := &followed{
		kubernetes: &kubernetes{t: t, built: built, Cluster: c, socket: filepath.Join(dir, "berth.sock")}, root: c.Path(),
		rnd: rand.New(rand.NewPCG(seed, 1)), container: fmt.Sprintf(`"image": %q`, madeUpImage), most: 8,
	}
	m.follow("gpu0@0,gpu1@0,gpu2@0,gpu3@0,gpu4@1,gpu5@1,gpu6@1,gpu7@1")
	m.create(120)
	m.withdraw(40)
	m.create(80)
	m.same()
	m.explained()
	// A kubelet frees devices of ended and rejected pods when the next pod with devices comes, which has to be admitted itself.
	m.pod("last", map[string]string{"memory": "32Mi", "example.com/gpu": "1"}, 1)
	m.healthy()
	kernel.mu.Lock()
	widened := slices.Sorted(maps.Keys(kernel.pids))[0]
	kernel.mu.Unlock()
	m.faults(planted{
		widened: m.Path("sys/fs/cgroup", widened, "cpuset.cpus.effective"), all: "0-63",
		online: m.Path("sys/devices/system/cpu/online"), offline: "0-62",
		config: m.Path("etc/kubelet.json"), moved: "0,33",
	})
	kernel.mu.Lock()
	defer kernel.mu.Unlock()
	if err := errors.Join(kernel.errs...); err != nil {
		t.Error(err)
	}
}

// describe writes the rest of the node's files: the kubelet's process, with its configuration, and what the kernel says of itself.
func (k *madeUpKernel) describe(t *testing.T, kubelet string) {
	t.Helper()
	config, err := os.ReadFile(kubelet)
	if err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, text := range map[string]string{
		"proc/sys/kernel/pid_max": "4194304\n", "proc/sys/kernel/threads-max": "400000\n", "proc/uptime": "1000.00 1.00\n",
		"proc/meminfo": "MemTotal:       134217728 kB\n", "etc/kubelet.json": string(config),
		"proc/77/cmdline": "kubelet\x00--config=/etc/kubelet.json\x00--root-dir=/var/lib/kubelet\x00--hostname-override=n1\x00",
		"proc/77/cgroup":  "0::/system.slice/kubelet.service\n", "sys/fs/cgroup/cgroup.controllers": "cpuset cpu memory\n",
	} {
		k.write(name, text)
	}
}
