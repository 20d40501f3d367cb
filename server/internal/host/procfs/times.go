package procfs

import (
	"io/fs"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/berthd/berth/managers/errdefs"
)

// Uptime is the time since the boot, in hundredths of a second (proc_uptime(5)).
func Uptime(proc fs.FS) (time.Duration, error) {
	text, err := fs.ReadFile(proc, "uptime")
	if err != nil {
		return 0, errdefs.Unavailablef("read the time since the boot: %w", err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil || math.IsNaN(seconds) || seconds < 0 || seconds > 1e9 {
		return 0, errdefs.Unavailablef("read the time since the boot: /proc/uptime: %.40q is no number of seconds", first)
	}
	return time.Duration(seconds*100) * (time.Second / 100), nil
}

// Began returns when a process began, since the boot, from the text of its stat file (proc_pid_stat(5), starttime).
func Began(stat string) (time.Duration, error) {
	const starttime = 22 - 3 // fields are counted from 1, and two come before the end of the name
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= starttime {
		return 0, errdefs.Unavailablef("read when a process began: %d fields of its stat file, expected more", len(fields))
	}
	ticks, err := strconv.ParseUint(fields[starttime], 10, 48)
	if err != nil {
		return 0, errdefs.Unavailablef("read when a process began: %.40q is no number of ticks", fields[starttime])
	}
	return time.Duration(ticks) * (time.Second / userHz), nil
}
