package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"github.com/berthd/berth/managers/cpuset"
)

// burn uses one CPU.
func burn(cpu, length string) error {
	n, err := strconv.Atoi(cpu)
	if err != nil || n < 0 || n >= cpuset.MaxCPUs {
		return fmt.Errorf("CPU %q: expected a number of 0 to %d", cpu, cpuset.MaxCPUs-1)
	}
	d, err := time.ParseDuration(length)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	var mask [(cpuset.MaxCPUs + 63) / 64]uint64
	mask[n/64] |= 1 << (n % 64)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(mask),
		uintptr(unsafe.Pointer(&mask))); errno != 0 {
		return fmt.Errorf("run on CPU %d: %w", n, errno)
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
	return nil
}

// pulse wakes up again and again.
func pulse(pause string, terminated <-chan os.Signal) error {
	d, err := time.ParseDuration(pause)
	if err != nil || d <= 0 {
		return fmt.Errorf("time %q: expected one as in 5ms", pause)
	}
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-terminated:
			return nil
		}
	}
}
