package agent

import (
	"fmt"
	"path/filepath"

	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berthlet/container"
)

// unenforced names the pod's security settings that the runtime or the machine does not support.
// Without this check the pod would run unprotected and unnoticed.
func unenforced(m podspec.Manifest, f container.Features) (problems []string) {
	named := map[string]bool{} // a field of the pod is named once
	add := func(field, what string) {
		if !named[field] {
			named[field] = true
			problems = append(problems, fmt.Sprintf("%s: %s", field, what))
		}
	}
	for _, l := range m.Launches {
		if p := l.Security.AppArmor; p != nil && p.Kind != string(container.Unconfined) && !f.AppArmor {
			add(p.Field, "AppArmor profiles take a container runtime (--runtime-endpoint) and a kernel with AppArmor; leave it out, or use a seccompProfile")
		}
		if s := l.Security.SELinux; s != nil && !f.SELinux {
			add(s.Field, "SELinux labels take a container runtime (--runtime-endpoint) and a machine with SELinux; leave it out")
		}
	}
	return problems
}

// secure sets a container's privileges and user.
func secure(out *container.Spec, shared podspec.Shared, s podspec.Security, profiles string) {
	out.User, out.Group, out.NonRoot = s.User, s.Group, s.NonRoot
	out.Groups, out.StrictGroups, out.Sysctls = shared.Groups, shared.StrictGroups, shared.Sysctls
	out.Privileged, out.ReadOnlyRoot, out.NoNewPrivileges = s.Privileged, s.ReadOnlyRoot, s.NoNewPrivileges
	out.Add, out.Drop = s.Add, s.Drop
	out.Seccomp, out.AppArmor = profile(s.Seccomp), profile(s.AppArmor)
	if out.Seccomp.Localhost != "" {
		out.Seccomp.Localhost = filepath.Join(profiles, out.Seccomp.Localhost)
	}
	if s.SELinux != nil {
		out.SELinux = &container.SELinux{User: s.SELinux.User, Role: s.SELinux.Role, Type: s.SELinux.Type, Level: s.SELinux.Level}
	}
}

func profile(p *podspec.Profile) container.Profile {
	if p == nil {
		return container.Profile{}
	}
	return container.Profile{Kind: container.ProfileKind(p.Kind), Localhost: p.Localhost, Field: p.Field}
}
