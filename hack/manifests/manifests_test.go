package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/berthd/berth/hack/testing/nodetest"
)

const root = "../../"

var programs = nodetest.NewPrograms(map[string]string{"berthd": "server/berthd", "berth-nri": "clients/nri", "berth-dra": "clients/dra"})

func TestMain(m *testing.M) {
	code := m.Run()
	programs.Remove()
	os.Exit(code)
}

// objects are what a kustomization makes.
type objects struct {
	namespaces []*corev1.Namespace
	accounts   []*corev1.ServiceAccount
	maps       []*corev1.ConfigMap
	sets       []*appsv1.DaemonSet
	classes    []*resourcev1.DeviceClass

	policies       []*admissionv1.ValidatingAdmissionPolicy
	policyBindings []*admissionv1.ValidatingAdmissionPolicyBinding
	// Rules by kind, namespace and name of their role; subjects by the same key.
	rules    map[string][]rbacv1.PolicyRule
	subjects map[string][]rbacv1.Subject
	secrets  []*corev1.Secret
	monitors []*podMonitor
}

// observing is the overlay for nodes whose kubelets decide. It stands for itself.
const observing = "observe"

// kustomizations are the directories of deploy/kubernetes that are to be applied where berth decides.
func kustomizations(t *testing.T) []string {
	t.Helper()
	overlays, err := filepath.Glob(root + "deploy/kubernetes/overlays/*")
	if err != nil || len(overlays) == 0 {
		t.Fatalf("no overlays: %v", err)
	}
	overlays = slices.DeleteFunc(overlays, func(dir string) bool { return filepath.Base(dir) == observing })
	return append([]string{root + "deploy/kubernetes"}, overlays...)
}

// kustomize is the program, built once.
var kustomize = sync.OnceValues(func() (string, error) {
	dir, err := programs.Dir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kustomize")
	cmd := exec.Command("go", "build", "-modfile="+filepath.Join("hack", "tools", "kustomize", "go.mod"), "-o", path,
		"sigs.k8s.io/kustomize/kustomize/v5")
	cmd.Dir = root
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	return path, nil
})

// build makes the objects of a kustomization.
func build(t *testing.T, dir string) *objects {
	t.Helper()
	return parse(t, dir, buildText(t, dir))
}

// buildText is the output of kustomize.
func buildText(t *testing.T, dir string) []byte {
	t.Helper()
	program, err := kustomize()
	if err != nil {
		t.Fatalf("build kustomize: %v", err)
	}
	var errs bytes.Buffer
	cmd := exec.Command(program, "build", dir)
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("kustomize build %s: %v: %s", dir, err, &errs)
	}
	return text
}

// parse decodes objects. A field that the types do not have is an error.
func parse(t *testing.T, name string, text []byte) *objects {
	t.Helper()
	o := &objects{rules: map[string][]rbacv1.PolicyRule{}, subjects: map[string][]rbacv1.Subject{}}
	for _, document := range documents(t, text) {
		if err := o.add(document); err != nil {
			t.Fatalf("%s: %v:\n%s", name, err, document)
		}
	}
	return o
}

// documents splits YAML.
func documents(t *testing.T, text []byte) (all [][]byte) {
	t.Helper()
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, document)
	}
}

// add decodes an object.
func (o *objects) add(document []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "v1 Namespace":
		return decode(document, &o.namespaces)
	case "v1 ServiceAccount":
		return decode(document, &o.accounts)
	case "v1 ConfigMap":
		return decode(document, &o.maps)
	case "v1 Secret":
		return decode(document, &o.secrets)
	case "monitoring.coreos.com/v1 PodMonitor":
		return decode(document, &o.monitors)
	case "apps/v1 DaemonSet":
		return decode(document, &o.sets)
	case "resource.k8s.io/v1 DeviceClass":
		return decode(document, &o.classes)
	case "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy":
		return decode(document, &o.policies)
	case "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding":
		return decode(document, &o.policyBindings)
	case "rbac.authorization.k8s.io/v1 ClusterRole":
		var r rbacv1.ClusterRole
		err := yaml.UnmarshalStrict(document, &r)
		o.rules["ClusterRole "+r.Name] = r.Rules
		return err
	case "rbac.authorization.k8s.io/v1 Role":
		var r rbacv1.Role
		err := yaml.UnmarshalStrict(document, &r)
		o.rules["Role "+r.Namespace+" "+r.Name] = r.Rules
		return err
	case "rbac.authorization.k8s.io/v1 ClusterRoleBinding":
		var b rbacv1.ClusterRoleBinding
		err := yaml.UnmarshalStrict(document, &b)
		o.subjects[b.RoleRef.Kind+" "+b.RoleRef.Name] = b.Subjects
		return err
	case "rbac.authorization.k8s.io/v1 RoleBinding":
		var b rbacv1.RoleBinding
		err := yaml.UnmarshalStrict(document, &b)
		o.subjects[b.RoleRef.Kind+" "+b.Namespace+" "+b.RoleRef.Name] = b.Subjects
		return err
	}
	return fmt.Errorf("an object of %s %s is not expected here", kind.APIVersion, kind.Kind)
}

func decode[T any](document []byte, list *[]*T) error {
	var one T
	if err := yaml.UnmarshalStrict(document, &one); err != nil {
		return err
	}
	*list = append(*list, &one)
	return nil
}

// TestObjects: the objects of each kustomization fit together.
func TestObjects(t *testing.T) {
	t.Parallel()
	for _, dir := range kustomizations(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			checkObjects(t, build(t, dir))
		})
	}
}

// checkObjects checks that objects fit together.
func checkObjects(t *testing.T, o *objects) {
	t.Helper()
	reader := o.takeReader()
	if len(o.namespaces) != 1 || len(o.accounts) != 1 || len(o.maps) != 1 || len(o.sets) != 1 {
		t.Fatalf("%d namespaces, %d service accounts, %d ConfigMaps, %d DaemonSets, expected one of each", len(o.namespaces),
			len(o.accounts), len(o.maps), len(o.sets))
	}
	set, account := o.sets[0], o.accounts[0]
	for what, namespace := range map[string]string{"the service account": account.Namespace, "the ConfigMap": o.maps[0].Namespace,
		"the DaemonSet": set.Namespace} {
		if namespace != o.namespaces[0].Name {
			t.Errorf("%s is in the namespace %q, and the namespace is %q", what, namespace, o.namespaces[0].Name)
		}
	}
	for role := range o.rules {
		name := account.Name
		if role == "ClusterRole "+metricsReader {
			name = metricsReader
		}
		if s := o.subjects[role]; len(s) != 1 || s[0] != (rbacv1.Subject{Kind: "ServiceAccount", Name: name,
			Namespace: account.Namespace}) {
			t.Errorf("%s is bound to %v", role, s)
		}
	}
	if len(o.subjects) != len(o.rules) {
		t.Errorf("%d bindings of %d roles", len(o.subjects), len(o.rules))
	}
	if len(o.policies) != len(o.policyBindings) {
		t.Errorf("%d bindings of %d policies", len(o.policyBindings), len(o.policies))
	}
	for i, p := range o.policies {
		user := fmt.Sprintf("%q", "system:serviceaccount:"+account.Namespace+":"+account.Name)
		if o.policyBindings[i].Spec.PolicyName != p.Name || !strings.HasSuffix(p.Spec.MatchConditions[0].Expression, user) {
			t.Errorf("the policy %s is not bound, or not for %s: %+v", p.Name, user, p.Spec.MatchConditions)
		}
	}
	checkPod(t, set, account.Name, o.maps[0].Name)
	checkMonitors(t, o, reader)
}

// metricsReader is the service account whose token reads the metrics.
const metricsReader = "berth-metrics-reader"

// takeReader removes that account from the others, and returns it.
func (o *objects) takeReader() (reader *corev1.ServiceAccount) {
	o.accounts = slices.DeleteFunc(o.accounts, func(a *corev1.ServiceAccount) bool {
		if a.Name == metricsReader {
			reader = a
		}
		return a.Name == metricsReader
	})
	return reader
}

// podMonitor is the part of such an object that is used.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port, Path, Scheme string
			Authorization      struct{ Credentials corev1.SecretKeySelector }
			TLSConfig          struct {
				CA         struct{ Secret corev1.SecretKeySelector }
				ServerName string `json:"serverName"`
			} `json:"tlsConfig"`
			Relabelings []struct {
				TargetLabel, Replacement string
				SourceLabels             []string
			}
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// checkMonitors checks that what Prometheus reads is what berth-nri serves, with a token that may get it and nothing else.
func checkMonitors(t *testing.T, o *objects, reader *corev1.ServiceAccount) {
	t.Helper()
	nri := o.container(t, "berth-nri")
	serves := slices.ContainsFunc(nri.Args, func(arg string) bool { return strings.HasPrefix(arg, "--metrics-address=") })
	if (len(o.monitors) == 1) != serves || serves != (reader != nil) || len(o.secrets) != len(o.monitors) {
		t.Fatalf("berth-nri serves metrics: %v; %d PodMonitors, the reader %v, %d secrets", serves, len(o.monitors), reader, len(o.secrets))
	}
	if !serves {
		return
	}
	token, jobs := o.secrets[0], []string{}
	if token.Type != corev1.SecretTypeServiceAccountToken || token.Annotations[corev1.ServiceAccountNameKey] != reader.Name ||
		reader.Namespace != token.Namespace {
		t.Errorf("the token is %+v, of %+v", token, reader)
	}
	m := o.monitors[0]
	for key, value := range m.Spec.Selector.MatchLabels {
		if o.sets[0].Spec.Template.Labels[key] != value {
			t.Errorf("the PodMonitor selects %s=%s", key, value)
		}
	}
	rules := o.rules["ClusterRole "+metricsReader]
	for _, e := range m.Spec.Endpoints {
		port := slices.IndexFunc(nri.Ports, func(p corev1.ContainerPort) bool { return p.Name == e.Port })
		if port < 0 || !slices.Contains(nri.Args, fmt.Sprintf("--metrics-address=[$(NODE_ADDRESS)]:%d", nri.Ports[port].ContainerPort)) ||
			e.Scheme != "https" {
			t.Errorf("endpoint %+v is not where berth-nri serves: %v", e, nri.Args)
		}
		if len(rules) != 1 || !slices.Contains(rules[0].NonResourceURLs, e.Path) || !slices.Equal(rules[0].Verbs, []string{"get"}) ||
			len(rules[0].Resources) > 0 {
			t.Errorf("the reader's rights are %v, and the path is %s", rules, e.Path)
		}
		if name, other := strings.CutPrefix(e.Path, "/metrics/"); other &&
			!slices.Contains(nri.Args, "--metrics-sockets="+name+"=/run/berth/http.sock") {
			t.Errorf("nothing serves %s: %v", e.Path, nri.Args)
		}
		if e.Authorization.Credentials.Name != token.Name || e.TLSConfig.ServerName == "" || e.TLSConfig.CA.Secret.Name != "berth-metrics" {
			t.Errorf("endpoint %s is read with %+v, %+v", e.Path, e.Authorization, e.TLSConfig)
		}
		for _, r := range e.Relabelings {
			if r.TargetLabel == "job" {
				jobs = append(jobs, r.Replacement)
			}
		}
	}
	if !slices.Equal(jobs, []string{"berth-nri", "berth"}) {
		t.Errorf("the jobs are %q, and the rules expect berth and berth-nri", jobs)
	}
	if !strings.Contains(o.maps[0].Data["berthd.yaml"], "\nhttp: unix:///run/berth/http.sock ") {
		t.Error("berthd does not serve its metrics at the socket")
	}
}

// checkPod checks what the DaemonSet's template says of other objects and of itself.
func checkPod(t *testing.T, set *appsv1.DaemonSet, account, configuration string) {
	t.Helper()
	pod := set.Spec.Template.Spec
	for key, value := range set.Spec.Selector.MatchLabels {
		if set.Spec.Template.Labels[key] != value {
			t.Errorf("the selector %s=%s does not choose the template", key, value)
		}
	}
	if pod.ServiceAccountName != account {
		t.Errorf("the service account is %q", pod.ServiceAccountName)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = false
		if v.ConfigMap != nil && v.ConfigMap.Name != configuration {
			t.Errorf("volume %s is the ConfigMap %q, and the configuration is %q", v.Name, v.ConfigMap.Name, configuration)
		}
	}
	// The pod has the network and the processes of the node, and nothing else of it. What only containers are
	// checked for must not be in another kind of container.
	if pod.HostIPC || pod.HostUsers != nil || len(pod.EphemeralContainers) > 0 {
		t.Errorf("the pod has the node's IPC (%v), a setting of users (%v), or containers that are not checked (%d)", pod.HostIPC,
			pod.HostUsers, len(pod.EphemeralContainers))
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, m := range c.VolumeMounts {
			if _, ok := volumes[m.Name]; !ok {
				t.Errorf("container %s mounts volume %q, which the pod does not have", c.Name, m.Name)
			}
			volumes[m.Name] = true
		}
		if _, tag, _ := strings.Cut(c.Image, ":"); tag != version(t) {
			t.Errorf("container %s has the image %s, and the version is %s", c.Name, c.Image, version(t))
		}
		s := c.SecurityContext
		if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil ||
			!*s.ReadOnlyRootFilesystem ||
			s.Privileged != nil || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("container %s has more privileges than it needs: %+v", c.Name, s)
		}
	}
	checkProbes(t, pod)
	for name, used := range volumes {
		if !used {
			t.Errorf("no container mounts volume %s", name)
		}
	}
}

// checkProbes checks that the kubelet probes every container by a program of its own: other users of the node can take a port, or all
// connections of one. A probe that must end is given up by itself before the kubelet gives it up.
func checkProbes(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	for _, c := range pod.InitContainers {
		if c.StartupProbe != nil || c.ReadinessProbe != nil || c.LivenessProbe != nil || c.RestartPolicy != nil {
			t.Errorf("init container %s is probed, or is a sidecar", c.Name)
		}
	}
	for _, c := range pod.Containers {
		program := "/usr/bin/" + c.Name
		for kind, probe := range map[string]*corev1.Probe{"ready": c.ReadinessProbe, "live": c.LivenessProbe} {
			if probe == nil || probe.Exec == nil || !slices.Equal(probe.Exec.Command, []string{program, "probe", kind}) {
				t.Errorf("container %s has no probe with %s probe %s", c.Name, program, kind)
				continue
			}
			if probe.PeriodSeconds != 30 || probe.TimeoutSeconds != 10 || probe.FailureThreshold != 3 {
				t.Errorf("container %s is probed (%s) every %d s with %d s and %d failures, expected 30, 10 and 3", c.Name, kind,
					probe.PeriodSeconds, probe.TimeoutSeconds, probe.FailureThreshold)
			}
		}
	}
}

func version(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(root + "api/version/VERSION")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// container returns a container of the DaemonSet.
func (o *objects) container(t *testing.T, name string) corev1.Container {
	t.Helper()
	for _, c := range o.sets[0].Spec.Template.Spec.Containers {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("the DaemonSet has no container %s", name)
	return corev1.Container{}
}

// kubeletConfig is what a node's kubelet must at least reserve, claimsConfig with the overlay dra, and poolConfig with
// dra-allocatable.
const (
	// unreserved is a kubelet's configuration with kubeadm's defaults.
	unreserved    = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	kubeletConfig = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nreservedSystemCPUs: \"0\"\n"
	claimsConfig  = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nreservedSystemCPUs: \"0-7\"\nsystemReserved: {memory: 18Gi}\n"
	poolConfig    = kubeletConfig + "systemReserved: {memory: 2Gi}\nfeatureGates: {DRANodeAllocatableResources: true}\n"
)

// TestFlagsAndConfiguration: the programs have the flags, and berthd would start with the configuration on a
// node whose kubelet reserves a CPU, and with the base on one that reserves none.
func TestFlagsAndConfiguration(t *testing.T) {
	t.Parallel()
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range kustomizations(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			checkPrograms(t, built, build(t, dir))
		})
	}
}

// checkPrograms checks the flags of the containers, and the configuration, with the programs.
func checkPrograms(t *testing.T, built string, o *objects) {
	t.Helper()
	temp := t.TempDir()
	kubelet := kubeletConfig
	if len(o.classes) > 0 {
		kubelet = claimsConfig
	}
	if strings.Contains(o.maps[0].Data["berthd.yaml"], "from: allocatable") {
		kubelet = poolConfig
	}
	for name, text := range map[string]string{"berthd.yaml": o.maps[0].Data["berthd.yaml"], "kubelet.yaml": kubelet} {
		if err := os.WriteFile(filepath.Join(temp, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dropIns := t.TempDir()
	if err := os.WriteFile(filepath.Join(dropIns, "00.conf"), []byte(kubelet), 0o600); err != nil {
		t.Fatal(err)
	}
	berthd, nri := o.container(t, "berthd"), o.container(t, "berth-nri")
	var args []string
	for _, arg := range berthd.Args {
		arg = strings.Replace(arg, "/etc/berth", temp, 1)
		arg = strings.Replace(arg, "/var/lib/kubelet/conf.d", dropIns, 1)
		args = append(args, strings.Replace(arg, "/var/lib/kubelet/config.yaml", temp+"/kubelet.yaml", 1))
	}
	run(t, filepath.Join(built, "berthd"), append([]string{"config", "validate", "--machine", "2s2n4c2t"}, args...)...)
	if kubelet == kubeletConfig {
		for _, path := range []string{filepath.Join(temp, "kubelet.yaml"), filepath.Join(dropIns, "00.conf")} {
			if err := os.WriteFile(path, []byte(unreserved), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		run(t, filepath.Join(built, "berthd"), append([]string{"config", "validate", "--machine", "2s2n4c2t"}, args...)...)
	}
	dump := run(t, filepath.Join(built, "berthd"), append([]string{"config", "dump"}, args...)...)
	for _, want := range []string{"beside: kubelet\n", "stateDir: /var/lib/berth\n", "listen: /run/berth/berth.sock\n",
		"policy: static\n"} {
		if !strings.Contains(dump, want) {
			t.Errorf("the configuration lacks %q:\n%s", want, dump)
		}
	}
	// A flag that is not known comes before the help.
	run(t, filepath.Join(built, "berth-nri"), append(slices.Clone(nri.Args), "--help")...)
	if len(o.classes) > 0 {
		dra := o.container(t, "berth-dra")
		run(t, filepath.Join(built, "berth-dra"), append(slices.Clone(dra.Args), "--help")...)
		if !slices.Contains(dra.Args, "--health-socket=/run/berth/berth-dra.health") {
			t.Errorf("berth-dra is probed at another socket than it serves: %v", dra.Args)
		}
	}
	if !slices.Contains(nri.Args, "--health-socket=/run/berth/berth-nri.health") {
		t.Errorf("berth-nri is probed at another socket than it serves: %v", nri.Args)
	}
	for _, name := range []string{"berthd", "berth-nri"} {
		run(t, filepath.Join(built, name), "probe", "ready", "--help")
	}
	checkChecks(t, built, o)
	if set := o.sets[0]; !slices.Contains(nri.Args, "--daemon-set=$(POD_NAMESPACE)/"+set.Name) {
		t.Errorf("berth-nri looks for another DaemonSet than %s: %v", set.Name, nri.Args)
	}
}

// checkChecks checks that the containers before the start check what the others run with, and that berth-nri reads what they find.
func checkChecks(t *testing.T, built string, o *objects) {
	t.Helper()
	init := map[string]corev1.Container{}
	for _, c := range o.sets[0].Spec.Template.Spec.InitContainers {
		init[c.Name] = c
	}
	berthd, nri, check := o.container(t, "berthd"), o.container(t, "berth-nri"), init["check-berthd"]
	if want := append([]string{"config", "validate"}, berthd.Args...); check.Image != berthd.Image || len(check.Args) != len(want)+1 ||
		!slices.Equal(check.Args[:len(want)], want) {
		t.Errorf("%v of %s is checked, and %v of %s runs", check.Args, check.Image, berthd.Args, berthd.Image)
	}
	if init["check-node"].Image != nri.Image {
		t.Errorf("the node is checked by %s, and %s runs", init["check-node"].Image, nri.Image)
	}
	var reports []string
	for _, name := range []string{"check-berthd", "check-node"} {
		c := init[name]
		last := ""
		for _, arg := range c.Args {
			if files, ok := strings.CutPrefix(arg, "--report="); ok {
				last = files
			}
		}
		message, file, ok := strings.Cut(last, ",")
		if !ok || message != "/dev/termination-log" {
			t.Errorf("%s reports to %q, expected the message of the container, and a file", name, last)
		}
		reports = append(reports, file)
	}
	if want := "--check-reports=" + strings.Join(reports, ","); !slices.Contains(nri.Args, want) {
		t.Errorf("berth-nri reads other reports than %s: %v", want, nri.Args)
	}
	args := append(slices.Clone(init["check-node"].Args), "--help")
	run(t, filepath.Join(built, "berth-nri"), args...)
}

// run runs a program that must succeed.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	text, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", filepath.Base(program), strings.Join(args, " "), err, text)
	}
	return string(text)
}

// TestObserving: the overlay for nodes whose kubelets decide has rights to read only, and berthd takes its flags and its configuration.
func TestObserving(t *testing.T) {
	t.Parallel()
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	o := build(t, root+"deploy/kubernetes/overlays/"+observing)
	if len(o.namespaces) != 1 || len(o.accounts) != 1 || len(o.maps) != 1 || len(o.sets) != 1 || len(o.policies) != 0 {
		t.Fatalf("objects: %+v", o)
	}
	set := o.sets[0]
	checkPod(t, set, o.accounts[0].Name, o.maps[0].Name)
	pod := set.Spec.Template.Spec
	if len(pod.Containers) != 1 || len(pod.InitContainers) != 0 || pod.HostNetwork || pod.HostPID {
		t.Errorf("the pod has other containers, or the node's network or processes: %+v", pod)
	}
	for role, rules := range o.rules {
		for _, r := range rules {
			if !slices.Equal(r.Verbs, []string{"get"}) || !slices.Equal(r.Resources, []string{"nodes/configz", "nodes/pods"}) {
				t.Errorf("%s gives %+v", role, r)
			}
		}
		if s := o.subjects[role]; len(s) != 1 || s[0].Name != o.accounts[0].Name || s[0].Namespace != set.Namespace {
			t.Errorf("%s is bound to %v", role, s)
		}
	}
	of := map[string]*corev1.HostPathVolumeSource{}
	for _, v := range pod.Volumes {
		of[v.Name] = v.HostPath
	}
	berthd := pod.Containers[0]
	if len(berthd.SecurityContext.Capabilities.Add) > 0 {
		t.Errorf("capabilities: %v", berthd.SecurityContext.Capabilities.Add)
	}
	for _, m := range berthd.VolumeMounts {
		host := of[m.Name]
		if host == nil {
			continue
		}
		if !m.ReadOnly || m.RecursiveReadOnly == nil || *m.RecursiveReadOnly != corev1.RecursiveReadOnlyIfPossible ||
			m.MountPath != "/host"+host.Path {
			t.Errorf("the volume %s is mounted so: %+v", m.Name, m)
		}
	}
	temp := t.TempDir()
	if err := os.WriteFile(filepath.Join(temp, "berthd.yaml"), []byte(o.maps[0].Data["berthd.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	dump := []string{"config", "dump"}
	for _, arg := range berthd.Args {
		arg = strings.Replace(arg, "/etc/berth", temp, 1)
		arg = strings.Replace(arg, "$(NODE_ADDRESS)", "10.0.0.1", 1)
		dump = append(dump, strings.Replace(arg, "$(NODE_NAME)", "node", 1))
	}
	text := run(t, filepath.Join(built, "berthd"), dump...)
	for _, want := range []string{"root: /host\n", "kubelet: 10.0.0.1\n", "nodeName: node\n", "listen: /run/berth/berth.sock\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the configuration lacks %q:\n%s", want, text)
		}
	}
}

// TestOverlaysDiffer: each overlay changes something of the base, so none is a copy.
func TestOverlaysDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, dir := range kustomizations(t) {
		o := build(t, dir)
		text, err := yaml.Marshal([]any{o.maps[0].Data, o.sets[0].Spec})
		if err != nil {
			t.Fatal(err)
		}
		if other, same := seen[string(text)]; same {
			t.Errorf("%s makes the same objects as %s", dir, other)
		}
		seen[string(text)] = dir
	}
}

// TestDocs: docs/kubernetes.md lists every right, capability, volume of the node and overlay.
func TestDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(root + "docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	has := func(what, word string) {
		t.Helper()
		if !strings.Contains(string(text), "`"+word+"`") {
			t.Errorf("docs/kubernetes.md does not have %s `%s`", what, word)
		}
	}
	for _, dir := range kustomizations(t) {
		o := build(t, dir)
		for _, v := range o.sets[0].Spec.Template.Spec.Volumes {
			if v.HostPath != nil {
				has("the volume", v.HostPath.Path)
			}
		}
		for _, rules := range o.rules {
			for _, r := range rules {
				for _, resource := range r.Resources {
					has("the right", strings.Join(r.Verbs, ", ")+" "+resource)
				}
			}
		}
	}
	o := build(t, root+"deploy/kubernetes")
	pod := o.sets[0].Spec.Template.Spec
	for _, c := range pod.Containers {
		for _, capability := range c.SecurityContext.Capabilities.Add {
			has("the capability", "CAP_"+string(capability))
		}
	}
	for _, dir := range kustomizations(t)[1:] {
		has("the overlay", filepath.Base(dir))
	}
	for key := range o.sets[0].Spec.Template.Annotations {
		has("the annotation", key)
	}
}
