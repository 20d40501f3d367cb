// Package errno gives an error of the kernel its class, once for everything that makes system calls.
//
// Words:
//
//   - value refusal: an error number by which the kernel says that it does not take the value or the call as such. The
//     same call fails the same way again until the value, the kernel or its configuration is another one.
//   - all other numbers pass by themselves, or when an operator acts: no descriptor or memory is free, the disk is full
//     or broken, a device is busy, permission is missing.
//
// Invariant: only a value refusal says something about the pod whose value was written. Every other number, also one
// that this package does not know, is of class Unavailable, of which the admission engine makes no verdict.
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

// Classify gives an error of the kernel its class. An error that has a class keeps it; one without an error number is of
// class Unavailable, since libraries that write control files do not always keep the number. nil stays nil.
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
