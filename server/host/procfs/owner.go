package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/fault"
)

// UIDs reads whose a process is: its real and its saved user id (proc_pid_status(5)).
// A process that has gone is an error of class NotFound.
func UIDs(proc fs.FS, pid int) (own, saved uint32, err error) {
	file := path.Join(strconv.Itoa(pid), "status")
	text, err := fs.ReadFile(proc, file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, fault.NotFoundf("there is no process %d: %w", pid, err)
	}
	if err != nil {
		return 0, 0, fault.Unavailablef("find out whose process %d is: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		ids, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		// Real, effective, saved, and that of the file system.
		if _, err := fmt.Sscan(ids, &own, new(uint32), &saved); err != nil {
			break
		}
		return own, saved, nil
	}
	return 0, 0, fault.Unavailablef("find out whose process %d is: %s has no line of user ids", pid, file)
}
