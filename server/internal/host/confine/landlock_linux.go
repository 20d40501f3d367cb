package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What landlock(7) calls the rights, by the version of its interface that has them first.
const (
	readFile  = unix.LANDLOCK_ACCESS_FS_READ_FILE
	readDir   = unix.LANDLOCK_ACCESS_FS_READ_DIR
	execute   = unix.LANDLOCK_ACCESS_FS_EXECUTE
	writeFile = unix.LANDLOCK_ACCESS_FS_WRITE_FILE
	remove    = unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR
	devices   = unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO
	makes     = unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM

	version1 = execute | writeFile | readFile | readDir | remove | devices | makes
	version2 = unix.LANDLOCK_ACCESS_FS_REFER
	version3 = unix.LANDLOCK_ACCESS_FS_TRUNCATE
	version5 = unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

	// ofFiles are the rights that a rule for a file can have.
	ofFiles = execute | writeFile | readFile | version3 | version5
)

// rights are the kernel's for ours.
var rights = map[Rights]uint64{
	ReadFile:  readFile,
	Read:      readFile | readDir,
	Run:       readFile | readDir | execute,
	Write:     readFile | readDir | writeFile | version3,
	Change:    readFile | readDir | writeFile | version3 | remove | makes,
	MakeAgain: unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE,
}

// landlockVersion is that of the kernel's interface, 0 for none.
func landlockVersion() int {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// restrict applies the rules to this thread and the programs that it executes.
func (r *Rules) restrict(version int) (err error) {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: version1}
	if version >= 2 {
		attr.Handled_access_fs |= version2
	}
	if version >= 3 {
		attr.Handled_access_fs |= version3
	}
	if version >= 4 {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if version >= 5 {
		attr.Handled_access_fs |= version5
	}
	if version >= 6 && !r.AbstractSockets {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("landlock_create_ruleset: %w", errno)
	}
	defer func() { _ = unix.Close(int(fd)) }()
	for _, f := range r.Files {
		if err := f.allow(fd, attr.Handled_access_fs); err != nil {
			return fmt.Errorf("allow %s: %w", f.Path, err)
		}
	}
	for access, ports := range map[uint64][]uint16{
		unix.LANDLOCK_ACCESS_NET_BIND_TCP: r.TCPPorts, unix.LANDLOCK_ACCESS_NET_CONNECT_TCP: r.ConnectPorts,
	} {
		for _, port := range ports {
			if err := allowPort(fd, version, access, port); err != nil {
				return err
			}
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", errno)
	}
	return nil
}

// allowPort adds the rule of a port.
func allowPort(rules uintptr, version int, access uint64, port uint16) error {
	if version < 4 {
		return nil // ports are not handled
	}
	rule := struct{ access, port uint64 }{access, uint64(port)} // struct landlock_net_port_attr
	const ruleNetPort = 2                                       // LANDLOCK_RULE_NET_PORT
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, rules, ruleNetPort, uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("allow port %d: %w", port, errno)
	}
	return nil
}

// allow adds the rule of a file to a set of rules that handles so many rights.
func (f File) allow(rules uintptr, handled uint64) error {
	at, err := unix.Open(f.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(at) }()
	var stat unix.Stat_t
	if err := unix.Fstat(at, &stat); err != nil {
		return err
	}
	access := rights[f.Rights] & handled
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= ofFiles
	}
	// The kernel's struct has no padding, and it takes no more bytes than that.
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(at)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, rules, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0,
		0)
	if errno != 0 {
		return errno
	}
	return nil
}
