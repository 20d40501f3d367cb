package podspec

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// Manifest is a pod with what an agent needs to run it.
type Manifest struct {
	// Pod is the pod of the request to berthd.
	Pod *typesv1.Pod
	// Document is the Kubernetes pod as JSON; Decode and DecodeManifests read it. Equal pods have equal documents.
	Document []byte
	// Hostname is what the pod calls itself: spec.hostname, else its name, cut to 63 characters.
	Hostname string
	// Volumes are those that an agent without an API server can give.
	Volumes []Volume
	// Shared is what the containers of the pod have in common.
	Shared Shared
	// Launches holds the init containers and then the others, each group in its order.
	Launches []Launch
	// Problems name what the pod cannot run without and an agent cannot give. A pod with problems is not run.
	Problems []string
	// Notes name what the pod requests and does not get, though it can run.
	Notes []string
}

// Volume is a folder that containers of a pod can mount.
type Volume struct {
	Name string
	// HostPath is the folder or file of the machine; empty for a volume that begins empty and goes with the pod.
	HostPath string
}

// Launch reports how a container is started.
type Launch struct {
	Name, Image string
	// Pull is imagePullPolicy as the manifest has it: "Always", "IfNotPresent",
	// "Never" or empty.
	Pull string
	// Init is true for init containers, sidecars included.
	Init bool
	// RestartPolicy is the container's own, else the pod's; "Always" for a sidecar.
	RestartPolicy string
	// Command and Args replace the image's entry point and its arguments, as in Kubernetes; references $(NAME) are replaced.
	Command, Args []string
	// Env holds variables in their order.
	Env []Variable
	// WorkingDir is empty for the image's.
	WorkingDir string
	Mounts     []VolumeMount
	Security   Security
}

// Variable is an environment variable.
type Variable struct{ Name, Value string }

// VolumeMount puts a volume at a path of a container.
type VolumeMount struct {
	Volume, Path string
	// SubPath is a path within the volume; empty for the whole volume.
	SubPath  string
	ReadOnly bool
}

// DecodeManifests reads every pod of a YAML or JSON text as Decode does, with what it takes to run it. A field that is not
// understood is a problem: it may be one that was to confine the pod, spelled otherwise. An error names such fields, too.
func DecodeManifests(r io.Reader, o Options) ([]Manifest, error) {
	var out []Manifest
	var ignored []string
	notify := o.Ignored
	o.Ignored = func(pod, what string) {
		if ignored = append(ignored, "pod "+pod+": "+what); notify != nil {
			notify(pod, what)
		}
	}
	o.whole = func(p *corev1.Pod, m *typesv1.Pod, unknown []string) error {
		manifest, err := manifestOf(p, m)
		if err == nil {
			for _, field := range unknown {
				manifest.problem("%s: expected a field of a pod, in the same upper and lower case", field)
			}
			out = append(out, manifest)
		}
		return err
	}
	if _, err := Decode(r, o); err != nil {
		if len(ignored) > 0 {
			err = fmt.Errorf("%w (and %s)", err, strings.Join(ignored, "; "))
		}
		return nil, err
	}
	return out, nil
}

// manifestOf reads a pod that was converted to m.
func manifestOf(p *corev1.Pod, m *typesv1.Pod) (Manifest, error) {
	if err := checkNames(p, m); err != nil {
		return Manifest{}, fmt.Errorf("pod %s: %w", title(p.Namespace, p.Name), err)
	}
	whole := p.DeepCopy()
	whole.Namespace, whole.UID = m.GetMetadata().GetNamespace(), typesUID(m.GetMetadata().GetUid())
	whole.TypeMeta.Kind, whole.TypeMeta.APIVersion = "Pod", "v1"
	document, err := json.Marshal(whole)
	if err != nil {
		return Manifest{}, fmt.Errorf("pod %s: %w", title(p.Namespace, p.Name), err)
	}
	out := Manifest{Pod: m, Document: document, Hostname: p.Spec.Hostname}
	if out.Hostname == "" {
		out.Hostname = p.Name[:min(len(p.Name), 63)]
	}
	out.Volumes = out.volumes(p.Spec.Volumes)
	for _, list := range []struct {
		name string
		init bool
		of   []corev1.Container
	}{{"initContainers", true, p.Spec.InitContainers}, {"containers", false, p.Spec.Containers}} {
		for i := range list.of {
			out.Launches = append(out.Launches, out.launch(whole, &list.of[i], list.init, fmt.Sprintf("spec.%s[%d]", list.name, i)))
		}
	}
	out.share(p)
	return out, nil
}

// checkNames refuses names that could not be those of files: an agent keeps what belongs to a pod under them.
func checkNames(p *corev1.Pod, m *typesv1.Pod) error {
	type named struct{ field, name string }
	names := []named{
		{"metadata.uid", m.GetMetadata().GetUid()}, {"metadata.namespace", m.GetMetadata().GetNamespace()}, {"metadata.name", p.Name},
	}
	for i, v := range p.Spec.Volumes {
		names = append(names, named{fmt.Sprintf("spec.volumes[%d].name", i), v.Name})
	}
	for i, c := range p.Spec.InitContainers {
		names = append(names, named{fmt.Sprintf("spec.initContainers[%d].name", i), c.Name})
	}
	for i, c := range p.Spec.Containers {
		names = append(names, named{fmt.Sprintf("spec.containers[%d].name", i), c.Name})
	}
	for _, n := range names {
		if n.name == "." || n.name == ".." || strings.ContainsAny(n.name, "/\x00") || len(n.name) > 253 {
			return fmt.Errorf("%s %.140q: expected at most 253 characters without a slash, and something else than dots", n.field, n.name)
		}
	}
	return nil
}

func (m *Manifest) problem(format string, args ...any) {
	m.Problems = append(m.Problems, fmt.Sprintf(format, args...))
}

func (m *Manifest) note(format string, args ...any) {
	m.Notes = append(m.Notes, fmt.Sprintf(format, args...))
}

func (m *Manifest) volumes(list []corev1.Volume) []Volume {
	var out []Volume
	for i, v := range list {
		switch {
		case v.HostPath != nil:
			out = append(out, Volume{Name: v.Name, HostPath: v.HostPath.Path})
		case v.VolumeSource == (corev1.VolumeSource{}), // the API server's default
			v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault:
			out = append(out, Volume{Name: v.Name})
		default:
			m.problem("spec.volumes[%d] %q: expected hostPath, or emptyDir of the default medium", i, v.Name)
		}
	}
	return out
}

// launch reads a container; at is its path.
func (m *Manifest) launch(p *corev1.Pod, c *corev1.Container, init bool, at string) Launch {
	out := Launch{
		Name: c.Name, Image: c.Image, Pull: string(c.ImagePullPolicy), Init: init, WorkingDir: c.WorkingDir,
		RestartPolicy: restartPolicy(p, c, init), Security: m.security(p.Spec.SecurityContext, c, at),
	}
	for i, e := range c.Env {
		value, ok := variable(p, &e)
		if !ok {
			m.problem("%s.env[%d] %q: expected a value, or a fieldRef to metadata", at, i, e.Name)
		}
		out.Env = append(out.Env, Variable{e.Name, expand(value, out.Env)})
	}
	if len(c.EnvFrom) > 0 {
		m.problem("%s.envFrom: config maps and secrets need an API server", at)
	}
	for _, arg := range c.Command {
		out.Command = append(out.Command, expand(arg, out.Env))
	}
	for _, arg := range c.Args {
		out.Args = append(out.Args, expand(arg, out.Env))
	}
	for i, vm := range c.VolumeMounts {
		if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == vm.Name }) {
			m.problem("%s.volumeMounts[%d]: there is no volume %q", at, i, vm.Name)
		}
		sub := cmp.Or(vm.SubPath, expand(vm.SubPathExpr, out.Env))
		if sub != "" && !filepath.IsLocal(sub) {
			m.problem("%s.volumeMounts[%d]: %q: expected a path within the volume", at, i, sub)
		}
		if vm.MountPropagation != nil && *vm.MountPropagation != corev1.MountPropagationNone {
			m.problem("%s.volumeMounts[%d].mountPropagation: mounts that are made later are not passed on; expected None", at, i)
		}
		if vm.RecursiveReadOnly != nil && *vm.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled {
			m.problem("%s.volumeMounts[%d].recursiveReadOnly: only the volume itself is mounted read-only, not what is mounted below it; expected Disabled or IfPossible", at, i)
		}
		out.Mounts = append(out.Mounts, VolumeMount{Volume: vm.Name, Path: vm.MountPath, SubPath: sub, ReadOnly: vm.ReadOnly})
	}
	m.noteIgnored(c, at)
	return out
}

// noteIgnored reports fields of a container that no agent of berth serves.
func (m *Manifest) noteIgnored(c *corev1.Container, at string) {
	for _, ignored := range []struct {
		field string
		there bool
	}{
		{"livenessProbe", c.LivenessProbe != nil},
		{"readinessProbe", c.ReadinessProbe != nil},
		{"startupProbe", c.StartupProbe != nil},
		{"lifecycle", c.Lifecycle != nil},
		{"volumeDevices", len(c.VolumeDevices) > 0},
		{"restartPolicyRules", len(c.RestartPolicyRules) > 0},
		{"tty", c.TTY}, {"stdin", c.Stdin},
	} {
		if ignored.there {
			m.note("%s.%s is ignored", at, ignored.field)
		}
	}
}

func restartPolicy(p *corev1.Pod, c *corev1.Container, init bool) string {
	policy := p.Spec.RestartPolicy
	if c.RestartPolicy != nil {
		return string(*c.RestartPolicy)
	}
	// An init container that has succeeded is not restarted, whatever the pod's policy is.
	if init && policy != corev1.RestartPolicyNever {
		return string(corev1.RestartPolicyOnFailure)
	}
	if policy == "" {
		policy = corev1.RestartPolicyAlways
	}
	return string(policy)
}
