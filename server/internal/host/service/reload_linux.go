package service

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ReloadingNow is Reloading with the time that systemd requires.
func ReloadingNow() []string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return []string{Reloading} // older versions of systemd accept it without the time
	}
	return []string{Reloading, fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000)}
}
