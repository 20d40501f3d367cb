package nodecheck

import "github.com/berthd/berth/managers/ledger/kubelet"

func do(text string) step { return step{text: text} }

func drain(kinds ...kubelet.Kind) step { return step{reset: kinds} }

// restart is what a changed field needs that no state file depends on.
var restart = do("systemctl restart kubelet")

// checks are all checks, in the order of their findings within a severity.
var checks = []check{
	// What the next start of the kubelet fails with.
	{
		id: "configuration", severity: Error, find: refused,
		finds: "a configuration that cannot be read or used",
		do:    []step{do("Change the named field and restart the kubelet; its log has the same reason")},
	},
	{
		id: "state-damaged", severity: Error, find: damaged(kubelet.CPU, kubelet.Memory),
		finds: "a state file of CPUs or memory that cannot be read, or whose checksum is wrong: the kubelet does not start",
		do:    []step{drain(kubelet.CPU, kubelet.Memory)},
	},
	{
		id: "devices-damaged", severity: Error, find: damaged(kubelet.Device),
		finds: "a device checkpoint that cannot be read: the kubelet starts without it, and gives devices of running containers to others",
		do:    []step{drain(kubelet.Device)},
	},
	{
		id: "claims-damaged", severity: Error, find: damaged(kubelet.Claims), report: []string{"kubernetes#127653"},
		finds: "a state file of claims on dynamic resources that cannot be read, or whose checksum is wrong: a kubelet with the feature gate " +
			"`DynamicResourceAllocation` does not start",
		do: []step{drain(kubelet.Claims)},
	},
	{
		id: "amounts-damaged", severity: Error, find: damaged(kubelet.Allocated, kubelet.Actuated),
		finds: "a state file of pods' requests and limits that cannot be read, or whose checksum is wrong: the kubelet does not start",
		do:    []step{drain(kubelet.Allocated, kubelet.Actuated)},
	},
	{
		id: "policy-options", severity: Error, find: options, needs: []need{needConfig},
		finds: "a CPU policy without a reservation, policy options that are unknown, off by their feature gate, or wrong for the machine",
		do:    []step{do("Change the named field"), restart},
	},
	{
		id: "too-many-nodes", severity: Error, find: tooManyNodes, needs: []need{needConfig}, report: []string{"KEP-4622"},
		finds: "more NUMA nodes than a topology policy other than `none` accepts: 8, or the value of `max-allowable-numa-nodes`",
		do:    []step{do("Set topologyManagerPolicyOptions max-allowable-numa-nodes, or topologyManagerPolicy to none"), restart},
	},
	{
		id: "policy-changed", severity: Error, find: otherPolicy, needs: []need{needConfig},
		finds: "a state file of another CPU or memory policy than the configuration's",
		do:    []step{do("Set the policy back, or:"), drain(kubelet.CPU, kubelet.Memory)},
	},
	{
		id: "cpus-gone", severity: Error, find: goneCPUs, needs: []need{needConfig, needCPU},
		report: []string{"kubernetes#84333", "kubernetes#66718", "kubernetes#110478"},
		finds:  "CPUs of the CPU state file that the machine does not have online",
		do:     []step{do("Set the CPUs online again (/sys/devices/system/cpu/cpuN/online), or:"), drain(kubelet.CPU)},
	},
	{
		id: "cpus-in-no-set", severity: Error, find: lostCPUs, needs: []need{needConfig, needCPU},
		report: []string{"kubernetes#84783", "kubernetes#136604"},
		finds:  "online CPUs that are neither shared nor a container's: they were lost in a crash, or are new",
		do:     []step{drain(kubelet.CPU)},
	},
	{
		id: "reserved-offline", severity: Error, find: offlineReserved, needs: []need{needConfig},
		finds: "CPUs of `reservedSystemCPUs` that are not online",
		do:    []step{do("Set the CPUs online, or change reservedSystemCPUs to CPUs of the machine, and then:"), drain(kubelet.CPU)},
	},
	{
		id: "reservation-changed", severity: Error, find: otherReservation, needs: []need{needConfig, needCPU},
		finds: "reserved CPUs that the CPU state file does not have in the shared pool, or has there with `strict-cpu-reservation`",
		do:    []step{do("Set reservedSystemCPUs, or systemReserved and kubeReserved, back, or:"), drain(kubelet.CPU)},
	},
	{
		id: "memory-changed", severity: Error, find: otherMemory, needs: []need{needConfig, needMemory},
		report: []string{"kubernetes#109996", "kubernetes#131253", "KEP-6232"},
		finds:  "NUMA nodes with other memory or huge pages than the memory checkpoint has",
		do:     []step{do("Set huge pages back if their number was changed, or:"), drain(kubelet.Memory)},
	},
	{
		id: "reserved-memory-changed", severity: Error, find: otherReservedMemory, needs: []need{needConfig, needMemory},
		finds: "a `reservedMemory` that is not the memory checkpoint's",
		do:    []step{do("Set reservedMemory back, or:"), drain(kubelet.Memory)},
	},
	{
		id: "reserved-memory-sum", severity: Error, find: sums, needs: []need{needConfig},
		finds: "a `reservedMemory` that does not add up to `kubeReserved`, `systemReserved` and `evictionHard`",
		do: []step{do("Change reservedMemory so that its sum is kubeReserved + systemReserved + evictionHard memory.available, and then:"),
			drain(kubelet.Memory)},
	},
	// What is allocated wrongly.
	{
		id: "cpus-twice", severity: Error, find: twice, needs: []need{needCPU},
		report: []string{"kubernetes#140495", "kubernetes#124066"},
		finds:  "exclusive CPUs of two containers that run at the same time. An init container may share with the containers after it",
		do:     []step{do("Delete one of the two pods; its successor gets other CPUs")},
	},
	{
		id: "cpus-shared", severity: Error, find: sharedOwned, needs: []need{needCPU},
		report: []string{"kubernetes#136604", "kubernetes#107906"},
		finds:  "exclusive CPUs of a container that are in the shared pool, too",
		do:     []step{drain(kubelet.CPU)},
	},
	{
		id: "cpus-open", severity: Error, lags: true, find: openCPUs, needs: []need{needCPU, needKernel},
		finds: "exclusive CPUs of a container on which the kernel lets another container run",
		do: []step{do("Find what sets the CPUs of this cgroup: an NRI plugin, another agent, a person; and then:"), restart,
			do("An ephemeral container keeps the CPUs that it began with: end it, or delete its pod")},
	},
	{
		id: "memory-below-zero", severity: Error, find: belowZero, needs: []need{needMemory},
		finds: "allocatable or free memory below zero, which the kubelet takes for nearly 2^64 bytes",
		do:    []step{do("Reserve less memory of this NUMA node (reservedMemory), if allocatable is below zero"), drain(kubelet.Memory)},
	},
	{
		id: "memory-miscounted", severity: Error, find: miscounted, needs: []need{needConfig, needMemory},
		report: []string{"kubernetes#113035", "kubernetes#123971", "kubernetes#140906"},
		finds:  "memory that is counted as held or free and is not the sum of the containers' memory: the kubelet does not start",
		do:     []step{drain(kubelet.Memory)},
	},
	// What the kubelet keeps of pods that are gone.
	{
		id: "cpus-left-behind", severity: Warning, find: leftCPUs, needs: []need{needCPU, needPods},
		finds: "CPUs of pods that do not exist. The kubelet frees them within `cpuManagerReconcilePeriod`",
		do:    []step{do("Check again after cpuManagerReconcilePeriod (10 s); if they are still there:"), restart},
	},
	{
		id: "memory-left-behind", severity: Warning, find: leftMemory, needs: []need{needMemory, needPods},
		finds: "memory of pods that do not exist. The kubelet frees it when it admits the next pod",
		do:    []step{do("Check again after the next pod was admitted; if it is still there:"), restart},
	},
	{
		id: "devices-left-behind", severity: Warning, find: leftDevices, needs: []need{needDevices, needPods},
		finds: "devices of pods that do not exist. The kubelet frees them when it admits the next pod with devices",
		do:    []step{do("Check again after the next pod with devices was admitted; if they are still there:"), restart},
	},
	{
		id: "claims-left-behind", severity: Warning, find: leftClaims, needs: []need{needClaims, needPods},
		finds: "claims on dynamic resources of pods that do not exist. The kubelet has their drivers unprepare them, every 60 s until they do",
		do:    []step{do("Check again after 60 s; if they are still there, see why the driver does not unprepare them: its log, and the kubelet's")},
	},
	{
		id: "no-device-plugin", severity: Warning, find: noPlugin, needs: []need{needDevices},
		finds: "resources with allocated devices and no registered device plugin",
		do:    []step{do("Start the device plugin; its pods and its log say why it is away")},
	},
	{
		id: "devices-not-registered", severity: Warning, find: unregistered, needs: []need{needDevices},
		finds: "devices of containers that the device plugin does not have, or has as unhealthy",
		do:    []step{do("See the device plugin's log about the devices; delete the pod if they do not come back")},
	},
	{
		id: "devices-elsewhere", severity: Warning, find: elsewhere, needs: []need{needDevices},
		finds: "devices of containers, with PCI addresses as ids, that the kernel has on another NUMA node than the device plugin has told",
		do: []step{do("Compare the plugin's devices with /sys/bus/pci/devices/ADDRESS/numa_node, and update or restart the plugin; pods keep what " +
			"they have until they are deleted")},
	},
	// What the kernel does in another way than the kubelet has decided.
	{
		id: "other-cpus", severity: Warning, lags: true, find: otherCPUs, needs: []need{needConfig, needCPU, needKernel},
		finds: "a container whose cgroup has other CPUs than the kubelet has given to it. The kubelet sets them when it changes them, within " +
			"`cpuManagerReconcilePeriod`, and when it starts; what others set in between stays",
		do: []step{do("Find what sets the CPUs of this cgroup: an NRI plugin, another agent, a person; and then:"), restart},
	},
	{
		id: "other-memory-nodes", severity: Warning, find: otherNodes, needs: []need{needConfig, needMemory, needKernel},
		finds: "a container whose cgroup has other NUMA nodes for its memory than the kubelet has given to it. The kubelet sets them once, " +
			"when it makes the container",
		do: []step{do("Find what sets the memory nodes of this cgroup, and delete the pod: its successor gets them again")},
	},
	{
		id: "pinned-threads", severity: Warning, lags: true, find: pinnedThreads, needs: []need{needCPU, needKernel},
		finds: "threads that have pinned themselves to exclusive CPUs of another container",
		do:    []step{do("Ask the owner of the pod why it sets the CPUs of its threads (taskset, sched_setaffinity, numactl)")},
	},
	{
		id: "scattered-cpus", severity: Warning, find: scattered, needs: []need{needConfig, needCPU, needPods},
		finds: "free CPUs on several NUMA nodes, with a topology policy that wants a pod on few: a pod of half as much again would fit if other " +
			"pods were elsewhere. Static pods and those of a DaemonSet come back on the same node, and are not counted",
		do: []step{do("Delete the named pods, if their successors may get CPUs on other NUMA nodes or on another node. 'berthctl plan defrag " +
			"--kubelet --for pod.yaml' names the pods for one that waits")},
	},
	// Settings without effect, or against each other.
	{
		id: "other-driver", severity: Warning, find: otherDriver, needs: []need{needKernel},
		finds: "a runtime with another cgroup driver than the kubelet's",
		do: []step{do("Set cgroupDriver to the runtime's (SystemdCgroup in containerd's config.toml, cgroup_manager in CRI-O's), drain the " +
			"node first"), restart},
	},
	{
		id: "topology-without-hints", severity: Warning, find: noHints, needs: []need{needConfig},
		finds: "a topology policy without a static CPU policy, a static memory policy or devices",
		do:    []step{do("Set cpuManagerPolicy to static or memoryManagerPolicy to Static, and then:"), drain(kubelet.CPU, kubelet.Memory)},
	},
	{
		id: "half-core-reserved", severity: Warning, find: halfCore, needs: []need{needConfig},
		finds: "`full-pcpus-only` with a reservation of a part of a core",
		do:    []step{do("Reserve whole cores (reservedSystemCPUs), and then:"), drain(kubelet.CPU)},
	},
	{
		id: "quota-on-exclusive-cpus", severity: Warning, find: quota, needs: []need{needConfig}, report: []string{"kubernetes#70585"},
		finds: "CPU quotas of containers with exclusive CPUs",
		do: []step{do("Set featureGates.DisableCPUQuotaWithExclusiveCPUs to true"), restart,
			do("delete the pods with exclusive CPUs: their successors have no quota")},
	},
	{
		id: "isolated-cpus-shared", severity: Warning, find: isolated, needs: []need{needConfig},
		finds: "CPUs of `isolcpus` or `nohz_full` in the shared pool",
		do: []step{do("Take isolcpus and nohz_full off the kernel's command line, or reserve these CPUs (reservedSystemCPUs) with " +
			"cpuManagerPolicyOptions strict-cpu-reservation, and then:"), drain(kubelet.CPU)},
	},
	{
		id: "reservations-apart", severity: Warning, find: apart, needs: []need{needConfig},
		finds: "reserved CPUs that are all on one NUMA node, with the reserved memory on others",
		do:    []step{do("Reserve memory of the NUMA node of the reserved CPUs (reservedMemory), and then:"), drain(kubelet.Memory)},
	},
	{
		id: "huge-pages-uneven", severity: Warning, find: unevenPages, needs: []need{needConfig},
		finds: "huge pages on only one of several NUMA nodes, with a static memory policy",
		do: []step{do("Set them on each node (/sys/devices/system/node/nodeN/hugepages/hugepages-SIZE/nr_hugepages), and then:"),
			drain(kubelet.Memory)},
	},
	{
		id: "pods-not-enforced", severity: Warning, find: unenforced, needs: []need{needConfig},
		finds: "an `enforceNodeAllocatable` without `pods`",
		do:    []step{do("Add pods to enforceNodeAllocatable, with cgroupsPerQOS"), restart},
	},
}
