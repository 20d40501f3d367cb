package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Address is the node's address. It is no loopback address, because the kubelet refuses those.
const Address = "10.99.0.1"

// sysctls are the files that the kubelet writes at its start. In the space they are plain files, so
// that the machine keeps its own values.
var sysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// space is a mount namespace and a network namespace. One thread of this process is in them;
// whatever it starts is in them too. They end with the thread and the processes.
type space struct {
	work  chan func()
	ended chan struct{}
}

// errEnded is the error after the end, for example of a connection for a call in flight.
var errEnded = errors.New("the cluster has ended")

// newSpace creates the namespaces. Directories below dir replace /var/lib and /var/log there.
func newSpace(dir string) (*space, error) {
	s := &space{work: make(chan func()), ended: make(chan struct{})}
	made := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this goroutine, because no other may run on it.
		runtime.LockOSThread()
		err := enter(dir)
		made <- err
		for err == nil {
			select {
			case do := <-s.work:
				do()
			case <-s.ended:
				return
			}
		}
	}()
	if err := <-made; err != nil {
		return nil, err
	}
	return s, nil
}

// do runs a function on the thread in the namespaces: sockets that it opens and processes that it
// starts are in them.
func (s *space) do(f func() error) (err error) {
	done := make(chan struct{})
	select {
	case s.work <- func() {
		defer close(done)
		err = f()
	}:
		<-done
		return err
	case <-s.ended:
		return errEnded
	}
}

// close ends the thread.
func (s *space) close() { close(s.ended) }

// start starts a program, which is killed when this process ends.
func (s *space) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	cmd.SysProcAttr.Setpgid = true // Ctrl-C is for the test, which ends them in order
	return s.do(cmd.Start)
}

// enter moves the calling thread into new namespaces and sets them up.
func enter(dir string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a mount and a network namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	for _, path := range []string{"/var/lib", "/var/log"} {
		source := filepath.Join(dir, path)
		if err := os.MkdirAll(source, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(source, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s over %s: %w", source, path, err)
		}
	}
	for _, name := range []string{"/var/lib/kubelet", "/var/log/containers"} {
		if err := os.MkdirAll(name, 0o755); err != nil {
			return err
		}
	}
	if err := copySysctls(filepath.Join(dir, "sysctl")); err != nil {
		return err
	}
	return network()
}

// copySysctls puts copies of the sysctls' files over them.
func copySysctls(dir string) error {
	for _, name := range sysctls {
		path, instead := filepath.Join("/proc/sys", name), filepath.Join(dir, name)
		value, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(instead), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(instead, value, 0o644); err != nil {
			return err
		}
		if err := unix.Mount(instead, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s over %s: %w", instead, path, err)
		}
	}
	return nil
}

// network brings up the loopback interface, with the node's address beside its own.
func network() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	up := func(name string) error {
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
	}
	if err := up("lo"); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	request, err := unix.NewIfreq("lo:1")
	if err != nil {
		return err
	}
	var address [4]byte
	if _, err := fmt.Sscanf(Address, "%d.%d.%d.%d", &address[0], &address[1], &address[2], &address[3]); err != nil {
		return err
	}
	if err := request.SetInet4Addr(address[:]); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, request); err != nil {
		return fmt.Errorf("give lo the address %s: %w", Address, err)
	}
	return nil
}
