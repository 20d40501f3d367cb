package sysfs

import (
	"fmt"
	"os"

	"github.com/berthd/berth/managers/machine"
)

// Host describes the machine that the program runs on. The trees are opened as
// roots, which follow the links inside /sys and nothing that leads out of it.
func Host() (machine.Snapshot, error) {
	sys, err := os.OpenRoot("/sys")
	if err != nil {
		return machine.Snapshot{}, fmt.Errorf("discover machine: %w", err)
	}
	defer sys.Close()
	proc, err := os.OpenRoot("/proc")
	if err != nil {
		return machine.Snapshot{}, fmt.Errorf("discover machine: %w", err)
	}
	defer proc.Close()
	return Discover(sys.FS(), proc.FS())
}
