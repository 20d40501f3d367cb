package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// idleSamples has for each idle field a file in which it changes nothing, and the notes of
// that file but for the field's.
var idleSamples = map[string]struct{ rest, line string }{
	"containerRuntimeEndpoint":         {"", "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock"},
	"runtimeRequestTimeout":            {"", "runtimeRequestTimeout: 1m"},
	"cpuCFSQuotaPeriod":                {"cpuCFSQuota: false\n", "cpuCFSQuotaPeriod: 10ms"},
	"evictionSoft":                     {"", "evictionSoft: {memory.available: 1Gi}"},
	"evictionSoftGracePeriod":          {"", "evictionSoftGracePeriod: {memory.available: 1m}"},
	"evictionPressureTransitionPeriod": {"", "evictionPressureTransitionPeriod: 1m"},
	"evictionMaxPodGracePeriod":        {"", "evictionMaxPodGracePeriod: 5"},
	"evictionMinimumReclaim":           {"", "evictionMinimumReclaim: {memory.available: 1Gi}"},
	"kernelMemcgNotification":          {"", "kernelMemcgNotification: true"},
	"kubeReservedCgroup":               {"", "kubeReservedCgroup: /kube"},
	"memoryThrottlingFactor":           {"featureGates: {MemoryQoS: false}\n", "memoryThrottlingFactor: 0.9"},
	"podPidsLimit":                     {"cgroupsPerQOS: false\nenforceNodeAllocatable: []\n", "podPidsLimit: 100"},
	"qosReserved":                      {"cgroupsPerQOS: false\nenforceNodeAllocatable: []\n", "qosReserved: {memory: 50%}"},
	"reservedMemory":                   {"", "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]"},
	"showHiddenMetricsForVersion":      {"", "showHiddenMetricsForVersion: \"1.35\""},
	"systemReservedCgroup":             {"", "systemReservedCgroup: /system"},
}

const kubeletHead = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// TestIdleFields: a field that changes nothing is noted, each by its name, and one that
// is not there is not.
func TestIdleFields(t *testing.T) {
	t.Parallel()
	for _, f := range idleFields {
		sample, ok := idleSamples[f.name]
		if !ok {
			t.Errorf("no sample has %s", f.name)
			continue
		}
		apply := func(text string) (c Config, about []string) {
			c = Default()
			notes, err := c.ApplyKubelet("k", []byte(kubeletHead+text))
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			for _, n := range notes {
				if strings.Contains(n, "k: "+f.name+" has no effect on any pod: ") {
					about = append(about, n)
				}
			}
			return c, about
		}
		_, about := apply(sample.rest + sample.line + "\n")
		if len(about) != 1 {
			t.Errorf("%s: notes %q", sample.line, about)
		}
		if _, about := apply(sample.rest); len(about) != 0 {
			t.Errorf("%s is noted and not there: %q", f.name, about)
		}
	}
}

// TestFieldsThatHaveAnEffectAreNotNoted: the same fields where they change something.
func TestFieldsThatHaveAnEffectAreNotNoted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"cpuCFSQuotaPeriod: 10ms\n", "enforceNodeAllocatable: [kube-reserved-compressible]\nkubeReservedCgroup: /kube\n",
		"enforceNodeAllocatable: [system-reserved]\nsystemReservedCgroup: /system\n", "memoryThrottlingFactor: 0.8\n",
		"podPidsLimit: 100\nqosReserved: {memory: 50%}\n",
		"memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\n",
		"evictionHard: {memory.available: 1Gi, nodefs.available: 5%}\n",
		"featureGates: {DRAAdminAccess: false, TopologyManagerPolicyBetaOptions: true}\n",
	} {
		c := Default()
		notes, err := c.ApplyKubelet("k", []byte(kubeletHead+text))
		if err != nil || len(notes) != 0 {
			t.Errorf("%q: notes %q, %v", text, notes, err)
		}
		if reflect.DeepEqual(c, func() Config { d := Default(); _, _ = d.ApplyKubelet("k", []byte(kubeletHead)); return d }()) &&
			!strings.Contains(text, "DRA") {
			t.Errorf("%q changes nothing", text)
		}
	}
}

// TestIdleSignalsAndGates: what else of a file requests what berth does not do.
func TestIdleSignalsAndGates(t *testing.T) {
	t.Parallel()
	c := Default()
	notes, err := c.ApplyKubelet("k", []byte(kubeletHead+
		"evictionHard: {memory.available: 1Gi, imagefs.available: 5%, pid.available: 10%}\nfeatureGates: {DRAPartitionableDevices: true, KubeletPodResourcesGet: false, SomethingElse: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"k: evictionHard: imagefs.available, pid.available has no effect", "k: featureGates.DRAPartitionableDevices: true has no effect",
		"k: featureGates.KubeletPodResourcesGet: false has no effect",
	} {
		if !slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, want) }) {
			t.Errorf("no note says %q: %q", want, notes)
		}
	}
	if len(notes) != 3 {
		t.Errorf("notes: %q", notes)
	}
}
