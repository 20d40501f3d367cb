package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"github.com/berthd/berth/managers/cpuset"
)

// show prints the process's view of itself.
func show() error {
	for _, part := range []func() error{showStatus, showAffinity, showCgroup, showSelf} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// showStatus prints fields of proc_pid_status(5).
func showStatus() error {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return err
	}
	defer f.Close()
	names := map[string]string{"Cpus_allowed_list": "cpus", "Mems_allowed_list": "mems", "CapEff": "capabilities",
		"NoNewPrivs": "no_new_privileges", "Seccomp": "seccomp", "Groups": "groups"}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if known, ok := names[name]; ok {
			fmt.Printf("%s=%s\n", known, strings.TrimSpace(value))
		}
	}
	return lines.Err()
}

// showAffinity reports what sched_getaffinity(2) answers.
func showAffinity() error {
	var mask [1024]uint8 // 8192 CPUs, the most that Linux can have
	n, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)))
	if errno != 0 {
		return fmt.Errorf("sched_getaffinity: %w", errno)
	}
	var cpus []int
	for i := range int(n) * 8 {
		if mask[i/8]&(1<<(i%8)) != 0 {
			cpus = append(cpus, i)
		}
	}
	fmt.Printf("affinity=%s\n", cpuset.Of(cpus...))
	return nil
}

// limits are the files of a cgroup, on either version, as they lie in a container.
var limits = []string{
	"cpuset/cpuset.cpus", "cpuset/cpuset.mems", "cpu/cpu.shares", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us",
	"memory/memory.limit_in_bytes",
	"cpuset.cpus", "cpuset.mems", "cpu.weight", "cpu.max", "memory.max",
}

// showCgroup prints the values of the process's cgroup, if it is mounted.
func showCgroup() error {
	for _, file := range limits {
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		fmt.Printf("cgroup.%s=%s\n", filepath.Base(file), strings.TrimSpace(string(text)))
	}
	return nil
}

// showDevice opens a device file for reading and writing, and prints its numbers.
func showDevice(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeDevice == 0 {
		return fmt.Errorf("%s is no device", path)
	}
	// As makedev(3) puts them together, for small numbers.
	fmt.Printf("device.%s=%d:%d\n", path, stat.Rdev>>8, stat.Rdev&0xff)
	return nil
}

// showSelf prints names, namespaces and variables.
func showSelf() error {
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	directory, err := os.Getwd()
	if err != nil {
		return err
	}
	fmt.Printf("hostname=%s\npid=%d\nuid=%d\ngid=%d\ndirectory=%s\n", hostname, os.Getpid(), os.Getuid(), os.Getgid(), directory)
	for _, kind := range []string{"net", "ipc", "uts", "pid", "mnt"} {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return err
		}
		fmt.Printf("namespace.%s=%s\n", kind, link)
	}
	for _, variable := range os.Environ() {
		fmt.Printf("env.%s\n", variable)
	}
	fmt.Println("shown=all")
	return nil
}
