package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Address is the first node's address. It is no loopback address, because the kubelet refuses those.
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

// newSpace creates the namespaces of a node with an address. Directories below dir replace /var/lib, /var/log and others there.
func newSpace(dir, address string, others ...string) (*space, error) {
	s := &space{work: make(chan func()), ended: make(chan struct{})}
	made := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this goroutine, because no other may run on it.
		runtime.LockOSThread()
		err := enter(dir, address, others)
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
func enter(dir, address string, others []string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a mount and a network namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	// Below, they are shared, as systemd makes them on a node: CRI-O demands it of volumes with mount propagation.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make the mounts shared within the namespace: %w", err)
	}
	for _, path := range append([]string{"/var/lib", "/var/log"}, others...) {
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
	return network(address)
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

// uplink is the interface of a further node. Its other end is in the namespace of the first node.
const uplink = "eth0"

// network brings up the loopback interface, with the node's address beside its own.
func network(address string) error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err == nil {
		err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: netlink.NewIPNet(net.ParseIP(address))})
	}
	if err != nil {
		return fmt.Errorf("give lo the address %s: %w", address, err)
	}
	return nil
}

// connect connects another node with the first one, which forwards between the others.
func (s *space) connect(other *space, name, address string) error {
	var namespace *os.File
	if err := other.do(func() (err error) {
		namespace, err = os.Open("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		return err
	}
	defer namespace.Close()
	if err := s.do(func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = name
		if err := netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: attributes, PeerName: uplink, PeerNamespace: netlink.NsFd(int(namespace.Fd())),
		}); err != nil {
			return fmt.Errorf("make the interface %s: %w", name, err)
		}
		if err := reach(name, address, ""); err != nil {
			return err
		}
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
	}); err != nil {
		return err
	}
	return other.do(func() error { return reach(uplink, Address, "10.99.0.0/24") })
}

// reach brings up an interface with a node at its other end, and with a network behind that node if there is one.
func reach(name, address, behind string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("bring up %s: %w", name, err)
	}
	node := net.ParseIP(address)
	routes := []*netlink.Route{{LinkIndex: link.Attrs().Index, Dst: netlink.NewIPNet(node), Scope: netlink.SCOPE_LINK}}
	if behind != "" {
		_, network, err := net.ParseCIDR(behind)
		if err != nil {
			return err
		}
		routes = append(routes, &netlink.Route{LinkIndex: link.Attrs().Index, Dst: network, Gw: node})
	}
	for _, r := range routes {
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("route to %s: %w", r.Dst, err)
		}
	}
	return nil
}
