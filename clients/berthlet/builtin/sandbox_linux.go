package builtin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/container"
)

// sandboxTypes are the namespaces that the containers of a pod share.
var sandboxTypes = []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace}

// namespace has the clone flag and the file of each shared namespace.
var namespace = map[specs.LinuxNamespaceType]struct {
	flag int
	file string
}{
	specs.NetworkNamespace: {unix.CLONE_NEWNET, "net"},
	specs.IPCNamespace:     {unix.CLONE_NEWIPC, "ipc"},
	specs.UTSNamespace:     {unix.CLONE_NEWUTS, "uts"},
}

// wanted lists the pod's own namespaces. With the machine's network it also has the machine's
// name.
func wanted(hostNetwork, hostIPC bool) []specs.LinuxNamespaceType {
	var out []specs.LinuxNamespaceType
	if !hostNetwork {
		out = append(out, specs.NetworkNamespace, specs.UTSNamespace)
	}
	if !hostIPC {
		out = append(out, specs.IPCNamespace)
	}
	return out
}

// sandboxPaths gives the bind mounts of a pod's namespaces by type.
func sandboxPaths(dir string, types []specs.LinuxNamespaceType) map[specs.LinuxNamespaceType]string {
	out := map[specs.LinuxNamespaceType]string{}
	for _, kind := range types {
		out[kind] = filepath.Join(dir, namespace[kind].file)
	}
	return out
}

// openSandbox creates the pod's missing namespaces. After a restart of the machine all are
// missing. The directory exists.
func openSandbox(dir string, p container.Pod) error {
	for _, kind := range wanted(p.HostNetwork, p.HostIPC) {
		path := filepath.Join(dir, namespace[kind].file)
		var stat unix.Statfs_t
		if err := unix.Statfs(path, &stat); err == nil && stat.Type == unix.NSFS_MAGIC {
			continue
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		if err := inNewThread(func() error { return pin(kind, path, p.Hostname) }); err != nil {
			return fmt.Errorf("make the %s namespace: %w", kind, err)
		}
	}
	return nil
}

// inNewThread runs a function in a new thread that ends afterwards, so that the function's
// changes of the thread affect no other goroutine.
func inNewThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The first thread does not end, and is what /proc/self shows: it is kept
			// busy while another one does the work.
			defer runtime.UnlockOSThread()
			done <- inNewThread(f)
			return
		}
		done <- f() // without an unlock: the thread ends with the goroutine
	}()
	return <-done
}

// pin puts the thread into a new namespace and holds that by a bind mount.
func pin(kind specs.LinuxNamespaceType, path, hostname string) error {
	if err := unix.Unshare(namespace[kind].flag); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	var err error
	switch kind {
	case specs.NetworkNamespace:
		err = loopbackUp()
	case specs.UTSNamespace:
		err = unix.Sethostname([]byte(hostname))
	}
	if err != nil {
		return err
	}
	return unix.Mount("/proc/thread-self/ns/"+namespace[kind].file, path, "", unix.MS_BIND, "")
}

// loopbackUp switches the loopback device on, which is down in a new namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("switch lo on: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request); err != nil {
		return fmt.Errorf("switch lo on: %w", err)
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("switch lo on: %w", err)
	}
	return nil
}

// closeSandbox removes what openSandbox made.
func closeSandbox(dir string) error {
	for _, kind := range sandboxTypes {
		if err := unmount(filepath.Join(dir, namespace[kind].file)); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// unmount undoes every mount at a path; one that is not there or no mount is left.
func unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}
