//go:build !linux

package volume

import "github.com/berthd/berth/managers/errdefs"

// Pin returns an error of class Unsupported.
func (Pins) Pin(Holder, int, string, string) (string, error) {
	return "", errdefs.Unsupportedf("berthlet mounts volumes on Linux only")
}

// Release does nothing: there are no pins.
func (Pins) Release(Holder) error { return nil }

// ReleasePod does nothing: there are no pins.
func (Pins) ReleasePod(string) error { return nil }

// Holders lists no pod.
func (Pins) Holders() ([]string, error) { return nil, nil }
