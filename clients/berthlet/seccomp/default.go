package seccomp

import (
	"slices"
	"strings"
	"syscall"
)

// guarded are calls that the kernel allows only with a capability, or that are useful only with
// it. The default profile allows them to containers with the capability. Calls that are neither
// here nor in allowed affect the machine (keyrings, io_uring, userfaultfd), or are obsolete.
var guarded = map[string]string{
	"CAP_BPF":             "bpf",
	"CAP_DAC_READ_SEARCH": "open_by_handle_at",
	"CAP_PERFMON":         "perf_event_open",
	"CAP_SYS_ADMIN": "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick listmount lookup_dcookie mount mount_setattr move_mount " +
		"open_tree open_tree_attr perf_event_open quotactl quotactl_fd setdomainname sethostname setns statmount syslog umount umount2 unshare",
	"CAP_SYS_BOOT":       "reboot",
	"CAP_SYS_CHROOT":     "chroot",
	"CAP_SYS_MODULE":     "delete_module finit_module init_module",
	"CAP_SYS_NICE":       "get_mempolicy mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node",
	"CAP_SYS_PACCT":      "acct",
	"CAP_SYS_PTRACE":     "kcmp pidfd_getfd process_madvise",
	"CAP_SYS_RAWIO":      "ioperm iopl",
	"CAP_SYS_TIME":       "clock_adjtime clock_adjtime64 clock_settime clock_settime64 settimeofday stime",
	"CAP_SYS_TTY_CONFIG": "vhangup",
	"CAP_SYSLOG":         "syslog",
}

// newNamespaces are the flags of clone(2) that make namespaces.
const newNamespaces = 0x7e020000

// personalities do not weaken protection: Linux, a 32-bit machine, version 2.6, and reading the
// current one.
var personalities = []uint64{0, 0x8, 0x20000, 0x20008, 0xffffffff}

// vsock is the family of sockets to the machine below a virtual one.
const vsock = 40

// Default is the profile of containers that request no other. Its exceptions depend
// on the capabilities that a container has, with "CAP_" before each.
func Default(capabilities []string) Profile {
	names := strings.Fields(allowed)
	for _, c := range capabilities {
		names = append(names, strings.Fields(guarded[c])...)
	}
	slices.Sort(names)
	enosys := uint(syscall.ENOSYS)
	p := Profile{Default: Errno, Syscalls: []Rule{
		{Names: slices.Compact(names), Action: Allow},
		// 32-bit programs make sockets with this one; it cannot see their family.
		{Names: []string{"socketcall"}, Action: Allow},
		{Names: []string{"socket"}, Action: Allow, Conditions: []Condition{{Index: 0, Value: vsock, Op: NotEqual}}},
		{Names: []string{"clone"}, Action: Allow, Conditions: []Condition{{Index: 0, Value: newNamespaces, Op: MaskedEqual}}},
		// Its flags are behind a pointer: the C library falls back on clone.
		{Names: []string{"clone3"}, Action: Errno, Errno: &enosys},
	}}
	for _, v := range personalities {
		p.Syscalls = append(p.Syscalls, Rule{Names: []string{"personality"}, Action: Allow,
			Conditions: []Condition{{Index: 0, Value: v, Op: Equal}}})
	}
	for _, a := range machineArchitectures() {
		p.Architectures = append(p.Architectures, a.name)
	}
	return p
}
