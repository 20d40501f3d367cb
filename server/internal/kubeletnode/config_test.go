package kubeletnode

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/topology"
)

// document is a kubelet's configuration with some fields.
func document(fields string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + fields)}
}

func file(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }

// command is the command line of a process.
func command(args ...string) *fstest.MapFile { return file(strings.Join(args, "\x00") + "\x00") }

func TestConfigurations(t *testing.T) {
	t.Parallel()
	static := "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n"
	for name, row := range map[string]struct {
		files fstest.MapFS
		want  string // CPU policy, reserved CPUs, topology policy, directory
		err   string
	}{
		"kubeadm": {files: fstest.MapFS{"var/lib/kubelet/config.yaml": document(static)}, want: "static 0 none var/lib/kubelet"},
		"kubeadm with flags": {
			files: fstest.MapFS{
				"var/lib/kubelet/config.yaml": document(static),
				"var/lib/kubelet/kubeadm-flags.env": file(`KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///x ` +
					`--topology-manager-policy=restricted --reserved-cpus=0-1"` + "\n"),
			},
			want: "static 0-1 restricted var/lib/kubelet",
		},
		"a process": {
			files: fstest.MapFS{
				"proc/7/cmdline": command("/bin/sh", "-c", "kubelet"),
				"proc/12/cmdline": command("/usr/bin/kubelet", "--config", "/etc/k.yaml", "--root-dir=/data/kubelet",
					"--topology-manager-policy", "best-effort", "--fail-swap-on", "--v=2"),
				"etc/k.yaml":                  document(static),
				"var/lib/kubelet/config.yaml": document("cpuManagerPolicy: none\n"),
			},
			want: "static 0 best-effort data/kubelet",
		},
		"a process without a file": {
			files: fstest.MapFS{"proc/12/cmdline": command("kubelet", "--cpu-manager-policy=static", "--kube-reserved=cpu=1,memory=1Gi")},
			want:  "static  none var/lib/kubelet",
		},
		"nodeadm with drop-ins": {
			files: fstest.MapFS{
				"etc/kubernetes/kubelet/config.json":                  document(static),
				"etc/kubernetes/kubelet/config.json.d/10-policy.conf": document("topologyManagerPolicy: single-numa-node\n"),
				"etc/kubernetes/kubelet/config.json.d/20-later.conf":  document("reservedSystemCPUs: \"2\"\n"),
			},
			want: "static 2 single-numa-node var/lib/kubelet",
		},
		"a process of a pod": {
			files: fstest.MapFS{
				"proc/7/cmdline": command("kubelet", "--reserved-cpus=3"), "proc/7/cgroup": file("0::/kubepods.slice/x\n"),
				"proc/12/cmdline": command("/usr/bin/kubelet", "--config=/etc/k.yaml", "--pod-max-pids", "-1"),
				"etc/k.yaml":      document(static),
			},
			want: "static 0 none var/lib/kubelet",
		},
		"files that are no drop-ins": {
			files: fstest.MapFS{
				"proc/12/cmdline":   command("kubelet", "--config=/etc/k.yaml", "--config-dir=/etc/k.d"),
				"etc/k.yaml":        document(static),
				"etc/k.d/..data":    &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("..v1")},
				"etc/k.d/x.bak":     file("nonsense"),
				"etc/k.d/..v1/y":    file("nonsense"),
				"etc/k.d/10-x.conf": document("reservedSystemCPUs: \"4\"\n"),
			},
			want: "static 4 none var/lib/kubelet",
		},
		"k3s": {
			files: fstest.MapFS{"var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf": document(static)},
			want:  "static 0 none var/lib/kubelet",
		},
		"MicroK8s": {
			files: fstest.MapFS{
				"var/snap/microk8s/current/args/kubelet": file("# comment\n--root-dir=${SNAP_COMMON}/var/lib/kubelet\n" +
					"--cpu-manager-policy=static\n--reserved-cpus=0\n"),
			},
			want: "static 0 none var/snap/microk8s/common/var/lib/kubelet",
		},
		"nothing": {files: fstest.MapFS{"etc/passwd": file("x")}, err: "no configuration of a kubelet"},
		"a file that is missing": {
			files: fstest.MapFS{"proc/12/cmdline": command("kubelet", "--config=/etc/k.yaml")}, err: "/etc/k.yaml: file does not exist",
		},
		"a flag with a wrong value": {
			files: fstest.MapFS{"proc/12/cmdline": command("kubelet", "--max-pods=many")},
			err:   "/proc/12/cmdline: --max-pods=many: expected a number",
		},
		"another configuration": {
			files: fstest.MapFS{"var/lib/kubelet/config.yaml": file("kind: Pod\napiVersion: v1\n")}, err: "/var/lib/kubelet/config.yaml",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &reader{root: row.files}
			err := r.readConfig()
			if row.err != "" {
				if err == nil || !strings.Contains(err.Error(), row.err) {
					t.Errorf("%v, want an error with %q", err, row.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			c := r.Config
			if got := fmt.Sprintf("%s %s %s %s", c.CPU.Policy, c.Reserved.CPUs, c.Topology.Policy, r.Dir); got != row.want {
				t.Errorf("%s, want %s", got, row.want)
			}
			if c.KernelCgroups() || c.Topology.Planning != topology.ByContainer {
				t.Errorf("%s cgroups, planning %s", c.Cgroups.Tree, c.Topology.Planning)
			}
		})
	}
}

// TestFlagsOverride: each flag of the table has the effect of its field.
func TestFlagsOverride(t *testing.T) {
	t.Parallel()
	values := map[string][2]string{ // a flag, and its field
		"cgroup-driver": {"systemd", "systemd"}, "cgroup-root": {"/pods.slice", "/pods.slice"}, "cgroups-per-qos": {"false", "false"},
		"cpu-cfs-quota": {"false", "false"}, "cpu-cfs-quota-period": {"50ms", "50ms"}, "cpu-manager-policy": {"static", "static"},
		"cpu-manager-policy-options":   {"full-pcpus-only=true", `{"full-pcpus-only":"true"}`},
		"cpu-manager-reconcile-period": {"3s", "3s"},
		"enforce-node-allocatable":     {"none", `["none"]`},
		"eviction-hard":                {"memory.available<1Gi", `{"memory.available":"1Gi"}`},
		"fail-swap-on":                 {"false", "false"},
		"feature-gates":                {"MemoryQoS=true", `{"MemoryQoS":true}`},
		"kube-reserved":                {"cpu=1", `{"cpu":"1"}`},
		"kube-reserved-cgroup":         {"/kube.slice", "/kube.slice"},
		"max-pods":                     {"7", "7"},
		"memory-manager-policy":        {"None", "None"},
		"pod-max-pids":                 {"100", "100"},
		"pods-per-core":                {"5", "5"},
		"qos-reserved":                 {"memory=50%", `{"memory":"50%"}`},
		"reserved-cpus":                {"0,2", "0,2"},
		"reserved-memory": {"0:memory=1Gi;1:memory=2Gi",
			`[{"numaNode":0,"limits":{"memory":"1Gi"}},{"numaNode":1,"limits":{"memory":"2Gi"}}]`},
		"system-reserved":                 {"memory=1Gi", `{"memory":"1Gi"}`},
		"system-reserved-cgroup":          {"/system.slice", "/system.slice"},
		"topology-manager-policy":         {"restricted", "restricted"},
		"topology-manager-policy-options": {"max-allowable-numa-nodes=12", `{"max-allowable-numa-nodes":"12"}`},
		"topology-manager-scope":          {"pod", "pod"},
	}
	for name, field := range fields {
		value, ok := values[name]
		if !ok {
			t.Errorf("--%s has no row", name)
			continue
		}
		flags, err := dropInsOf([]string{"--" + name + "=" + value[0]})
		if err != nil {
			t.Errorf("--%s=%s: %v", name, value[0], err)
			continue
		}
		yaml := field.field + ": " + value[1] + "\n"
		if field.form == texts || field.form == text {
			yaml = field.field + ": " + quoted(value[1]) + "\n"
		}
		var with, from config.Config
		with, from = config.Default(), config.Default()
		main := config.File{Path: "main", Data: document("").Data}
		_, err = with.ApplyKubelets([]config.File{main}, flags)
		if _, failed := from.ApplyKubelets([]config.File{{Path: "main", Data: document(yaml).Data}},
			[]config.File{{Path: "x.conf", Data: main.Data}}); err != nil || failed != nil {
			t.Errorf("--%s: %v, %v", name, err, failed)
			continue
		}
		a, errA := with.Digest()
		b, errB := from.Digest()
		if a != b || errA != nil || errB != nil || fmt.Sprintf("%+v", with.Node) != fmt.Sprintf("%+v", from.Node) {
			t.Errorf("--%s=%s has another effect than %s", name, value[0], yaml)
		}
	}
	flags, err := dropInsOf([]string{"--feature-gates=MemoryQoS=true", "--feature-gates=PodLevelResources=false"})
	if err != nil || len(flags) != 1 || !strings.Contains(string(flags[0].Data), `"MemoryQoS":true,"PodLevelResources":false`) {
		t.Errorf("gates of two flags: %s, %v", flags, err)
	}
	if _, err := dropInsOf([]string{"--feature-gates=MemoryQoS"}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("a gate without a value: %v", err)
	}
}

// quoted is a text as JSON, unless it is that already.
func quoted(s string) string {
	if strings.HasPrefix(s, "{") {
		return s
	}
	return fmt.Sprintf("%q", s)
}
