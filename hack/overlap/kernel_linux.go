package overlap

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/berthd/berth/managers/cpuset"
)

// monotonic is CLOCK_MONOTONIC of clock_gettime(2), in which the kernel stamps events.
const monotonic = 1

// now reads that clock.
func now() time.Duration {
	var t syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		panic(fmt.Sprintf("clock_gettime: %v", errno)) // the clock is always there
	}
	return time.Duration(t.Nano())
}

// cgroupsOf lists the paths of a process's cgroups below all hierarchies; none if it has
// ended.
func cgroupsOf(pid int) (paths []string) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 {
			paths = append(paths, fields[2])
		}
	}
	return paths
}

// processes lists those that there are.
func processes() (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// threadsOf lists a process's threads.
func threadsOf(pid int) (tids []int) {
	dirs, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*")
	for _, dir := range dirs {
		if tid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}

// state is a task's state by proc_pid_stat(5).
type state struct {
	command string
	runs    bool
	cpu     int
}

// Fields of the file after the command: the state is the first, the processor the 37th.
const processorField = 36

func stateOf(path string) (s state, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return s, false
	}
	open, end := strings.IndexByte(string(text), '('), strings.LastIndexByte(string(text), ')')
	if open < 0 || end < open {
		return s, false
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) <= processorField {
		return s, false
	}
	return state{command: string(text[open+1 : end]), runs: fields[0] == "R", cpu: number(fields[processorField])}, true
}

// allowed gives the CPUs that a task may run on.
func allowed(tid int) (cpus []int) {
	var mask [1024]uint8 // 8192 CPUs, the most that Linux can have
	n, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, uintptr(tid), unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)))
	if errno != 0 {
		return nil
	}
	for i := range int(n) * 8 {
		if mask[i/8]&(1<<(i%8)) != 0 {
			cpus = append(cpus, i)
		}
	}
	return cpus
}

// mayRun gives those of some CPUs that a task may run on.
func mayRun(tid int, of cpuset.Set) cpuset.Set { return cpuset.Of(allowed(tid)...).Intersect(of) }
