package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	kubelet "k8s.io/kubelet/config/v1beta1"

	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/node"
)

// idleField is a field of a KubeletConfiguration for a feature of berth that has no effect here,
// or none with the other fields.
type idleField struct {
	name string
	// set reports whether a file has it and it has no effect; why is the explanation.
	set func(*kubelet.KubeletConfiguration) bool
	why string
}

const (
	whyEviction = "berth evicts no pod; of the eviction settings only evictionHard counts, as a reservation"
	whyNoCgroup = "pods have no cgroups while cgroupsPerQOS is false"
)

// noPodCgroups reports whether pods have cgroups of their own.
func noPodCgroups(k *kubelet.KubeletConfiguration) bool {
	return k.CgroupsPerQOS != nil && !*k.CgroupsPerQOS
}

// idleFields are in the order of the notes.
var idleFields = []idleField{
	{"containerRuntimeEndpoint", func(k *kubelet.KubeletConfiguration) bool { return k.ContainerRuntimeEndpoint != "" },
		"runtimeEndpoint of berth's own file (--runtime-endpoint) says which runtime makes the containers"},
	{"runtimeRequestTimeout", func(k *kubelet.KubeletConfiguration) bool { return k.RuntimeRequestTimeout.Duration != 0 },
		"calls of a container runtime may take 10s"},
	{"cpuCFSQuotaPeriod", func(k *kubelet.KubeletConfiguration) bool {
		return k.CPUCFSQuotaPeriod != nil && k.CPUCFSQuota != nil && !*k.CPUCFSQuota
	}, "there are no quotas while cpuCFSQuota is false"},
	{"evictionSoft", func(k *kubelet.KubeletConfiguration) bool { return len(k.EvictionSoft) > 0 }, whyEviction},
	{"evictionSoftGracePeriod", func(k *kubelet.KubeletConfiguration) bool { return len(k.EvictionSoftGracePeriod) > 0 }, whyEviction},
	{"evictionPressureTransitionPeriod",
		func(k *kubelet.KubeletConfiguration) bool { return k.EvictionPressureTransitionPeriod.Duration != 0 }, whyEviction},
	{"evictionMaxPodGracePeriod", func(k *kubelet.KubeletConfiguration) bool { return k.EvictionMaxPodGracePeriod != 0 }, whyEviction},
	{"evictionMinimumReclaim", func(k *kubelet.KubeletConfiguration) bool { return len(k.EvictionMinimumReclaim) > 0 }, whyEviction},
	{"kernelMemcgNotification", func(k *kubelet.KubeletConfiguration) bool { return k.KernelMemcgNotification }, whyEviction},
	{"kubeReservedCgroup", func(k *kubelet.KubeletConfiguration) bool {
		return k.KubeReservedCgroup != "" && !enforces(k, node.EnforceKube, node.EnforceKubeCompressible)
	}, "it gets no limits, since enforceNodeAllocatable has no key kube-reserved"},
	{"memoryThrottlingFactor", func(k *kubelet.KubeletConfiguration) bool {
		on, given := k.FeatureGates["MemoryQoS"]
		return k.MemoryThrottlingFactor != nil && given && !on
	}, "it needs the feature gate MemoryQoS"},
	{"podPidsLimit", func(k *kubelet.KubeletConfiguration) bool {
		return k.PodPidsLimit != nil && *k.PodPidsLimit > 0 && noPodCgroups(k)
	}, whyNoCgroup},
	{"qosReserved", func(k *kubelet.KubeletConfiguration) bool { return len(k.QOSReserved) > 0 && noPodCgroups(k) }, whyNoCgroup},
	{"reservedMemory", func(k *kubelet.KubeletConfiguration) bool {
		return len(k.ReservedMemory) > 0 && (k.MemoryManagerPolicy == "" || k.MemoryManagerPolicy == memory.PolicyNone)
	}, "memoryManagerPolicy is None"},
	{"showHiddenMetricsForVersion", func(k *kubelet.KubeletConfiguration) bool { return k.ShowHiddenMetricsForVersion != "" },
		"berth hides no metrics"},
	{"systemReservedCgroup", func(k *kubelet.KubeletConfiguration) bool {
		return k.SystemReservedCgroup != "" && !enforces(k, node.EnforceSystem, node.EnforceSystemCompressible)
	}, "it gets no limits, since enforceNodeAllocatable has no key system-reserved"},
}

func enforces(k *kubelet.KubeletConfiguration, keys ...string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { return slices.Contains(k.EnforceNodeAllocatable, key) })
}

// idleNotes names the fields of a kubelet's file that are about berth's job and change
// nothing, and the feature gates that request something else than berth does.
func idleNotes(k *kubelet.KubeletConfiguration) (notes []string) {
	for _, f := range idleFields {
		if f.set(k) {
			notes = append(notes, fmt.Sprintf("%s has no effect on any pod: %s", f.name, f.why))
		}
	}
	var signals []string
	for _, signal := range slices.Sorted(maps.Keys(k.EvictionHard)) {
		if node.KeepsNothing(signal) {
			signals = append(signals, signal)
		}
	}
	if len(signals) > 0 {
		notes = append(notes, fmt.Sprintf("evictionHard: %s has no effect: %s, and these signals reserve nothing that pods can request",
			strings.Join(signals, ", "), whyEviction))
	}
	return append(notes, gateNotes(k.FeatureGates)...)
}
