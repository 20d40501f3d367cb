package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"github.com/berthd/berth/hack/vm/job"
)

// mount makes the place and mounts there.
func mount(source, target, kind, options string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount(source, target, kind, 0, options); err != nil {
		return fmt.Errorf("mount %s at %s: %w", kind, target, err)
	}
	return nil
}

// mountSystem mounts what every program expects.
func mountSystem() error {
	return errors.Join(
		mountRoot(),
		mount("proc", "/proc", "proc", ""),
		mount("sysfs", "/sys", "sysfs", ""),
		mount("devtmpfs", "/dev", "devtmpfs", ""),
		mount("tmpfs", "/dev/shm", "tmpfs", ""),
		mount("hugetlbfs", "/dev/hugepages", "hugetlbfs", ""),
		mount("tmpfs", "/tmp", "tmpfs", "mode=1777"),
		mount("tmpfs", "/run", "tmpfs", "mode=755"),
	)
}

// mountRoot mounts the first file system over itself, and makes that this process's root. The kernel lets no container leave
// the first file system (pivot_root(2)).
func mountRoot() error {
	const place = "/root"
	if err := os.MkdirAll(place, 0o700); err != nil {
		return err
	}
	if err := syscall.Mount("/", place, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount / at %s: %w", place, err)
	}
	if err := os.Chdir(place); err != nil {
		return err
	}
	if err := syscall.Mount(".", "/", "", syscall.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move %s to /: %w", place, err)
	}
	if err := syscall.Chroot("."); err != nil {
		return err
	}
	return os.Chmod("/", 0o755) // berth trusts no file below a directory that everybody may write
}

const cgroupMount = "/sys/fs/cgroup"

// mountCgroups mounts the tree as systemd does it for the given version.
func mountCgroups(version job.Cgroup) error {
	switch version {
	case "":
		return nil
	case job.V2:
		if err := mount("cgroup2", cgroupMount, "cgroup2", ""); err != nil {
			return err
		}
		return handDown()
	case job.V1, job.Hybrid:
		if err := mount("tmpfs", cgroupMount, "tmpfs", "mode=755"); err != nil {
			return err
		}
		if version == job.Hybrid {
			if err := mount("cgroup2", filepath.Join(cgroupMount, "unified"), "cgroup2", ""); err != nil {
				return err
			}
		}
		return mountV1()
	}
	return fmt.Errorf("cgroup version %q: want v1, hybrid or v2", version)
}

// handDown gives the children of the root all controllers.
func handDown() error {
	text, err := os.ReadFile(filepath.Join(cgroupMount, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var all []string
	for _, c := range strings.Fields(string(text)) {
		all = append(all, "+"+c)
	}
	return os.WriteFile(filepath.Join(cgroupMount, "cgroup.subtree_control"), []byte(strings.Join(all, " ")), 0o644)
}

// together are the controllers that share a hierarchy.
var together = [][]string{{"cpu", "cpuacct"}, {"net_cls", "net_prio"}}

// mountV1 mounts a hierarchy for each of the kernel's controllers, with links for
// those that share one.
func mountV1() error {
	text, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		return err
	}
	mounts := map[string]string{"systemd": "none,name=systemd"}
	for row := range strings.Lines(string(text)) {
		controller, _, _ := strings.Cut(row, "\t")
		if strings.HasPrefix(controller, "#") {
			continue
		}
		dir := controller
		for _, group := range together {
			if slices.Contains(group, controller) {
				dir = strings.Join(group, ",")
				if err := os.Symlink(dir, filepath.Join(cgroupMount, controller)); err != nil {
					return err
				}
			}
		}
		mounts[dir] = dir
	}
	for dir, options := range mounts {
		if err := mount("cgroup", filepath.Join(cgroupMount, dir), "cgroup", options); err != nil {
			return err
		}
	}
	return nil
}

// raiseLoopback brings lo up (netdevice(7)).
func raiseLoopback() error {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(socket) }()
	request := struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}{flags: syscall.IFF_UP | syscall.IFF_RUNNING}
	copy(request.name[:], "lo")
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(socket), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return fmt.Errorf("bring lo up: %w", errno)
	}
	return nil
}
