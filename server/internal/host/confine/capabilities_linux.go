package confine

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/errdefs"
)

// The capabilities that berthd may need.
const (
	Chown           Capability = unix.CAP_CHOWN
	DACOverride     Capability = unix.CAP_DAC_OVERRIDE
	Kill            Capability = unix.CAP_KILL
	NetBindService  Capability = unix.CAP_NET_BIND_SERVICE
	SysNice         Capability = unix.CAP_SYS_NICE
	SysPtrace       Capability = unix.CAP_SYS_PTRACE
	SysResource     Capability = unix.CAP_SYS_RESOURCE
	setPCap         Capability = unix.CAP_SETPCAP
	secbitNoRoot               = 1 << 0 // SECBIT_NOROOT of linux/securebits.h
	capabilityWords            = 2      // of _LINUX_CAPABILITY_VERSION_3
)

var names = [...]string{
	unix.CAP_CHOWN: "CAP_CHOWN", unix.CAP_DAC_OVERRIDE: "CAP_DAC_OVERRIDE", unix.CAP_DAC_READ_SEARCH: "CAP_DAC_READ_SEARCH",
	unix.CAP_FOWNER: "CAP_FOWNER", unix.CAP_FSETID: "CAP_FSETID", unix.CAP_KILL: "CAP_KILL", unix.CAP_SETGID: "CAP_SETGID",
	unix.CAP_SETUID: "CAP_SETUID", unix.CAP_SETPCAP: "CAP_SETPCAP", unix.CAP_LINUX_IMMUTABLE: "CAP_LINUX_IMMUTABLE",
	unix.CAP_NET_BIND_SERVICE: "CAP_NET_BIND_SERVICE", unix.CAP_NET_BROADCAST: "CAP_NET_BROADCAST",
	unix.CAP_NET_ADMIN: "CAP_NET_ADMIN", unix.CAP_NET_RAW: "CAP_NET_RAW", unix.CAP_IPC_LOCK: "CAP_IPC_LOCK",
	unix.CAP_IPC_OWNER: "CAP_IPC_OWNER", unix.CAP_SYS_MODULE: "CAP_SYS_MODULE", unix.CAP_SYS_RAWIO: "CAP_SYS_RAWIO",
	unix.CAP_SYS_CHROOT: "CAP_SYS_CHROOT", unix.CAP_SYS_PTRACE: "CAP_SYS_PTRACE", unix.CAP_SYS_PACCT: "CAP_SYS_PACCT",
	unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN", unix.CAP_SYS_BOOT: "CAP_SYS_BOOT", unix.CAP_SYS_NICE: "CAP_SYS_NICE",
	unix.CAP_SYS_RESOURCE: "CAP_SYS_RESOURCE", unix.CAP_SYS_TIME: "CAP_SYS_TIME", unix.CAP_SYS_TTY_CONFIG: "CAP_SYS_TTY_CONFIG",
	unix.CAP_MKNOD: "CAP_MKNOD", unix.CAP_LEASE: "CAP_LEASE", unix.CAP_AUDIT_WRITE: "CAP_AUDIT_WRITE",
	unix.CAP_AUDIT_CONTROL: "CAP_AUDIT_CONTROL", unix.CAP_SETFCAP: "CAP_SETFCAP", unix.CAP_MAC_OVERRIDE: "CAP_MAC_OVERRIDE",
	unix.CAP_MAC_ADMIN: "CAP_MAC_ADMIN", unix.CAP_SYSLOG: "CAP_SYSLOG", unix.CAP_WAKE_ALARM: "CAP_WAKE_ALARM",
	unix.CAP_BLOCK_SUSPEND: "CAP_BLOCK_SUSPEND", unix.CAP_AUDIT_READ: "CAP_AUDIT_READ", unix.CAP_PERFMON: "CAP_PERFMON",
	unix.CAP_BPF: "CAP_BPF", unix.CAP_CHECKPOINT_RESTORE: "CAP_CHECKPOINT_RESTORE",
}

// String is the name in linux/capability.h.
func (c Capability) String() string {
	if int(c) < len(names) && names[c] != "" {
		return names[c]
	}
	return "CAP_" + strconv.Itoa(int(c))
}

// Effective reads the capabilities that this process can use.
func Effective() (Set, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, errdefs.Unavailablef("read which capabilities berthd has: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if mask, ok := strings.CutPrefix(line, "CapEff:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			if err != nil {
				return 0, errdefs.Unavailablef("read which capabilities berthd has: %w", err)
			}
			return Set(bits), nil
		}
	}
	return 0, errdefs.Unavailablef("read which capabilities berthd has: /proc/self/status does not say")
}

// drop removes the thread's capabilities that keep does not contain, for the program that the
// thread executes next. no_new_privs is set, so an execve adds no capability even for root. The
// permitted set is therefore a limit even if the bounding set cannot be changed.
func drop(keep Set) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [capabilityWords]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	have := Set(data[0].Permitted) | Set(data[1].Permitted)<<32
	if have.Has(setPCap) {
		for c := range Capability(64) {
			in, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
			if err != nil {
				break // the kernel has no more
			}
			if in == 1 && !keep.Has(c) {
				if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
					return fmt.Errorf("take %s out of the bounding set: %w", c, err)
				}
			}
		}
	}
	// An older kernel has no ambient capabilities.
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	keep &= have
	inherited := Set(0)
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("read the securebits: %w", err)
	}
	if os.Geteuid() != 0 || bits&secbitNoRoot != 0 {
		inherited = keep // root has them by being root
	}
	for i := range data {
		word := uint32(keep >> (32 * i))
		data[i] = unix.CapUserData{Permitted: word, Effective: word, Inheritable: uint32(inherited >> (32 * i))}
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	for c := range Capability(64) {
		if inherited.Has(c) {
			if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
				return fmt.Errorf("keep %s: %w", c, err)
			}
		}
	}
	return nil
}
