//go:build linux && !amd64 && !arm64

package confine

// machineCalls has no list for this machine.
func machineCalls() (machine uint32, calls []uintptr, ok bool) { return 0, nil, false }
