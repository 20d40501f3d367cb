// Package errno assigns classes to errors of the kernel, for all packages that make system calls.
//
// Words:
//
//   - value refusal: an error number that means that the kernel does not accept the value or the call. The same call
//     fails again until the value, the kernel or its configuration has changed.
//   - other numbers are temporary, or an operator can resolve them: no free descriptor or memory, a full or broken
//     disk, a busy device, a missing permission.
//
// Invariant: only a value refusal is attributed to the pod whose value was written. Every other
// number, including unknown ones, is of class Unavailable, which never becomes a verdict of the
// admission engine.
package errno

import (
	"errors"
	"syscall"

	"github.com/berthd/berth/managers/errdefs"
)

// valueRefusals lists the value refusals.
var valueRefusals = []syscall.Errno{
	syscall.EINVAL, syscall.ERANGE, syscall.EDOM, syscall.E2BIG, syscall.EOVERFLOW, syscall.ENAMETOOLONG,
	syscall.ENOSYS, syscall.ENOTSUP, syscall.EOPNOTSUPP,
}

// Class gives the class of an error that carries an error number: Precondition for a value refusal, Unavailable for
// any other number. It is false for an error without a number.
func Class(err error) (errdefs.Class, bool) {
	var n syscall.Errno
	if !errors.As(err, &n) || n == 0 {
		return errdefs.Internal, false
	}
	for _, refusal := range valueRefusals {
		if n == refusal {
			return errdefs.Precondition, true
		}
	}
	return errdefs.Unavailable, true
}

// Classify assigns a class to an error of the kernel. An error with a class keeps it. An error
// without an error number is of class Unavailable, because libraries that write control files
// sometimes drop the number. nil stays nil.
func Classify(err error) error {
	var have *errdefs.Error
	if err == nil || errors.As(err, &have) {
		return err
	}
	if class, ok := Class(err); ok && class == errdefs.Precondition {
		return errdefs.Preconditionf("%w", err)
	}
	return errdefs.Unavailablef("%w", err)
}
