// Package userland makes a VM whose process 1 is systemd: it puts Debian's
// packages into the image and a unit that runs the tests.
//
// # Words
//
//   - merged: /bin, /lib, /lib64 and /sbin are links into /usr, while packages
//     still hold files under both.
//
// # Invariants
//
//   - No script of a package is run. The few files that an installation makes
//     (users, machine id) are written here.
//   - Units that wait for devices which an emulated machine never has are masked.
package userland

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/berthd/berth/hack/vm/archive"
	"github.com/berthd/berth/hack/vm/debian"
	"github.com/berthd/berth/hack/vm/job"
)

// Packages that are put in, with what they depend on.
func Packages() []string { return []string{"systemd", "dbus"} }

// KernelArgs start systemd as process 1, with the given tree of cgroups.
func KernelArgs(version job.Cgroup) []string {
	args := []string{"rdinit=/usr/lib/systemd/systemd", "systemd.unit=berth.service", "systemd.show_status=no"}
	switch version {
	case job.V1:
		args = append(args, "systemd.unified_cgroup_hierarchy=0", "systemd.legacy_systemd_cgroup_controller=1")
	case job.Hybrid:
		args = append(args, "systemd.unified_cgroup_hierarchy=0", "systemd.legacy_systemd_cgroup_controller=0")
	case job.V2:
		args = append(args, "systemd.unified_cgroup_hierarchy=1")
	}
	for _, unit := range masked {
		args = append(args, "systemd.mask="+unit)
	}
	return args
}

// masked units wait for devices, or do what a machine of a few seconds does not
// need.
var masked = []string{
	"serial-getty@ttyS0.service", "serial-getty@ttyAMA0.service", "getty@tty1.service",
	"systemd-firstboot.service", "systemd-hwdb-update.service", "systemd-journal-catalog-update.service",
	"systemd-machine-id-commit.service", "systemd-pstore.service", "systemd-random-seed.service", "systemd-sysusers.service",
	"systemd-tmpfiles-setup-dev.service", "systemd-update-done.service", "systemd-update-utmp.service",
	"modprobe@.service", "systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount", "systemd-remount-fs.service",
}

// unit runs the VM's part of hack/vm.
const unit = `[Unit]
Description=tests of berth
Requires=dbus.service basic.target
After=dbus.service basic.target

[Service]
ExecStart=` + Init + ` run
Environment=HOME=/root TMPDIR=/tmp GOTRACEBACK=all
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
FailureAction=poweroff-force
`

// Init is where the unit expects the VM's program.
const Init = "/berth/init"

// Pack adds the packages and the unit to an image.
func Pack(ctx context.Context, a *archive.Writer, debs []string) error {
	for _, dir := range mergedFolders {
		a.Folder("/usr/" + dir)
		a.Link("/"+dir, "usr/"+dir)
	}
	for _, deb := range debs {
		if err := debian.Files(ctx, deb, func(h *tar.Header, data io.Reader) error { return add(a, h, data) }); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"/etc/passwd":                       "root:x:0:0:root:/root:/bin/sh\nmessagebus:x:100:100::/nonexistent:/bin/false\nnobody:x:65534:65534::/nonexistent:/bin/false\n",
		"/etc/group":                        "root:x:0:\ntty:x:5:\nmessagebus:x:100:\nnogroup:x:65534:\n",
		"/etc/machine-id":                   strings.Repeat("b", 32) + "\n",
		"/etc/hostname":                     "vm\n",
		"/etc/hosts":                        "127.0.0.1 localhost\n",
		"/etc/resolv.conf":                  "",
		"/etc/os-release":                   "ID=debian\n",
		"/etc/systemd/system/berth.service": unit,
	} {
		a.Bytes(name, 0o644, []byte(text))
	}
	for _, dir := range []string{"/var/log", "/var/lib", "/var/tmp", "/mnt"} {
		a.Folder(dir)
	}
	return nil
}

var mergedFolders = []string{"bin", "lib", "lib64", "sbin"}

// unwanted are folders that no program of the VM reads.
var unwanted = []string{
	"usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/info/", "usr/share/bash-completion/", "usr/share/zsh/",
	"usr/share/lintian/", "usr/share/bug/", "usr/share/i18n/", "usr/share/polkit-1/",
	"usr/lib/locale/", "usr/lib/systemd/catalog/", "etc/os-release", "usr/lib/udev/",
}

// add puts one file of a package into the image.
func add(a *archive.Writer, h *tar.Header, data io.Reader) error {
	name := merged(h.Name)
	for _, u := range unwanted {
		if strings.HasPrefix(name, u) || strings.Contains(name, "/gconv/") {
			return nil
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		a.Folder(name)
	case tar.TypeReg:
		text, err := io.ReadAll(data)
		if err != nil {
			return err
		}
		a.Bytes(name, h.FileInfo().Mode(), text)
	case tar.TypeSymlink:
		a.Link(name, h.Linkname)
	case tar.TypeLink:
		a.Link(name, "/"+merged(h.Linkname))
	default:
		return fmt.Errorf("%s: a file of type %q", name, h.Typeflag)
	}
	return nil
}

// merged gives the place of a file in a system whose folders are merged.
func merged(name string) string {
	name = path.Clean(strings.TrimPrefix(name, "./"))
	first, _, _ := strings.Cut(name, "/")
	for _, dir := range mergedFolders {
		if first == dir {
			return "usr/" + name
		}
	}
	return name
}
