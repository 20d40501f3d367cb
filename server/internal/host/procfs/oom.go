package procfs

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/berthd/berth/managers/errdefs"
)

// SetOOMScoreAdj writes a process's score of -1000 to 1000, which influences the order in which
// the kernel kills processes (proc(5)). An equal score is not written again, because lowering a
// score requires CAP_SYS_RESOURCE. A process that has ended is an error of class NotFound.
func SetOOMScoreAdj(proc *os.Root, pid, score int) error {
	file := path.Join(strconv.Itoa(pid), "oom_score_adj")
	have, err := proc.ReadFile(file)
	want := strconv.Itoa(score)
	if err == nil && strings.TrimSpace(string(have)) == want {
		return nil
	}
	if err == nil {
		err = overwrite(proc, file, want)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		return errdefs.NotFoundf("set oom_score_adj of process %d: %w", pid, err)
	case err != nil:
		return errdefs.Unavailablef("set oom_score_adj of process %d to %d: %w", pid, score, err)
	}
	return nil
}

// overwrite writes a file that is there.
func overwrite(proc *os.Root, file, text string) error {
	f, err := proc.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
