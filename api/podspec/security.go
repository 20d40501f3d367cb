package podspec

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Security limits what a container may do, and names the user that it runs as.
type Security struct {
	// User and Group are nil for the image's.
	User, Group *int64
	// NonRoot is the field that forbids to run as user 0; empty if none does.
	NonRoot    string
	Privileged bool
	// ReadOnlyRoot makes the root file system read-only.
	ReadOnlyRoot bool
	// NoNewPrivileges forbids to gain privileges by execve(2).
	NoNewPrivileges bool
	// Add and Drop name capabilities without "CAP_"; "ALL" is all of them.
	Add, Drop []string
	// Seccomp and AppArmor are profiles that confine the container, SELinux is the label of its processes; nil if none is
	// requested.
	Seccomp, AppArmor *Profile
	SELinux           *SELinux
}

// Profile is a profile of seccomp or AppArmor.
type Profile struct {
	// Field is the path of the field that requests it.
	Field string
	// Kind is "RuntimeDefault", "Unconfined" or "Localhost", which has a name on the node.
	Kind, Localhost string
}

// SELinux is a label.
type SELinux struct {
	// Field is the path of the field that requests it.
	Field                   string
	User, Role, Type, Level string
}

// Shared holds what the containers of a pod have in common.
type Shared struct {
	// VolumeGroup owns the volumes that begin empty; nil for no group.
	VolumeGroup *int64
	// Groups are those that processes have in addition to their user's, the volumes' included; with StrictGroups they
	// have no others.
	Groups       []int64
	StrictGroups bool
	// Sysctls are parameters of the kernel in the pod's own namespaces.
	Sysctls map[string]string
}

// capabilities are those of capabilities(7).
var capabilities = strings.Fields(`
	AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER
	FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE MKNOD NET_ADMIN NET_BIND_SERVICE
	NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE
	SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM ALL`)

// safeSysctls are those that the kubelet allows by default: they hold in a namespace of the pod's, and do no
// harm to others.
var safeSysctls = strings.Fields(`
	kernel.shm_rmid_forced net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports net.ipv4.ip_unprivileged_port_start
	net.ipv4.ping_group_range net.ipv4.tcp_fin_timeout net.ipv4.tcp_keepalive_intvl net.ipv4.tcp_keepalive_probes
	net.ipv4.tcp_keepalive_time net.ipv4.tcp_rmem net.ipv4.tcp_syncookies net.ipv4.tcp_wmem`)

// formerFields are the beginnings of annotations that confined containers before there were fields for that.
var formerFields = map[string]string{
	"container.apparmor.security.beta.kubernetes.io/": "appArmorProfile",
	"container.seccomp.security.alpha.kubernetes.io/": "seccompProfile",
	"seccomp.security.alpha.kubernetes.io/":           "seccompProfile",
}

// share reads what the containers have in common, and refuses what no agent of berth gives.
func (m *Manifest) share(pod *corev1.Pod) {
	for _, name := range slices.Sorted(maps.Keys(pod.Annotations)) {
		for prefix, field := range formerFields {
			if strings.HasPrefix(name, prefix) {
				m.problem("metadata.annotations[%s] is not read; use the field %s of a securityContext", name, field)
			}
		}
	}
	spec := &pod.Spec
	if spec.HostUsers != nil && !*spec.HostUsers {
		m.problem("spec.hostUsers: user namespaces are not supported; leave the field out, and give the containers a runAsUser")
	}
	if spec.ShareProcessNamespace != nil && *spec.ShareProcessNamespace {
		m.problem("spec.shareProcessNamespace is not supported: each container has processes of its own; leave it out, or set hostPID")
	}
	c := spec.SecurityContext
	if c == nil {
		return
	}
	if c.WindowsOptions != nil {
		m.problem("spec.securityContext.windowsOptions: containers run on Linux; leave it out")
	}
	m.Shared.Groups = slices.Clone(c.SupplementalGroups)
	if c.FSGroup != nil {
		m.Shared.VolumeGroup = c.FSGroup
		m.Shared.Groups = append(m.Shared.Groups, *c.FSGroup)
	}
	for i, gid := range m.Shared.Groups {
		if gid < 0 || gid > 1<<31-1 {
			m.problem("spec.securityContext: group %d (number %d of supplementalGroups and fsGroup): expected 0 to 2147483647", gid, i)
		}
	}
	if p := c.SupplementalGroupsPolicy; p != nil {
		switch *p {
		case corev1.SupplementalGroupsPolicyMerge:
		case corev1.SupplementalGroupsPolicyStrict:
			m.Shared.StrictGroups = true
		default:
			m.problem("spec.securityContext.supplementalGroupsPolicy %q: expected Merge or Strict", *p)
		}
	}
	for i, s := range c.Sysctls {
		name := strings.ReplaceAll(s.Name, "/", ".")
		switch {
		case !slices.Contains(safeSysctls, name):
			m.problem("spec.securityContext.sysctls[%d] %q is not one of the safe ones: %s", i, s.Name, strings.Join(safeSysctls, ", "))
		case spec.HostNetwork && strings.HasPrefix(name, "net."), spec.HostIPC && strings.HasPrefix(name, "kernel.shm"):
			m.problem("spec.securityContext.sysctls[%d] %q would hold for the whole machine, since the pod has hostNetwork or hostIPC; set it on the machine", i, s.Name)
		default:
			if m.Shared.Sysctls == nil {
				m.Shared.Sysctls = map[string]string{}
			}
			m.Shared.Sysctls[name] = s.Value
		}
	}
}

// security merges the pod's settings with the container's, which win; at is the container's path.
func (m *Manifest) security(pod *corev1.PodSecurityContext, container *corev1.Container, at string) Security {
	const podPath = "spec.securityContext"
	var out Security
	c, path := container.SecurityContext, at+".securityContext"
	if pod != nil {
		out.User, out.Group = pod.RunAsUser, pod.RunAsGroup
		out.NonRoot = nonRoot(pod.RunAsNonRoot, podPath, "")
		out.Seccomp = m.seccomp(pod.SeccompProfile, podPath)
		out.AppArmor = m.appArmor(pod.AppArmorProfile, podPath)
		out.SELinux = seLinux(pod.SELinuxOptions, podPath)
	}
	if c != nil {
		m.own(&out, c, path)
	}
	if out.NonRoot != "" && out.User != nil && *out.User == 0 {
		m.problem("%s and runAsUser 0 of %s contradict each other: choose another user, or leave runAsNonRoot out", out.NonRoot, at)
	}
	if out.Privileged && out.Seccomp != nil && out.Seccomp.Kind != "Unconfined" {
		if strings.HasPrefix(out.Seccomp.Field, at) {
			m.problem("%s: a privileged container has no seccomp profile; leave out one of the two", out.Seccomp.Field)
		} else {
			m.note("%s does not hold for %s, which is privileged", out.Seccomp.Field, at)
		}
		out.Seccomp = nil
	}
	return out
}

// own reads the container's own fields.
func (m *Manifest) own(out *Security, c *corev1.SecurityContext, path string) {
	if c.WindowsOptions != nil {
		m.problem("%s.windowsOptions: containers run on Linux; leave it out", path)
	}
	if c.ProcMount != nil && *c.ProcMount != corev1.DefaultProcMount {
		m.problem("%s.procMount %q is not supported; expected Default", path, *c.ProcMount)
	}
	if c.RunAsUser != nil {
		out.User = c.RunAsUser
	}
	if c.RunAsGroup != nil {
		out.Group = c.RunAsGroup
	}
	out.NonRoot = nonRoot(c.RunAsNonRoot, path, out.NonRoot)
	out.Privileged = c.Privileged != nil && *c.Privileged
	out.ReadOnlyRoot = c.ReadOnlyRootFilesystem != nil && *c.ReadOnlyRootFilesystem
	out.NoNewPrivileges = c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation
	if c.Capabilities != nil {
		out.Add = m.capabilities(c.Capabilities.Add, path+".capabilities.add")
		out.Drop = m.capabilities(c.Capabilities.Drop, path+".capabilities.drop")
	}
	if c.SeccompProfile != nil {
		out.Seccomp = m.seccomp(c.SeccompProfile, path)
	}
	if c.AppArmorProfile != nil {
		out.AppArmor = m.appArmor(c.AppArmorProfile, path)
	}
	if c.SELinuxOptions != nil {
		out.SELinux = seLinux(c.SELinuxOptions, path)
	}
}

// nonRoot gives the field that forbids root; otherwise is what it was before.
func nonRoot(value *bool, path, otherwise string) string {
	switch {
	case value == nil:
		return otherwise
	case *value:
		return path + ".runAsNonRoot"
	}
	return ""
}

// capabilities returns names alike. One that does not exist is refused: a misspelt drop would leave the container what it
// is not to have.
func (m *Manifest) capabilities(names []corev1.Capability, path string) (out []string) {
	for i, name := range names {
		upper := strings.TrimPrefix(strings.ToUpper(string(name)), "CAP_")
		if !slices.Contains(capabilities, upper) {
			m.problem("%s[%d] %q is no capability: expected a name of capabilities(7), or ALL", path, i, name)
		}
		out = append(out, upper)
	}
	return out
}

func (m *Manifest) seccomp(p *corev1.SeccompProfile, path string) *Profile {
	if p == nil {
		return nil
	}
	return m.profile(string(p.Type), p.LocalhostProfile, path+".seccompProfile", true)
}

func (m *Manifest) appArmor(p *corev1.AppArmorProfile, path string) *Profile {
	if p == nil {
		return nil
	}
	return m.profile(string(p.Type), p.LocalhostProfile, path+".appArmorProfile", false)
}

// profile reads a profile; file is true for a profile of the node that is named by a path.
func (m *Manifest) profile(kind string, localhost *string, field string, file bool) *Profile {
	out := &Profile{Field: field, Kind: kind}
	if localhost != nil {
		out.Localhost = *localhost
	}
	switch kind {
	case "RuntimeDefault", "Unconfined":
		if localhost != nil {
			m.problem("%s.localhostProfile: only type Localhost has one", field)
		}
	case "Localhost":
		if out.Localhost == "" || file && !filepath.IsLocal(out.Localhost) {
			m.problem("%s.localhostProfile %q: expected the name of a profile of this machine", field, out.Localhost)
		}
	default:
		m.problem("%s.type %q: expected RuntimeDefault, Unconfined or Localhost", field, kind)
	}
	return out
}

func seLinux(o *corev1.SELinuxOptions, path string) *SELinux {
	if o == nil || *o == (corev1.SELinuxOptions{}) {
		return nil
	}
	return &SELinux{Field: path + ".seLinuxOptions", User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}
