//go:build linux && cgo

package builtin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/devices"
	"github.com/moby/sys/user"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/image"
	"github.com/berthd/berth/managers/fault"
)

// bundle finds the image and puts everything together that a keeper needs.
func (r *Runtime) bundle(ctx context.Context, s container.Spec) (*bundle, error) {
	if len(s.CDIDevices) > 0 {
		return nil, fault.Unsupportedf("the built-in runtime does not know CDI, and the container has the devices %q", s.CDIDevices)
	}
	img, err := r.images.Get(ctx, s.Image)
	if err != nil {
		return nil, err
	}
	who, err := runsAs(s, img)
	if err != nil {
		return nil, err
	}
	known, err := knownCapabilities()
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
	return &bundle{Spec: s, OCI: oci, Layers: img.Layers, Run: r.run(), LogBytes: r.LogBytes}, nil
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
		return fault.Invalidf("device %s: %w", d.HostPath, err)
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

// runsAs finds out who runs the program: numbers from the manifest, else what the
// image says, by numbers or by names in its own files.
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
		return specs.User{}, fault.Invalidf("user %q: %w", text, err)
	}
	out := specs.User{UID: uint32(found.Uid), GID: uint32(found.Gid)}
	for _, gid := range found.Sgids {
		out.AdditionalGids = append(out.AdditionalGids, uint32(gid))
	}
	return out, nil
}

// etc reads a file of /etc from the topmost layer that has it; links do not lead
// out of the layer.
func etc(img image.Image, name string) (string, error) {
	for _, layer := range img.Layers {
		root, err := os.OpenRoot(layer)
		if err != nil {
			return "", err
		}
		text, err := root.ReadFile("etc/" + name)
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
