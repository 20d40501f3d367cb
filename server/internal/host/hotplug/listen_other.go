//go:build !linux

package hotplug

import (
	"context"

	"github.com/berthd/berth/managers/errdefs"
)

// Listen returns an error: only Linux has such events.
func Listen(context.Context, func()) error {
	return errdefs.Unsupportedf("this system has no events about CPUs")
}
