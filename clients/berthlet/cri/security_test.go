package cri_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthd/berth/clients/berthlet/container"
	fake "github.com/berthd/berth/hack/testing/cri"
	"github.com/berthd/berth/managers/errdefs"
)

// TestSecurity hands on what confines a container, and who it runs as.
func TestSecurity(t *testing.T) {
	t.Parallel()
	profile := filepath.Join(t.TempDir(), "p.json")
	must(t, os.WriteFile(profile, []byte("{}"), 0o600))
	number := func(n int64) *int64 { return &n }
	const byDefault = `seccomp {profile_type: RuntimeDefault} `
	const drops = `capabilities {drop_capabilities: "MKNOD" drop_capabilities: "NET_RAW"} `
	for name, row := range map[string]struct {
		image  string
		change func(c *container.Spec)
		want   string
	}{
		"nothing asked for": {"", func(*container.Spec) {}, drops + byDefault},
		"capabilities": {"", func(c *container.Spec) { c.Add, c.Drop = []string{"NET_RAW"}, []string{"KILL"} },
			`capabilities {add_capabilities: "NET_RAW" drop_capabilities: "KILL" drop_capabilities: "MKNOD"} ` + byDefault},
		"all capabilities": {"", func(c *container.Spec) { c.Add = []string{"ALL"} },
			`capabilities {add_capabilities: "ALL"} ` + byDefault},
		"a group alone, the image's user has a number": {"7", func(c *container.Spec) { c.Group = number(6) },
			drops + byDefault + `run_as_user {value: 7} run_as_group {value: 6}`},
		"a group alone, the image's user has a name": {"web", func(c *container.Spec) { c.Group = number(6) },
			drops + byDefault + `run_as_username: "web" run_as_group {value: 6}`},
		"a group alone, the image has no user": {"", func(c *container.Spec) { c.Group = number(6) },
			drops + byDefault + `run_as_user {} run_as_group {value: 6}`},
		"not root, by the image": {"7", func(c *container.Spec) { c.NonRoot = "f" },
			drops + byDefault + `run_as_user {value: 7}`},
		"not root, by the manifest": {"root", func(c *container.Spec) { c.NonRoot, c.User = "f", number(5) },
			drops + byDefault + `run_as_user {value: 5}`},
		"groups": {"", func(c *container.Spec) { c.Groups = []int64{7, 9} },
			drops + byDefault + `supplemental_groups: 7 supplemental_groups: 9`},
		"only these groups": {"", func(c *container.Spec) { c.Groups, c.StrictGroups = []int64{7}, true },
			drops + byDefault + `supplemental_groups: 7 supplemental_groups_policy: Strict`},
		"unconfined": {"", func(c *container.Spec) {
			c.Seccomp.Kind, c.AppArmor.Kind = container.Unconfined, container.Unconfined
		}, drops + `seccomp {profile_type: Unconfined} apparmor {profile_type: Unconfined}`},
		"profiles of the machine": {"", func(c *container.Spec) {
			c.Seccomp = container.Profile{Kind: container.Localhost, Localhost: profile}
			c.AppArmor = container.Profile{Kind: container.Localhost, Localhost: "web"}
		}, drops + `seccomp {profile_type: Localhost localhost_ref: "` + profile +
			`"} apparmor {profile_type: Localhost localhost_ref: "web"}`},
		"a label": {"", func(c *container.Spec) { c.SELinux = &container.SELinux{Type: "t", Level: "l"} },
			drops + byDefault + `selinux_options {type: "t" level: "l"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := fake.New(fake.Config{Images: []string{"probe"}, User: row.image,
				Features: &criv1.RuntimeFeatures{SupplementalGroupsPolicy: true}})
			r, _ := open(t, serve(t, s), "us")
			must(t, r.Open(t.Context(), thePod(dir)))
			c := theSpec(dir)
			row.change(&c)
			must(t, r.Create(t.Context(), c))
			made, _ := s.Configs(only(t, r, "u").ID)
			got := made.GetLinux().GetSecurityContext()
			if len(got.GetMaskedPaths()) == 0 || len(got.GetReadonlyPaths()) == 0 {
				t.Errorf("nothing is hidden: %v", got)
			}
			got.MaskedPaths, got.ReadonlyPaths, got.NamespaceOptions = nil, nil, nil
			if len(got.GetCapabilities().GetDropCapabilities()) == 0 && len(got.GetCapabilities().GetAddCapabilities()) == 0 {
				got.Capabilities = nil
			}
			text(t, "the security context", got, row.want)
		})
	}
}

// TestSecurityRefused has a runtime, or an image, that cannot give what is requested.
func TestSecurityRefused(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		image  string
		change func(c *container.Spec)
		want   string
	}{
		"root by the image":       {"0", func(*container.Spec) {}, "f: the container would run as root"},
		"root for want of a user": {"", func(*container.Spec) {}, "f: the container would run as root"},
		"a name":                  {"web", func(*container.Spec) {}, `f: image probe names user "web"`},
		"groups":                  {"7", func(c *container.Spec) { c.StrictGroups = true }, "supplementalGroupsPolicy"},
		"a profile that is missing": {"7", func(c *container.Spec) {
			c.Seccomp = container.Profile{Kind: container.Localhost, Localhost: "/none", Field: "g"}
		}, "g: there is no file /none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := fake.New(fake.Config{Images: []string{"probe"}, User: row.image})
			r, _ := open(t, serve(t, s), "us")
			must(t, r.Open(t.Context(), thePod(dir)))
			c := theSpec(dir)
			c.NonRoot = "f"
			row.change(&c)
			if err := r.Create(t.Context(), c); err == nil || !strings.Contains(err.Error(), row.want) ||
				errdefs.ClassOf(err) == errdefs.Internal {
				t.Errorf("%v, want %q", err, row.want)
			}
			if all, err := r.List(t.Context(), "u"); err != nil || len(all) > 0 {
				t.Errorf("left: %v, %v", all, err)
			}
		})
	}
}

// TestSharedSecurity hands on what the pod as a whole requests.
func TestSharedSecurity(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := fake.New(fake.Config{Images: []string{"probe"}})
	r, _ := open(t, serve(t, s), "us")
	p := thePod(dir)
	p.Sysctls, p.Groups, p.Privileged = map[string]string{"net.ipv4.tcp_syncookies": "1"}, []int64{7}, true
	must(t, r.Open(t.Context(), p))
	must(t, r.Create(t.Context(), theSpec(dir)))
	_, pod := s.Configs(only(t, r, "u").ID)
	text(t, "the pod's part", pod.GetLinux(), `
		cgroup_parent: "/kubepods/podu" sysctls {key: "net.ipv4.tcp_syncookies" value: "1"}
		security_context {namespace_options {pid: CONTAINER} privileged: true supplemental_groups: 7 seccomp {profile_type: Unconfined}}`)
}
