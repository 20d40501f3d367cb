//go:build !js

package ledgerfile

import "syscall"

const nonBlocking = syscall.O_NONBLOCK
