package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/cri"
	"github.com/berthd/berth/managers/cpuset"
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

// madeUp is a kubelet on a machine that is made up, with a runtime that only pretends, and a berthd that observes it.
type madeUp struct {
	*kubernetes
	kernel *madeUpKernel
	plugin io.Writer
	list   string // the file with the pods, where the kubelet does not run
	rnd    *rand.Rand
	pods   int
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
	m := &madeUp{kernel: &madeUpKernel{pids: map[string]int{}}, rnd: rand.New(rand.NewPCG(seed, 1))}
	runtime := cri.New(cri.Config{Images: []string{madeUpImage}, Kernel: m.kernel})
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
	m.kubernetes = &kubernetes{t: t, built: built, Cluster: cluster.Run(t, cluster.Options{
		Image: filepath.Join(built, "root", "probe"), Runtime: socket, Machine: madeUpMachine(), Timeout: 2 * time.Minute,
		Kubelet: map[string]any{
			"cpuManagerPolicy": "static", "reservedSystemCPUs": "0,32", "topologyManagerPolicy": "single-numa-node", "maxPods": 300,
			"cpuManagerReconcilePeriod": "2s",
		},
	})}
	m.kernel.root = m.Path()
	m.files()
	plugin := exec.Command(filepath.Join(built, "plugin"), "-devices", "gpu0@0,gpu1@0,gpu2@0,gpu3@0,gpu4@1,gpu5@1,gpu6@1,gpu7@1")
	if m.plugin, err = plugin.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	m.Start("plugin", plugin)
	m.Eventually("the node has devices", func() bool {
		text, err := m.Kubectl("get", "node", cluster.Node, "-o", `jsonpath={.status.allocatable.example\.com/gpu}`)
		return err == nil && text == "8"
	})
	m.socket = filepath.Join(dir, "berth.sock")
	m.Start("berthd", exec.Command(filepath.Join(built, "berthd"), "--observe="+m.Path(), "--listen", m.socket, "--root-dir", dir))
	m.Eventually("berthd answers", func() bool { _, err := m.berthctl("get", "node"); return err == nil })
	m.create(120)
	m.withdraw(40)
	m.create(80)
	defer func() {
		if t.Failed() {
			t.Log(m.Log("berthd").String())
		}
	}()
	m.explained()
	m.same()
	// A kubelet frees devices of ended and rejected pods when the next pod with devices comes, which has to be admitted itself.
	m.pod("last", map[string]string{"memory": "16Mi", "example.com/gpu": "1"}, 1)
	m.healthy()
	m.faults()
	m.kernel.mu.Lock()
	defer m.kernel.mu.Unlock()
	if err := errors.Join(m.kernel.errs...); err != nil {
		t.Error(err)
	}
}

// files writes the rest of the node's files: the kubelet's process and what the kernel says of itself.
func (m *madeUp) files() {
	m.t.Helper()
	config, err := os.ReadFile(m.Path("kubelet.json"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.kernel.mu.Lock()
	defer m.kernel.mu.Unlock()
	for name, text := range map[string]string{
		"proc/sys/kernel/pid_max": "4194304\n", "proc/sys/kernel/threads-max": "400000\n", "proc/uptime": "1000.00 1.00\n",
		"proc/meminfo": "MemTotal:       134217728 kB\n", "etc/kubelet.json": string(config),
		"proc/77/cmdline": "kubelet\x00--config=/etc/kubelet.json\x00--root-dir=/var/lib/kubelet\x00--hostname-override=n1\x00",
		"proc/77/cgroup":  "0::/system.slice/kubelet.service\n", "sys/fs/cgroup/cgroup.controllers": "cpuset cpu memory\n",
	} {
		m.kernel.write(name, text)
	}
}

// create creates pods, each one when the kubelet has decided about the one before: it does not tell the order of decisions in a second.
func (m *madeUp) create(count int) {
	m.t.Helper()
	for range count {
		m.pods++
		amounts := map[string]string{"cpu": "200m", "memory": "16Mi"}
		if m.rnd.IntN(3) > 0 {
			amounts["cpu"] = strconv.Itoa(1 + m.rnd.IntN(8))
		}
		if m.rnd.IntN(6) == 0 {
			amounts["example.com/gpu"] = strconv.Itoa(1 + m.rnd.IntN(2))
		}
		m.pod(fmt.Sprintf("p%d", m.pods), amounts, 1+m.rnd.IntN(2))
	}
}

// pod creates a pod, and waits until the kubelet has decided about it.
func (m *madeUp) pod(name string, limits map[string]string, containers int) {
	m.t.Helper()
	if err := m.Call(m.t.Context(), http.MethodPost, podsPath, m.manifest(name, limits, containers), nil); err != nil {
		m.t.Fatal(err)
	}
	m.Eventually("the kubelet has decided about pod "+name, func() bool {
		var p corev1.Pod
		return m.Call(m.t.Context(), http.MethodGet, podsPath+"/"+name, "", &p) == nil && p.Status.Phase != corev1.PodPending
	})
}

// manifest is a pod on the node, past the scheduler, with containers that have the same limits.
func (m *madeUp) manifest(name string, limits map[string]string, containers int) string {
	m.t.Helper()
	text, err := json.Marshal(limits)
	if err != nil {
		m.t.Fatal(err)
	}
	list := make([]string, containers)
	for i := range list {
		list[i] = fmt.Sprintf(`{"name": "c%d", "image": %q, "imagePullPolicy": "Never", "resources": {"limits": %s}}`, i, madeUpImage, text)
	}
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"nodeName": %q, "hostNetwork": true,
		"automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0, "containers": [%s]}}`, name, cluster.Node,
		strings.Join(list, ", "))
}

// all are the pods by name.
func (m *madeUp) all() map[string]corev1.Pod {
	m.t.Helper()
	var list corev1.PodList
	if err := m.Get(&list, "pods"); err != nil {
		m.t.Fatal(err)
	}
	out := map[string]corev1.Pod{}
	for _, p := range list.Items {
		out[p.Name] = p
	}
	return out
}

// withdraw deletes pods, rejected ones, too.
func (m *madeUp) withdraw(count int) {
	m.t.Helper()
	names := slices.Sorted(maps.Keys(m.all()))
	m.rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	if text, err := m.Kubectl(append([]string{"delete", "pod", "--grace-period=0", "--wait"}, names[:count]...)...); err != nil {
		m.t.Fatalf("%v: %s", err, text)
	}
}

// explained compares the explanations of rejected pods with the kubelet's reasons.
func (m *madeUp) explained() {
	m.t.Helper()
	reasons := map[string]int{}
	for name, p := range m.all() {
		if p.Status.Phase != corev1.PodFailed {
			continue
		}
		reasons[p.Status.Reason]++
		var text string
		var err error
		m.Eventually("berth has seen the rejection of "+name, func() bool {
			text, err = m.berthctl("explain", "default/"+name)
			return err == nil
		})
		if !strings.Contains(text, "the kubelet rejected it with "+p.Status.Reason) || strings.Contains(text, "where the reason is") {
			m.t.Errorf("%s (%s at %s): %s, explained so:\n%s", name, p.Status.Reason, p.Status.StartTime, p.Status.Message, text)
		}
	}
	m.t.Logf("rejections: %v", reasons)
	if len(reasons) == 0 {
		m.t.Error("the kubelet has rejected no pod")
	}
}

// same compares what containers hold with podresources.
func (m *madeUp) same() {
	m.t.Helper()
	conn, err := grpc.NewClient("unix://"+m.Path("var/lib/kubelet/pod-resources/kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		m.t.Fatal(err)
	}
	defer conn.Close()
	difference := ""
	defer func() {
		if m.t.Failed() {
			m.t.Log(difference)
		}
	}()
	m.Eventually("berth has what podresources has", func() bool {
		list, err := podresourcesv1.NewPodResourcesListerClient(conn).List(m.t.Context(), &podresourcesv1.ListPodResourcesRequest{})
		if err != nil {
			m.t.Fatal(err)
		}
		want := map[string]string{}
		for _, p := range list.GetPodResources() {
			for _, c := range p.GetContainers() {
				var ids []string
				for _, d := range c.GetDevices() {
					ids = append(ids, d.GetDeviceIds()...)
				}
				slices.Sort(ids)
				var cpus cpuset.Builder
				for _, id := range c.GetCpuIds() {
					cpus.Add(int(id))
				}
				want[p.GetName()+"/"+c.GetName()] = cpus.Set().String() + " " + strings.Join(ids, ",")
			}
		}
		have := m.held()
		difference = fmt.Sprintf("podresources: %v\nberth: %v", want, have)
		return len(want) > 0 && maps.Equal(want, have)
	})
	m.t.Logf("%d containers", len(m.held()))
}

// held is what containers hold as berth says.
func (m *madeUp) held() map[string]string {
	m.t.Helper()
	text, err := m.berthctl("get", "containers", "-o", "json")
	var list struct {
		Items []struct {
			Name       string
			Containers []struct {
				ContainerName string
				ExclusiveCPUs bool
				CPUs          string
				Claims        []struct {
					Device struct{ Devices []struct{ ID string } }
				}
			}
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &list)
	}
	if err != nil {
		m.t.Fatalf("%v: %s", err, text)
	}
	out := map[string]string{}
	for _, p := range list.Items {
		for _, c := range p.Containers {
			var ids []string
			for _, claim := range c.Claims {
				for _, d := range claim.Device.Devices {
					ids = append(ids, d.ID)
				}
			}
			slices.Sort(ids)
			cpus := ""
			if c.ExclusiveCPUs {
				cpus = c.CPUs
			}
			out[p.Name+"/"+c.ContainerName] = cpus + " " + strings.Join(ids, ",")
		}
	}
	return out
}

// check returns what berthctl check finds, by the kind of finding.
func (m *madeUp) check() (text string, kinds []string) {
	m.t.Helper()
	args := []string{"check", "-o", "json", "--now", "--kubelet=" + m.Path()}
	if m.list != "" {
		args = append(args, "--pods", m.list)
	}
	out, err := exec.Command(filepath.Join(m.built, "berthctl"), args...).Output()
	var found struct{ Items []struct{ Check string } }
	if json.Unmarshal(out, &found) != nil {
		m.t.Fatalf("check: %v: %s", err, out)
	}
	for _, f := range found.Items {
		if f.Check != "scattered-cpus" { // that depends on the pods
			kinds = append(kinds, f.Check)
		}
	}
	return string(out), slices.Compact(slices.Sorted(slices.Values(kinds)))
}

// healthy waits until nothing is wrong: the kubelet sets the CPUs of running containers from time to time.
func (m *madeUp) healthy() {
	m.t.Helper()
	text := ""
	defer func() {
		if m.t.Failed() {
			m.t.Log(text)
		}
	}()
	m.Eventually("nothing is wrong", func() bool {
		var kinds []string
		text, kinds = m.check()
		return len(kinds) == 0
	})
}

// unhealthy has a device that a container holds fail.
func (m *madeUp) unhealthy() {
	m.t.Helper()
	for _, held := range m.held() {
		_, ids, _ := strings.Cut(held, " ")
		if ids == "" {
			continue
		}
		id, _, _ := strings.Cut(ids, ",")
		if _, err := fmt.Fprintln(m.plugin, "unhealthy", id); err != nil {
			m.t.Fatal(err)
		}
		m.Eventually("a device is seen to have failed", func() bool {
			_, kinds := m.check()
			return slices.Contains(kinds, "devices-not-registered")
		})
		if _, err := fmt.Fprintln(m.plugin, "healthy", id); err != nil {
			m.t.Fatal(err)
		}
		m.healthy()
		return
	}
	m.t.Error("no container has a device")
}

// faults plants faults, one after the other.
func (m *madeUp) faults() {
	m.t.Helper()
	fault := func(what, want, file string, change func(text string) string) {
		m.t.Helper()
		file = m.Path(file)
		before, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, []byte(change(string(before))), 0o644)
		}
		if err != nil {
			m.t.Fatal(err)
		}
		if text, kinds := m.check(); !slices.Contains(kinds, want) {
			changed, err := os.ReadFile(file)
			m.t.Errorf("%s: there is no %s in %q: %s\nthe file has %s, %v", what, want, kinds, text, changed, err)
		}
		if err := os.WriteFile(file, before, 0o644); err != nil {
			m.t.Fatal(err)
		}
		m.healthy()
	}
	m.unhealthy()
	m.kernel.mu.Lock()
	groups := slices.Sorted(maps.Keys(m.kernel.pids))
	m.kernel.mu.Unlock()
	fault("a cpuset that was widened by hand", "cpus-open", path.Join("sys/fs/cgroup", groups[0], "cpuset.cpus.effective"),
		func(string) string { return "0-63\n" })
	fault("a CPU that is offline", "cpus-gone", "sys/devices/system/cpu/online", func(string) string { return "0-62\n" })
	fault("a reserved CPU that was moved", "reservation-changed", "etc/kubelet.json", func(text string) string {
		return strings.Replace(text, `"reservedSystemCPUs":"0,32"`, `"reservedSystemCPUs":"0,33"`, 1)
	})
	state, err := os.ReadFile(m.Path("var/lib/kubelet/cpu_manager_state"))
	if err == nil {
		err = m.End("kubelet", os.Kill) // its Pods API has all pods
	}
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		m.t.Fatal(err)
	}
	text, err := m.Kubectl("get", "pods", "-A", "-o", "json")
	m.list = m.Path("pods.json")
	if err = errors.Join(err, os.WriteFile(m.list, []byte(text), 0o600)); err != nil {
		m.t.Fatal(err)
	}
	fault("an entry of a pod that is gone", "cpus-left-behind", "pods.json", func(text string) string {
		uid := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`).Find(state)
		return strings.ReplaceAll(text, string(uid), "00000000-0000-4000-8000-000000000000")
	})
}
