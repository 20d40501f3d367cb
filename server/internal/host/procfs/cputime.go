package procfs

import (
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/berthd/berth/managers/errdefs"
)

// userHz is the unit of /proc/stat in ticks a second. It is part of the kernel's interface
// (USER_HZ) and 100 on every system that Go runs on.
const userHz = 100

// CPUTimes returns for each online CPU how long it was busy since the boot: all times in
// /proc/stat except idle, iowait, and guest times, which are part of user times (proc_stat(5)).
func CPUTimes(proc fs.FS) (map[int]time.Duration, error) {
	text, err := fs.ReadFile(proc, "stat")
	if err != nil {
		return nil, errdefs.Unavailablef("read the times of CPUs: %w", err)
	}
	out := map[int]time.Duration{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[0] == "cpu" {
			continue
		}
		rest, ok := strings.CutPrefix(fields[0], "cpu")
		id, err := strconv.Atoi(rest)
		if !ok || err != nil || id < 0 {
			continue
		}
		var ticks uint64
		for i, f := range fields[1:] {
			const idle, iowait, guest = 3, 4, 8
			if i == idle || i == iowait || i >= guest {
				continue
			}
			n, err := strconv.ParseUint(f, 10, 48)
			if err != nil {
				return nil, errdefs.Unavailablef("read the times of CPUs: /proc/stat: %q is no number", f)
			}
			ticks += n
		}
		out[id] = time.Duration(ticks) * (time.Second / userHz)
	}
	return out, nil
}
