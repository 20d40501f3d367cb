package cri

import (
	"context"
	"os"
	"slices"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/managers/errdefs"
)

// Parts of /proc and /sys that reveal or change the machine. A runtime hides only the requested
// parts.
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// security sets a container's privileges and user. A setting that the runtime would ignore is an
// error.
func (r *Runtime) security(ctx context.Context, s container.Spec, image *criv1.Image) (*criv1.LinuxContainerSecurityContext, error) {
	out := &criv1.LinuxContainerSecurityContext{
		Capabilities: &criv1.Capability{AddCapabilities: s.Add, DropCapabilities: drop(s)},
		Privileged:   s.Privileged, ReadonlyRootfs: s.ReadOnlyRoot, NoNewPrivs: s.NoNewPrivileges,
		NamespaceOptions: namespaces(s.HostNetwork, s.HostPID, s.HostIPC),
		Apparmor:         appArmor(s.AppArmor),
	}
	if err := asUser(out, s, image); err != nil {
		return nil, err
	}
	var err error
	if out.SupplementalGroups, out.SupplementalGroupsPolicy, err = r.groups(ctx, s.Groups, s.StrictGroups); err != nil {
		return nil, err
	}
	if out.Seccomp, err = seccomp(s); err != nil {
		return nil, err
	}
	if l := s.SELinux; l != nil {
		out.SelinuxOptions = &criv1.SELinuxOption{User: l.User, Role: l.Role, Type: l.Type, Level: l.Level}
	}
	if !s.Privileged {
		out.MaskedPaths, out.ReadonlyPaths = maskedPaths, readonlyPaths
	}
	return out, nil
}

// drop returns the capabilities to drop. They include those that runtimes give by default and
// berthlet only on request.
func drop(s container.Spec) []string {
	out := s.Drop
	if s.Privileged || slices.Contains(s.Drop, "ALL") || slices.Contains(s.Add, "ALL") {
		return out
	}
	for _, name := range container.Undefaulted {
		if !slices.Contains(s.Add, name) && !slices.Contains(s.Drop, name) {
			out = append(slices.Clip(out), name)
		}
	}
	return out
}

// asUser sets the container's user. A runtime requires a user with a group: the image's user, not
// root.
func asUser(out *criv1.LinuxContainerSecurityContext, s container.Spec, image *criv1.Image) error {
	if s.Group != nil {
		out.RunAsGroup = &criv1.Int64Value{Value: *s.Group}
	}
	switch {
	case s.User != nil:
		out.RunAsUser = &criv1.Int64Value{Value: *s.User}
	case image.GetUid() != nil && (s.Group != nil || s.NonRoot != ""):
		out.RunAsUser = &criv1.Int64Value{Value: image.GetUid().GetValue()}
	case image.GetUsername() != "" && s.Group != nil:
		out.RunAsUsername = image.GetUsername()
	case s.Group != nil:
		out.RunAsUser = &criv1.Int64Value{}
	}
	if s.NonRoot == "" {
		return nil
	}
	switch {
	case out.RunAsUser.GetValue() != 0:
		return nil
	case out.RunAsUser == nil && image.GetUsername() != "":
		return errdefs.PermissionDeniedf("%s: image %s names user %q, which may be root; set runAsUser to a number", s.NonRoot, s.Image,
			image.GetUsername())
	}
	return errdefs.PermissionDeniedf("%s: the container would run as root; set runAsUser to the number of another user", s.NonRoot)
}

// groups returns the supplementary groups. A runtime's status shows whether it supports the
// policy Strict. Without that support it would silently merge the groups.
func (r *Runtime) groups(ctx context.Context, gids []int64, strict bool) ([]int64, criv1.SupplementalGroupsPolicy, error) {
	if !strict {
		return gids, criv1.SupplementalGroupsPolicy_Merge, nil
	}
	status, err := r.cri.Status(ctx, &criv1.StatusRequest{})
	if err == nil && !status.GetFeatures().GetSupplementalGroupsPolicy() {
		err = errdefs.Unsupportedf("spec.securityContext.supplementalGroupsPolicy: the container runtime does not support Strict; leave it out, or use containerd 2 or later")
	}
	return gids, criv1.SupplementalGroupsPolicy_Strict, err
}

// seccomp gives the profile. A runtime reads a profile's file when it starts the
// container; that it is there is looked at here.
func seccomp(s container.Spec) (*criv1.SecurityProfile, error) {
	switch kind := s.Seccomp.Kind; {
	case kind == container.Unconfined, s.Privileged:
		return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_Unconfined}, nil
	case kind == container.Localhost:
		if info, err := os.Stat(s.Seccomp.Localhost); err != nil || !info.Mode().IsRegular() {
			return nil, errdefs.Preconditionf("%s: there is no file %s: put the profile there, or use RuntimeDefault", s.Seccomp.Field,
				s.Seccomp.Localhost)
		}
		return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_Localhost, LocalhostRef: s.Seccomp.Localhost}, nil
	}
	return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_RuntimeDefault}, nil
}

// appArmor gives the profile; nil leaves it to the runtime, which confines where it
// can.
func appArmor(p container.Profile) *criv1.SecurityProfile {
	switch p.Kind {
	case container.RuntimeDefault:
		return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_RuntimeDefault}
	case container.Unconfined:
		return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_Unconfined}
	case container.Localhost:
		return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_Localhost, LocalhostRef: p.Localhost}
	}
	return nil
}
