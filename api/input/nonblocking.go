//go:build !js

package input

import "syscall"

// A terminal that is opened does not become this process's own.
const nonBlocking = syscall.O_NONBLOCK | syscall.O_NOCTTY
