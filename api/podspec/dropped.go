package podspec

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Why a field of a pod is not converted. None of these decides the placement on a node.
const (
	forScheduler = "the scheduler's"
	forAgent     = "the agent's"
	forRuntime   = "the runtime's"
)

// droppedFromPod and droppedFromContainer list by Go name every field that FromPod does not
// convert. A test compares them with the types of k8s.io/api.
var (
	droppedFromPod = map[string]string{
		"NodeSelector": forScheduler, "Affinity": forScheduler, "SchedulerName": forScheduler, "Tolerations": forScheduler,
		"TopologySpreadConstraints": forScheduler, "PreemptionPolicy": forScheduler, "SchedulingGates": forScheduler,
		"SchedulingGroup": forScheduler, "EvictionResponders": forScheduler,

		"ActiveDeadlineSeconds": forAgent, "ReadinessGates": forAgent, "ServiceAccountName": forAgent,
		"DeprecatedServiceAccount": forAgent, "AutomountServiceAccountToken": forAgent, "EnableServiceLinks": forAgent,
		"ImagePullSecrets": forAgent, "Volumes": forAgent,

		"DNSPolicy": forRuntime, "DNSConfig": forRuntime, "Hostname": forRuntime, "HostnameOverride": forRuntime, "Subdomain": forRuntime,
		"SetHostnameAsFQDN": forRuntime, "HostAliases": forRuntime, "HostUsers": forRuntime, "ShareProcessNamespace": forRuntime,
		"SecurityContext": forRuntime,
	}
	droppedFromContainer = map[string]string{
		"Ports": forAgent, "LivenessProbe": forAgent, "ReadinessProbe": forAgent, "StartupProbe": forAgent, "Lifecycle": forAgent,
		"ImagePullPolicy": forAgent, "RestartPolicyRules": forAgent, "TerminationMessagePath": forAgent,
		"TerminationMessagePolicy": forAgent,

		"Command": forRuntime, "Args": forRuntime, "WorkingDir": forRuntime, "EnvFrom": forRuntime, "Env": forRuntime,
		"VolumeMounts": forRuntime, "VolumeDevices": forRuntime, "SecurityContext": forRuntime,
		"Stdin": forRuntime, "StdinOnce": forRuntime, "TTY": forRuntime,
	}
)

// Dropped lists the fields of a pod's specification that are set and that FromPod does not
// convert, by path ("spec.containers[0].env"), ordered.
func Dropped(p *corev1.Pod) []string {
	out := dropped("spec", reflect.ValueOf(p.Spec), droppedFromPod)
	for name, list := range map[string][]corev1.Container{"initContainers": p.Spec.InitContainers, "containers": p.Spec.Containers} {
		for i := range list {
			out = append(out, dropped(fmt.Sprintf("spec.%s[%d]", name, i), reflect.ValueOf(list[i]), droppedFromContainer)...)
		}
	}
	slices.Sort(out)
	return out
}

func dropped(path string, object reflect.Value, fields map[string]string) (out []string) {
	for name := range maps.Keys(fields) {
		if !object.FieldByName(name).IsZero() {
			out = append(out, path+"."+jsonName(object.Type(), name))
		}
	}
	return out
}

func jsonName(t reflect.Type, field string) string {
	f, _ := t.FieldByName(field)
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
