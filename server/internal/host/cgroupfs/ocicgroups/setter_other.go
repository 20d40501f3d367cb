//go:build !linux

// Package ocicgroups writes the values of cgroups, which this system does not have.
package ocicgroups

import (
	"errors"

	"github.com/berthd/berth/managers/cgroup"
)

// Setter refuses everything.
type Setter struct{}

// SetV1 refuses.
func (Setter) SetV1(cgroup.Values, cgroup.Facts, map[string]string) error {
	return errors.ErrUnsupported
}

// SetV2 refuses.
func (Setter) SetV2(cgroup.Values, cgroup.Facts, string) error { return errors.ErrUnsupported }

// Join refuses.
func (Setter) Join(string, int) error { return errors.ErrUnsupported }
