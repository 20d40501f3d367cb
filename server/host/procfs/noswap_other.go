//go:build !linux

package procfs

import "github.com/berthd/berth/managers/fault"

// NoSwap is for Linux only.
func NoSwap() error { return fault.Unsupportedf("there is no tmpfs on this system") }
