package affinity

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/berthd/berth/managers/cpuset"
)

// Set puts all threads of a process on some CPUs (sched_setaffinity(2)). Threads that are
// made meanwhile have the CPUs of their maker. The error of a process that has ended is
// fs.ErrNotExist.
func Set(pid int, cpus cpuset.Set) error {
	var mask [(cpuset.MaxCPUs + 63) / 64]uint64
	for cpu := range cpus.All() {
		mask[cpu/64] |= 1 << (cpu % 64)
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, uintptr(tid), unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)))
		if errno != 0 && errno != syscall.ESRCH {
			return fmt.Errorf("sched_setaffinity of process %d: %w", pid, errno)
		}
	}
	return nil
}
