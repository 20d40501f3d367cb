package nodecheck_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/nodecheck"
)

// seen adds what the kernel has of the healthy node: the sandbox and two containers of its pod, and those of a pod without CPUs of its own.
func seen(in *nodecheck.Input) {
	in.Pods = append(in.Pods, workload.Pod{
		UID: "s", Namespace: "default", Name: "shared", Containers: []workload.Container{{Name: "c"}},
	})
	in.Names = map[string]string{"1": "one", "2": "two", "3": "c"}
	in.Kernel = []nodecheck.Running{
		runs("a", "0", "0-15", "pause"), runs("a", "1", "2-3", "web"), runs("a", "2", "4-5", "web"), runs("s", "3", "0-1,6-15", "sh"),
		runs("s", "4", "0-15", "pause"),
	}
}

// runs is a container with a thread, as the kernel has it.
func runs(pod, id, list, command string) nodecheck.Running {
	c := nodecheck.Running{
		Pod: pod, ID: id, Cgroup: "/kubepods/pod" + pod + "/" + id, CPUs: cpus(list), Nodes: numa.Of(0, 1), Age: time.Hour,
		Threads: []nodecheck.Threads{{Command: command, CPUs: cpus(list), Count: 1}},
	}
	if id == "1" {
		c.Nodes = numa.Of(0)
	}
	return c
}

// widen changes the CPUs of a container that runs, and of its threads.
func widen(in *nodecheck.Input, i int, list string) {
	c := &in.Kernel[i]
	c.CPUs, c.Threads[0].CPUs = cpus(list), cpus(list)
}

// BenchmarkThreads checks a node with 250 pods that have CPUs of their own, and 100,000 threads with names of their own.
func BenchmarkThreads(b *testing.B) {
	in := healthy()
	seen(in)
	for i := range 250 {
		in.CPU.Containers[fmt.Sprint("u", i)] = map[string]cpuset.Set{"c": cpus("2-3")}
	}
	c := &in.Kernel[3]
	for i := range 100_000 {
		c.Threads = append(c.Threads, nodecheck.Threads{Command: fmt.Sprint(i), CPUs: c.CPUs, Count: 1})
	}
	for b.Loop() {
		nodecheck.Run(*in)
	}
}

// shared is the pod without CPUs of its own.
const shared = "pod default/shared"

// kernelRows are nodes on which the kernel does something else than the kubelet has decided, or only looks like it.
var kernelRows = []row{
	{name: "healthy"},

	{"CPUs open to a shared container", nil, func(in *nodecheck.Input) { widen(in, 3, "0-2,6-15") }, []string{
		"cpus-open " + shared + ", container c", "other-cpus " + shared + ", container c"}},
	{"CPUs open to a container of the same pod", nil, func(in *nodecheck.Input) { widen(in, 2, "3-5") }, []string{
		"cpus-open " + web + ", container two", "other-cpus " + web + ", container two"}},
	{"CPUs open to a container of an unknown pod", nil, func(in *nodecheck.Input) {
		in.Kernel = append(in.Kernel, runs("x", "9", "0-15", "sh"))
	}, []string{"cpus-open pod x, container 9", "other-cpus pod x, container 9"}},
	{"CPUs open to a container without a name", nil, func(in *nodecheck.Input) {
		delete(in.Names, "3")
		widen(in, 3, "0-2,6-15")
	}, []string{"cpus-open " + shared + ", container 3", "other-cpus " + shared + ", container 3"}},
	{"containers without names", nil, func(in *nodecheck.Input) { in.Names = nil }, nil},
	{"CPUs open to the sandbox", nil, func(in *nodecheck.Input) { in.Kernel[4].Threads[0].Count = 2 }, nil},
	{"CPUs open to the sandbox of CRI-O in OpenShift", nil, func(in *nodecheck.Input) { in.Kernel[4].Threads[0].Command = "pod" }, nil},
	{"an ephemeral container that began with fewer shared CPUs", nil, func(in *nodecheck.Input) {
		in.Kernel = append(in.Kernel, runs("s", "5", "0-1,6-7", "sh"))
		in.Names["5"] = "debugger"
	}, nil},
	{"CPUs open to an ephemeral container", nil, func(in *nodecheck.Input) {
		in.Kernel = append(in.Kernel, runs("s", "5", "0-15", "sh"))
		in.Names["5"] = "debugger"
	}, []string{"cpus-open " + shared + ", container debugger"}},
	{"CPUs open to a container that calls itself pause", nil, func(in *nodecheck.Input) {
		widen(in, 3, "0-2,6-15")
		in.Kernel[3].Threads[0].Command = "pause"
	}, []string{"cpus-open " + shared + ", container c", "other-cpus " + shared + ", container c"}},
	{"CPUs open to a container that just starts", nil, func(in *nodecheck.Input) {
		widen(in, 3, "0-15")
		in.Kernel[3].Age = 9 * time.Second
	}, nil},
	{"CPUs open to a container that runs nothing", nil, func(in *nodecheck.Input) {
		widen(in, 3, "0-15")
		in.Kernel[3].Threads = nil
	}, nil},
	{"the init container's CPUs", nil, func(in *nodecheck.Input) {
		in.Kernel = append(in.Kernel, runs("a", "8", "2-3", "sh"))
		in.Names["8"] = "init"
	}, nil},
	{"an own cpuset widened", nil, func(in *nodecheck.Input) { widen(in, 1, "0-3") }, []string{"other-cpus " + web + ", container one"}},
	{"an own cpuset narrowed", nil, func(in *nodecheck.Input) { widen(in, 1, "2") }, []string{"other-cpus " + web + ", container one"}},
	{"containers of a pod with CPUs as a whole", nil, func(in *nodecheck.Input) {
		in.CPU.Shared, in.CPU.Pods = cpus("0-1,8-15"), map[string]cpuset.Set{"a": cpus("2-7")}
		in.CPU.Containers["a"] = map[string]cpuset.Set{"one": cpus("2-3")}
		widen(in, 2, "4-7")
		widen(in, 3, "0-1,8-15")
	}, nil},
	{"memory of another node", nil, func(in *nodecheck.Input) { in.Kernel[1].Nodes = numa.Of(0, 1) }, []string{
		"other-memory-nodes " + web + ", container one"}},
	{"memory of another node, without a policy", nil, func(in *nodecheck.Input) {
		in.Kernel[1].Nodes, in.Config.Memory.Policy, in.Memory = numa.Of(1), "None", nil
	}, nil},
	{"threads pinned", nil, func(in *nodecheck.Input) {
		in.Kernel[3].Threads = append(in.Kernel[3].Threads, nodecheck.Threads{Command: "dpdk", CPUs: cpus("2"), Count: 3})
	}, []string{"pinned-threads " + shared + ", container c"}},
	{"threads pinned to shared CPUs", nil, func(in *nodecheck.Input) {
		in.Kernel[3].Threads = append(in.Kernel[3].Threads, nodecheck.Threads{Command: "dpdk", CPUs: cpus("6"), Count: 3})
	}, nil},
	{"another driver", nil, func(in *nodecheck.Input) {
		for i := range in.Kernel {
			in.Kernel[i].Cgroup = "/kubepods.slice/kubepods-poda.slice/1"
		}
	}, []string{"other-driver cgroupDriver"}},
	{"one container with another driver's name", nil, func(in *nodecheck.Input) {
		in.Kernel[1].Cgroup = "/kubepods.slice/kubepods-poda.slice/1"
	}, nil},
	{"no kernel", nil, func(in *nodecheck.Input) { in.Kernel, in.Unseen = nil, "there are no cgroups" }, nil},
	{"quota", nil, func(in *nodecheck.Input) {
		in.Config.Cgroups.QuotaWithExclusiveCPUs, in.Kernel[1].Quota = true, true
	}, []string{"quota-on-exclusive-cpus featureGates.DisableCPUQuotaWithExclusiveCPUs"}},
	{"quota, without names", nil, func(in *nodecheck.Input) {
		in.Config.Cgroups.QuotaWithExclusiveCPUs, in.Kernel[1].Quota, in.Names = true, true, nil
	}, []string{"quota-on-exclusive-cpus featureGates.DisableCPUQuotaWithExclusiveCPUs"}},
	{"a quota of shared CPUs, without names", nil, func(in *nodecheck.Input) {
		in.Config.Cgroups.QuotaWithExclusiveCPUs, in.Kernel[3].Quota, in.Names = true, true, nil
	}, nil},
	{"a quota that no container has", nil, func(in *nodecheck.Input) {
		in.Config.Cgroups.QuotaWithExclusiveCPUs, in.Kernel[3].Quota = true, true
	}, nil},
}
