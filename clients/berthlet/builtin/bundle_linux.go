//go:build linux && cgo

package builtin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/devices"
	"github.com/moby/sys/user"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/image"
	"github.com/berthd/berth/clients/berthlet/seccomp"
	"github.com/berthd/berth/managers/errdefs"
)

// bundle finds the image and collects everything that a keeper needs.
func (r *Runtime) bundle(ctx context.Context, s container.Spec) (*bundle, error) {
	if len(s.CDIDevices) > 0 {
		return nil, errdefs.Unsupportedf("the built-in runtime does not support CDI, and the container has the CDI devices %q",
			s.CDIDevices)
	}
	img, err := r.images.Get(ctx, s.Image)
	if err != nil {
		return nil, err
	}
	who, err := runsAs(s, img)
	if err != nil {
		return nil, err
	}
	if who.UID == 0 && s.NonRoot != "" {
		return nil, errdefs.PermissionDeniedf("%s: the container would run as root: image %s %s; set runAsUser to the number of another user", s.NonRoot, s.Image, saysUser(img))
	}
	known, err := knownCapabilities()
	if err != nil {
		return nil, err
	}
	filter, err := filterOf(s, capabilities(s, known))
	if err != nil {
		return nil, err
	}
	sandbox := sandboxPaths(filepath.Join(r.sandboxes(), s.PodUID), wanted(s.HostNetwork, s.HostIPC))
	oci, err := ociSpec(s, img, known, who, sandbox)
	if err != nil {
		return nil, err
	}
	for _, d := range s.Devices {
		if err := addDevice(oci, d); err != nil {
			return nil, err
		}
	}
	return &bundle{Spec: s, OCI: oci, Layers: img.Layers, Filter: filter, Run: r.run(), LogBytes: r.LogBytes}, nil
}

// addDevice makes a device file of the machine, or all below a directory, appear
// in the container.
func addDevice(oci *specs.Spec, d container.Device) error {
	found, err := devices.GetDevices(d.HostPath)
	if info, statErr := os.Stat(d.HostPath); statErr == nil && !info.IsDir() {
		one, oneErr := devices.DeviceFromPath(d.HostPath, d.Permissions)
		if err = oneErr; err == nil {
			found = append(found[:0], one)
		}
	}
	if err != nil {
		return errdefs.Invalidf("device %s: %w", d.HostPath, err)
	}
	for _, node := range found {
		path := cmp.Or(d.Path, d.HostPath) + strings.TrimPrefix(node.Path, d.HostPath)
		oci.Linux.Devices = append(oci.Linux.Devices, specs.LinuxDevice{
			Path: path, Type: string(node.Type), Major: node.Major, Minor: node.Minor,
			FileMode: &node.FileMode, UID: &node.Uid, GID: &node.Gid,
		})
		oci.Linux.Resources.Devices = append(oci.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
			Allow: true, Type: string(node.Type), Major: &node.Major, Minor: &node.Minor, Access: d.Permissions,
		})
	}
	return nil
}

// runsAs returns the user of the program: numbers from the manifest, otherwise the image's user,
// by numbers or by names in the image's files.
func runsAs(s container.Spec, img image.Image) (specs.User, error) {
	text := img.User
	if s.User != nil {
		text = strconv.FormatInt(*s.User, 10)
	}
	if s.Group != nil {
		who, _, _ := strings.Cut(text, ":")
		text = cmp.Or(who, "0") + ":" + strconv.FormatInt(*s.Group, 10)
	}
	passwd, err := etc(img, "passwd")
	if err != nil {
		return specs.User{}, err
	}
	group, err := etc(img, "group")
	if err != nil {
		return specs.User{}, err
	}
	found, err := user.GetExecUser(text, nil, strings.NewReader(passwd), strings.NewReader(group))
	if err != nil {
		return specs.User{}, errdefs.Invalidf("user %q: %w", text, err)
	}
	// The group is also a supplementary group. Otherwise a program with another group's setgid
	// bit would lose this group, and with it the restrictions that a file has for this group.
	out := specs.User{UID: uint32(found.Uid), GID: uint32(found.Gid), AdditionalGids: []uint32{uint32(found.Gid)}}
	if !s.StrictGroups {
		for _, gid := range found.Sgids {
			out.AdditionalGids = append(out.AdditionalGids, uint32(gid))
		}
	}
	for _, gid := range s.Groups {
		out.AdditionalGids = append(out.AdditionalGids, uint32(gid))
	}
	slices.Sort(out.AdditionalGids)
	out.AdditionalGids = slices.Compact(out.AdditionalGids)
	return out, nil
}

// saysUser describes the image's user for a message.
func saysUser(img image.Image) string {
	if img.User == "" {
		return "names no user"
	}
	return fmt.Sprintf("names user %q", img.User)
}

// filterOf compiles the seccomp profile of a container with the given capabilities.
func filterOf(s container.Spec, held []string) (*seccomp.Filter, error) {
	var profile seccomp.Profile
	switch kind := s.Seccomp.Kind; {
	case kind == container.Unconfined, kind == "" && s.Privileged:
		return nil, nil
	case kind == "", kind == container.RuntimeDefault:
		profile = seccomp.Default(held)
	case kind == container.Localhost:
		text, err := trust.ReadFile(s.Seccomp.Localhost, seccomp.Most)
		if err != nil {
			return nil, errdefs.Preconditionf("%s: %w: put the profile there, or use RuntimeDefault", s.Seccomp.Field, err)
		}
		if profile, err = seccomp.Parse(bytes.NewReader(text)); err != nil {
			return nil, errdefs.Invalidf("%s: %s: %w", s.Seccomp.Field, s.Seccomp.Localhost, err)
		}
	default:
		return nil, errdefs.Unsupportedf("%s: %q is not known", s.Seccomp.Field, kind)
	}
	filter, err := seccomp.Compile(profile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmp.Or(s.Seccomp.Field, "seccompProfile"), err)
	}
	return &filter, nil
}

// etc reads a file of /etc from the topmost layer that has it; links do not lead
// out of the layer.
func etc(img image.Image, name string) (string, error) {
	for _, layer := range img.Layers {
		root, err := os.OpenRoot(layer)
		if err != nil {
			return "", err
		}
		text, err := readSmall(root, "etc/"+name)
		_ = root.Close()
		if err == nil {
			return string(text), nil
		}
		if !errors.Is(err, iofs.ErrNotExist) {
			return "", fmt.Errorf("read %s of the image: %w", name, err)
		}
	}
	return "", nil
}

// readSmall reads a regular file below a directory. Of another kind, as a pipe, it
// would be waited for.
func readSmall(root *os.Root, name string) ([]byte, error) {
	const most = 1 << 20
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, errdefs.Invalidf("expected a regular file of at most %d bytes", most)
	}
	return io.ReadAll(io.LimitReader(f, most))
}
