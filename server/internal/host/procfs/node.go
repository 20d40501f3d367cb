package procfs

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// MaxPIDs is the kernel's maximum number of processes: the lower one of kernel.pid_max and
// kernel.threads-max. One unreadable file is ignored; two are an error of class Unavailable.
func MaxPIDs(proc fs.FS) (int64, error) {
	var least int64
	var errs []error
	for _, file := range []string{"sys/kernel/pid_max", "sys/kernel/threads-max"} {
		text, err := fs.ReadFile(proc, file)
		if err != nil {
			errs = append(errs, errdefs.Unavailablef("count possible processes: %w", err))
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil || n <= 0 {
			errs = append(errs, errdefs.Unavailablef("count possible processes: %s: %q is no positive number", file, text))
			continue
		}
		if least == 0 || n < least {
			least = n
		}
	}
	if least == 0 {
		return 0, errors.Join(errs...)
	}
	return least, nil
}

// Swapping reports whether the machine has swap space in use: whether /proc/swaps
// lists any. Without the file the kernel has no swap.
func Swapping(proc fs.FS) (bool, error) {
	text, err := fs.ReadFile(proc, "swaps")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, errdefs.Unavailablef("find swap space: %w", err)
	}
	// The first line is a heading.
	return bytes.ContainsRune(bytes.TrimSpace(text), '\n'), nil
}

// SwapBytes is the swap space of the machine (SwapTotal of /proc/meminfo); 0
// without any.
func SwapBytes(proc fs.FS) (int64, error) {
	const file = "meminfo"
	text, err := fs.ReadFile(proc, file)
	if err != nil {
		return 0, errdefs.Unavailablef("measure swap space: %w", err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		rest, found := strings.CutPrefix(lines.Text(), "SwapTotal:")
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 54)
		if err != nil || kib < 0 {
			return 0, errdefs.Unavailablef("measure swap space: %s: %q", file, lines.Text())
		}
		return kib << 10, nil
	}
	return 0, nil
}
