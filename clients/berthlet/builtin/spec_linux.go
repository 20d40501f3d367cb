package builtin

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/image"
	"github.com/berthd/berth/managers/errdefs"
)

// defaultPath is the search path of programs if the image has none.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// defaultCapabilities are the capabilities that container runtimes commonly give to root in a
// container, without container.Undefaulted.
var defaultCapabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
	"CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// Parts of /proc and /sys that reveal or change the machine.
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// ociSpec builds a container's OCI runtime specification (config.md, config-linux.md). known are
// the capabilities of this kernel and process, user runs the program, and namespaces has the
// sandbox's paths by type.
func ociSpec(s container.Spec, img image.Image, known []string, user specs.User,
	namespaces map[specs.LinuxNamespaceType]string) (*specs.Spec, error) {
	args, err := arguments(s, img)
	if err != nil {
		return nil, err
	}
	held := capabilities(s, known)
	out := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: rootDir, Readonly: s.ReadOnlyRoot},
		Process: &specs.Process{
			User: user, Args: args, Env: environment(s, img), Cwd: cmp.Or(s.Dir, img.Dir, "/"),
			NoNewPrivileges: s.NoNewPrivileges,
			Capabilities:    &specs.LinuxCapabilities{Bounding: held, Permitted: held, Effective: held},
		},
		Mounts:      mounts(s),
		Annotations: s.Annotations,
		Linux: &specs.Linux{
			CgroupsPath:       s.CgroupPath,
			Namespaces:        spaces(s, namespaces),
			RootfsPropagation: "rslave",
			Sysctl:            s.Sysctls,
			Resources:         &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: s.Privileged, Access: "rwm"}}},
		},
	}
	if user.UID != 0 {
		out.Process.Capabilities = &specs.LinuxCapabilities{Bounding: held}
	}
	if !s.Privileged {
		out.Linux.MaskedPaths, out.Linux.ReadonlyPaths = maskedPaths, readonlyPaths
	}
	return out, nil
}

// arguments gives the command line, by Kubernetes' rules for command and args.
func arguments(s container.Spec, img image.Image) ([]string, error) {
	args := slices.Concat(img.Entrypoint, img.Cmd)
	switch {
	case len(s.Command) > 0:
		args = slices.Concat(s.Command, s.Args)
	case len(s.Args) > 0:
		args = slices.Concat(img.Entrypoint, s.Args)
	}
	if len(args) == 0 {
		return nil, errdefs.Invalidf("container %s: the image names no program, so the manifest has to: expected a command", s.Name)
	}
	return args, nil
}

// environment gives the variables; the last of a name is the one that counts.
func environment(s container.Spec, img image.Image) []string {
	env := []string{defaultPath}
	env = append(env, img.Env...)
	for _, v := range s.Env {
		env = append(env, v.Name+"="+v.Value)
	}
	last := map[string]int{}
	for i, v := range env {
		name, _, _ := strings.Cut(v, "=")
		last[name] = i
	}
	var out []string
	for i, v := range env {
		if name, _, _ := strings.Cut(v, "="); last[name] == i {
			out = append(out, v)
		}
	}
	return out
}

// capabilities returns the container's capabilities, of those that are known.
func capabilities(s container.Spec, known []string) []string {
	if s.Privileged {
		return known
	}
	full := func(name string) string { return "CAP_" + strings.TrimPrefix(strings.ToUpper(name), "CAP_") }
	held := map[string]bool{}
	for _, name := range defaultCapabilities {
		held[name] = true
	}
	for _, list := range []struct {
		names []string
		value bool
	}{{s.Drop, false}, {s.Add, true}} {
		// "ALL" comes first, so that one name can be an exception to it.
		if slices.Contains(list.names, "ALL") {
			for _, name := range known {
				held[name] = list.value
			}
		}
		for _, name := range list.names {
			held[full(name)] = list.value
		}
	}
	if slices.Contains(s.Add, "ALL") {
		for _, name := range s.Drop {
			held[full(name)] = false
		}
	}
	return slices.DeleteFunc(slices.Clone(known), func(name string) bool { return !held[name] })
}

// spaces gives the container's namespaces: its own, and the sandbox's.
func spaces(s container.Spec, sandbox map[specs.LinuxNamespaceType]string) []specs.LinuxNamespace {
	out := []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.CgroupNamespace}}
	if !s.HostPID {
		out = append(out, specs.LinuxNamespace{Type: specs.PIDNamespace})
	}
	for _, kind := range sandboxTypes {
		if path, ok := sandbox[kind]; ok {
			out = append(out, specs.LinuxNamespace{Type: kind, Path: path})
		}
	}
	return out
}

// mounts gives what appears in every container, and what the spec adds.
func mounts(s container.Spec) []specs.Mount {
	access := "ro"
	if s.Privileged {
		access = "rw"
	}
	out := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666",
			"mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", access}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"nosuid", "noexec", "nodev", "relatime", access}},
	}
	if s.HostIPC {
		out[3] = specs.Mount{Destination: "/dev/shm", Type: "bind", Source: "/dev/shm",
			Options: []string{"rbind", "nosuid", "noexec", "nodev"}}
	}
	for _, m := range s.Mounts {
		options := []string{"rbind", "rprivate", "rw"}
		if m.ReadOnly {
			options[2] = "ro"
		}
		out = append(out, specs.Mount{Destination: filepath.Clean(m.Path), Type: "bind", Source: m.HostPath, Options: options})
	}
	return out
}
