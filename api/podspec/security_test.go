package podspec_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/berthd/berth/api/podspec"
)

func secured(t *testing.T, pod, container string) podspec.Manifest {
	t.Helper()
	return manifests(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {"+pod+" containers: [{name: c, "+container+"}]}")[0]
}

// TestSecurity merges the fields of the pod and the container.
func TestSecurity(t *testing.T) {
	t.Parallel()
	const podContext = `securityContext: {runAsNonRoot: true, seccompProfile: {type: Localhost, localhostProfile: a/b.json},
		appArmorProfile: {type: RuntimeDefault}, seLinuxOptions: {level: "s0:c1"},
		supplementalGroups: [7, 8], supplementalGroupsPolicy: Strict, fsGroup: 9,
		sysctls: [{name: net/ipv4/tcp_syncookies, value: "1"}, {name: kernel.shm_rmid_forced, value: "0"}]},`
	m := secured(t, podContext, "image: i")
	nine := int64(9)
	if want := (podspec.Shared{
		VolumeGroup: &nine, Groups: []int64{7, 8, 9}, StrictGroups: true,
		Sysctls: map[string]string{"net.ipv4.tcp_syncookies": "1", "kernel.shm_rmid_forced": "0"},
	}); !reflect.DeepEqual(m.Shared, want) || len(m.Problems)+len(m.Notes) > 0 {
		t.Errorf("%+v, %q", m.Shared, m.Problems)
	}
	if got, want := m.Launches[0].Security, (podspec.Security{
		NonRoot:  "spec.securityContext.runAsNonRoot",
		Seccomp:  &podspec.Profile{Field: "spec.securityContext.seccompProfile", Kind: "Localhost", Localhost: "a/b.json"},
		AppArmor: &podspec.Profile{Field: "spec.securityContext.appArmorProfile", Kind: "RuntimeDefault"},
		SELinux:  &podspec.SELinux{Field: "spec.securityContext.seLinuxOptions", Level: "s0:c1"},
	}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	const own = "spec.containers[0].securityContext."
	m = secured(t, podContext, `securityContext: {runAsNonRoot: false, runAsUser: 0, seccompProfile: {type: Unconfined}, appArmorProfile: {type: Localhost, localhostProfile: p},
		seLinuxOptions: {type: t}, capabilities: {add: [CAP_NET_ADMIN], drop: [all, net_raw]}}`)
	zero := int64(0)
	if got, want := m.Launches[0].Security, (podspec.Security{
		User: &zero, Add: []string{"NET_ADMIN"}, Drop: []string{"ALL", "NET_RAW"},
		Seccomp:  &podspec.Profile{Field: own + "seccompProfile", Kind: "Unconfined"},
		AppArmor: &podspec.Profile{Field: own + "appArmorProfile", Kind: "Localhost", Localhost: "p"},
		SELinux:  &podspec.SELinux{Field: own + "seLinuxOptions", Type: "t"},
	}); !reflect.DeepEqual(got, want) || len(m.Problems) > 0 {
		t.Errorf("%+v, %q", got, m.Problems)
	}
}

// TestRefusedByField: every field that berthlet does not serve is refused, with its path.
func TestRefusedByField(t *testing.T) {
	t.Parallel()
	const own = "spec.containers[0]."
	for _, row := range []struct{ pod, container, problem string }{
		{"hostUsers: false,", "", "spec.hostUsers"},
		{"hostUsers: true,", "", ""},
		{"shareProcessNamespace: true,", "", "spec.shareProcessNamespace"},
		{"securityContext: {windowsOptions: {}},", "", "spec.securityContext.windowsOptions"},
		{"securityContext: {supplementalGroupsPolicy: Some},", "", "spec.securityContext.supplementalGroupsPolicy"},
		{"securityContext: {supplementalGroups: [-1]},", "", "spec.securityContext: group -1"},
		{"securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]},", "", "spec.securityContext.sysctls[0]"},
		{"hostNetwork: true, securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]},", "",
			"spec.securityContext.sysctls[0]"},
		{"hostIPC: true, securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: '1'}]},", "", "spec.securityContext.sysctls[0]"},
		{"hostIPC: true, securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]},", "", ""},
		{"securityContext: {runAsNonRoot: true, runAsUser: 0},", "", "spec.securityContext.runAsNonRoot"},
		{"securityContext: {runAsNonRoot: true},", "securityContext: {runAsUser: 0}", "spec.securityContext.runAsNonRoot"},
		{"securityContext: {runAsNonRoot: true},", "securityContext: {runAsUser: 5}", ""},
		{"securityContext: {seccompProfile: {type: Strict}},", "", "spec.securityContext.seccompProfile.type"},
		{"securityContext: {seccompProfile: {type: Localhost}},", "", "spec.securityContext.seccompProfile.localhostProfile"},
		{"securityContext: {seccompProfile: {type: Localhost, localhostProfile: ../x}},", "",
			"spec.securityContext.seccompProfile.localhostProfile"},
		{"securityContext: {seccompProfile: {type: RuntimeDefault, localhostProfile: x}},", "",
			"spec.securityContext.seccompProfile.localhostProfile"},
		{"", "securityContext: {appArmorProfile: {type: x}}", own + "securityContext.appArmorProfile.type"},
		{"", "securityContext: {privileged: true, seccompProfile: {type: RuntimeDefault}}", own + "securityContext.seccompProfile"},
		{"", "securityContext: {privileged: true, seccompProfile: {type: Unconfined}}", ""},
		{"", "securityContext: {procMount: Unmasked}", own + "securityContext.procMount"},
		{"", "securityContext: {procMount: Default}", ""},
		{"", "securityContext: {windowsOptions: {}}", own + "securityContext.windowsOptions"},
		{"", "securityContext: {capabilities: {drop: [NET_RWA]}}", own + `securityContext.capabilities.drop[0] "NET_RWA"`},
		{"", "securityContext: {capabilities: {add: [X]}}", own + "securityContext.capabilities.add[0]"},
		{"volumes: [{name: v}],", "volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]",
			own + "volumeMounts[0].mountPropagation"},
		{"volumes: [{name: v}],", "volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled}]",
			own + "volumeMounts[0].recursiveReadOnly"},
	} {
		m := secured(t, row.pod, row.container)
		if got := strings.Join(m.Problems, "\n"); !strings.HasPrefix(got, row.problem) || (got == "") != (row.problem == "") {
			t.Errorf("%s %s: problems %q, want %q", row.pod, row.container, got, row.problem)
		}
	}
	former := manifests(t,
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {container.apparmor.security.beta.kubernetes.io/c: runtime/default}}\nspec: {containers: [{name: c}]}")[0]
	if len(former.Problems) != 1 || !strings.Contains(former.Problems[0], "use the field appArmorProfile") {
		t.Errorf("%q", former.Problems)
	}
	m := secured(t, "securityContext: {seccompProfile: {type: RuntimeDefault}},", "securityContext: {privileged: true}")
	if len(m.Problems) > 0 || len(m.Notes) != 1 || !strings.Contains(m.Notes[0],
		"spec.securityContext.seccompProfile does not hold for spec.containers[0]") {
		t.Errorf("%q, %q", m.Problems, m.Notes)
	}
}
