//go:build !linux

package procfs

import "github.com/berthd/berth/managers/errdefs"

// NoSwap is for Linux only.
func NoSwap() error { return errdefs.Unsupportedf("there is no tmpfs on this system") }
