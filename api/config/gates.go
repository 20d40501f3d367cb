package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fixedGate is a feature gate of the kubelet about berth's job that changes nothing
// here.
type fixedGate struct {
	// on is berth's behaviour, independent of the gate.
	on bool
	// does reports what that is.
	does string
}

// fixedGates are the gates of Kubernetes 1.37 about CPUs, memory, devices, cgroups and
// podresources that a kubelet's file may set and berth has no setting for. Locked gates are
// omitted: a kubelet refuses other values itself.
var fixedGates = map[string]fixedGate{
	"CustomCPUCFSQuotaPeriod":                      {true, "cpuCFSQuotaPeriod is used as it is set"},
	"DRAExtendedResource":                          {false, "extended resources come from device plugins and hint providers alone"},
	"DRANodeAllocatableResources":                  {false, "dra.from decides whether claims get allocatable resources"},
	"DynamicResourceAllocation":                    {false, "pods get no dynamic resources (resourceClaims)"},
	"InPlacePodLevelResourcesVerticalScaling":      {true, "pod-level resources can be resized in place"},
	"InPlacePodVerticalScalingInitContainers":      {true, "ordinary init containers can be resized in place"},
	"InPlacePodVerticalScalingMemoryBackedVolumes": {false, "a resize does not change volumes"},
	"KubeletPodResourcesDynamicResources":          {true, "podresources reports the dynamic resources of a container"},
	"KubeletPodResourcesGet":                       {true, "podresources serves Get"},
	"KubeletAllocatedPodsEndpoint":                 {false, "berthctl get pods lists the pods that are admitted"},
	"HugepageAwareEviction":                        {false, "no pod is evicted"},
	"PodAndContainerStatsFromCRI":                  {false, "GetUsage reads cgroups"},
	"KubeletInUserNamespace":                       {false, "kernel settings are as kernelTunables of berth's own file says"},
	"KubeletPodResourcesListUseActivePods":         {true, "podresources lists the pods that are admitted"},
	"PodLevelResourcesFixKubeletQOSClass":          {true, "a pod with empty pod-level resources has the class of its containers"},
	"QOSReserved":                                  {true, "qosReserved is used as it is set"},
	"TopologyManagerPolicyAlphaOptions":            {true, "all options of the topology manager's policies can be used"},
	"TopologyManagerPolicyBetaOptions":             {true, "all options of the topology manager's policies can be used"},
	"TopologyManagerPolicyOptions":                 {true, "all options of the topology manager's policies can be used"},
	"WindowsCPUAndMemoryAffinity":                  {false, "there are cgroups only, which Windows does not have"},
	"ResourceHealthStatus":                         {true, "the health of devices is reported"},
}

// gateNotes names the gates of a kubelet's file for berth's features that differ from berth's
// behaviour.
func gateNotes(gates map[string]bool) (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		fixed, ok := fixedGates[name]
		if !ok && strings.HasPrefix(name, "DRA") {
			fixed, ok = fixedGates["DynamicResourceAllocation"], true
		}
		if ok && gates[name] != fixed.on {
			notes = append(notes, fmt.Sprintf("featureGates.%s: %v has no effect: in berth %s", name, gates[name], fixed.does))
		}
	}
	return notes
}
