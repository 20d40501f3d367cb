package errno

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

// largest is more than the largest error number of any kernel.
const largest = 200

// TestEveryNumberHasAClass goes through all error numbers: nothing that passes by itself is ever a refusal.
func TestEveryNumberHasAClass(t *testing.T) {
	t.Parallel()
	passes := []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO, syscall.ENOSPC, syscall.EAGAIN, syscall.EINTR,
		syscall.ETIMEDOUT, syscall.EDQUOT, syscall.EBUSY, syscall.ENOBUFS, syscall.EROFS, syscall.EPERM, syscall.EACCES,
	}
	refuses := []syscall.Errno{syscall.EINVAL, syscall.ERANGE, syscall.E2BIG, syscall.EOVERFLOW, syscall.EOPNOTSUPP}
	for n := syscall.Errno(1); n < largest; n++ {
		for form, err := range map[string]error{
			"bare":    n,
			"path":    &os.PathError{Op: "write", Path: "cpu.shares", Err: n},
			"wrapped": fmt.Errorf("set cgroup a: %w", os.NewSyscallError("write", n)),
			"joined":  errors.Join(io.ErrUnexpectedEOF, n),
		} {
			class, ok := Class(err)
			if !ok || class != errdefs.Unavailable && class != errdefs.Precondition {
				t.Errorf("%s %d (%v) is of class %v, %v", form, n, n, class, ok)
			}
			if slices.Contains(passes, n) && class != errdefs.Unavailable || slices.Contains(refuses, n) && class != errdefs.Precondition {
				t.Errorf("%s %v is of class %v", form, n, class)
			}
			classified := Classify(err)
			if got := errdefs.ClassOf(classified); got != class || !errors.Is(classified, n) || classified.Error() != err.Error() {
				t.Errorf("%s %v became %v of class %v, want class %v", form, n, classified, got, class)
			}
		}
	}
}

func TestClassifyKeepsAClass(t *testing.T) {
	t.Parallel()
	if err := Classify(nil); err != nil {
		t.Errorf("nil became %v", err)
	}
	gone := fmt.Errorf("move: %w", errdefs.NotFoundf("%w", syscall.ESRCH))
	if err := Classify(gone); err != gone { //nolint:errorlint // it has to be the very same
		t.Errorf("%v became %v", gone, err)
	}
	if err := Classify(io.ErrShortWrite); errdefs.ClassOf(err) != errdefs.Unavailable || !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("an error without a number became %v of class %v", err, errdefs.ClassOf(err))
	}
	for _, err := range []error{nil, io.EOF, syscall.Errno(0)} {
		if class, ok := Class(err); ok {
			t.Errorf("%v is of class %v", err, class)
		}
	}
}
