//go:build linux

package builtin

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/image"
)

var known = []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN", "CAP_SYS_ADMIN"}

// TestUndefaulted keeps from containers what they have to request.
func TestUndefaulted(t *testing.T) {
	t.Parallel()
	for _, name := range container.Undefaulted {
		name = "CAP_" + name
		if slices.Contains(defaultCapabilities, name) {
			t.Errorf("%s is given to everybody", name)
		}
		s := container.Spec{Security: container.Security{Add: []string{name}}}
		if got := capabilities(s, []string{name}); !slices.Equal(got, []string{name}) {
			t.Errorf("%s was asked for, and the container has %v", name, got)
		}
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	img := image.Image{Entrypoint: []string{"/e", "1"}, Cmd: []string{"c"}}
	for _, row := range []struct {
		img           image.Image
		command, args []string
		want          string
	}{
		{img, nil, nil, "/e 1 c"},
		{img, nil, []string{"a"}, "/e 1 a"},
		{img, []string{"/x"}, nil, "/x"},
		{img, []string{"/x"}, []string{"a"}, "/x a"},
		{image.Image{Cmd: []string{"/c"}}, nil, nil, "/c"},
		{image.Image{}, nil, []string{"/a"}, "/a"},
	} {
		got, err := arguments(container.Spec{Command: row.command, Args: row.args}, row.img)
		if err != nil || strings.Join(got, " ") != row.want {
			t.Errorf("%+v: %q, %v", row, got, err)
		}
	}
	if _, err := arguments(container.Spec{Name: "c"}, image.Image{}); err == nil {
		t.Error("a container without a program")
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	s := container.Spec{Env: []container.Variable{{Name: "A", Value: "mine"}, {Name: "E"}}}
	got := environment(s, image.Image{Env: []string{"A=theirs", "PATH=/bin", "B=1"}})
	if want := []string{"PATH=/bin", "B=1", "A=mine", "E="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		s    container.Spec
		want string
	}{
		{container.Spec{}, "CHOWN KILL"},
		{container.Spec{Security: container.Security{Privileged: true}}, "CHOWN KILL NET_ADMIN SYS_ADMIN"},
		{container.Spec{Security: container.Security{Add: []string{"NET_ADMIN"}, Drop: []string{"KILL"}}}, "CHOWN NET_ADMIN"},
		{container.Spec{Security: container.Security{Drop: []string{"ALL"}}}, ""},
		{container.Spec{Security: container.Security{Drop: []string{"ALL"}, Add: []string{"net_admin"}}}, "NET_ADMIN"},
		{container.Spec{Security: container.Security{Add: []string{"ALL"}, Drop: []string{"CAP_SYS_ADMIN"}}}, "CHOWN KILL NET_ADMIN"},
		{container.Spec{Security: container.Security{Add: []string{"NOT_KNOWN_HERE"}}}, "CHOWN KILL"},
	} {
		got := strings.ReplaceAll(strings.Join(capabilities(row.s, known), " "), "CAP_", "")
		if got != row.want {
			t.Errorf("add %v, drop %v: %q, want %q", row.s.Add, row.s.Drop, got, row.want)
		}
	}
}

func TestSpec(t *testing.T) {
	t.Parallel()
	s := container.Spec{Command: []string{"/p"}, Cgroup: container.Cgroup{CgroupPath: "/pods/p/c"},
		Mounts: []container.Mount{{Path: "/a/../b", HostPath: "/h", ReadOnly: true}}}
	sandbox := sandboxPaths("/s", wanted(false, true))
	plain, err := ociSpec(s, image.Image{Dir: "/w"}, known, specs.User{UID: 5}, sandbox)
	if err != nil {
		t.Fatal(err)
	}
	var spaces []string
	for _, ns := range plain.Linux.Namespaces {
		spaces = append(spaces, string(ns.Type)+" "+ns.Path)
	}
	if want := []string{"mount ", "cgroup ", "pid ", "network /s/net", "uts /s/uts"}; !slices.Equal(spaces, want) {
		t.Errorf("namespaces %q", spaces)
	}
	if held := plain.Process.Capabilities; len(held.Effective) != 0 || len(held.Bounding) != 2 {
		t.Errorf("somebody who is not root holds %+v", held)
	}
	if r := plain.Linux.Resources; r.CPU != nil || r.Memory != nil || r.Pids != nil || len(r.Unified) != 0 || r.Devices[0].Allow {
		t.Errorf("resources %+v: all but the devices are berthd's", r)
	}
	last := plain.Mounts[len(plain.Mounts)-1]
	if want := (specs.Mount{Destination: "/b", Type: "bind", Source: "/h",
		Options: []string{"rbind", "rprivate", "ro"}}); !reflect.DeepEqual(last, want) {
		t.Errorf("mount %+v", last)
	}
	if plain.Process.Cwd != "/w" || plain.Linux.CgroupsPath != "/pods/p/c" || len(plain.Linux.MaskedPaths) == 0 {
		t.Errorf("%+v, %+v", plain.Process, plain.Linux)
	}
	s.Privileged, s.HostPID, s.Dir = true, true, "/mine"
	free, err := ociSpec(s, image.Image{Dir: "/w"}, known, specs.User{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(free.Linux.MaskedPaths) != 0 || !free.Linux.Resources.Devices[0].Allow ||
		len(free.Process.Capabilities.Effective) != len(known) || free.Process.Cwd != "/mine" {
		t.Errorf("privileged: %+v, %+v", free.Process, free.Linux)
	}
	if got := len(free.Linux.Namespaces); got != 2 {
		t.Errorf("%d namespaces, want the mounts' and the cgroups'", got)
	}
}

func TestEscape(t *testing.T) {
	t.Parallel()
	if got := escape(`/a:b,c\d`, ":"); got != `/a\:b\,c\\d` {
		t.Errorf("%q", got)
	}
	if got := escape("/a:b", ""); got != "/a:b" {
		t.Errorf("%q", got)
	}
}
