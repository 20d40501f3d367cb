// Package arch has the architectures of virtual machines, and all in which they differ.
//
// # Words
//
//   - console: the first serial line, where the kernel writes.
//   - line: the second one, on which the VM says its events.
package arch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Arch is an architecture.
type Arch struct {
	// Name as Go and Debian have it.
	Name string
	// QEMU is the emulator's program, and Package the package of Debian that has it.
	QEMU, Package string
	// Kernel is the package of Debian that depends on the newest kernel for virtual machines.
	Kernel string
	// Machine and CPU are QEMU's names of the board and the processor.
	Machine, CPU string
	// Console and Line are the devices of the serial lines.
	Console, Line string
	// Events are QEMU's arguments for a line that is tied to the character device "events".
	Events []string
	// KernelArgs are parameters of the kernel that save time under emulation.
	KernelArgs []string
}

// Default is the architecture where none is requested, and that of the named shapes.
const Default = "amd64"

func table() map[string]Arch {
	return map[string]Arch{
		Default: {
			QEMU: "qemu-system-x86_64", Package: "qemu-system-x86", Kernel: "linux-image-cloud-amd64",
			Machine: "pc", CPU: "max",
			Console: "ttyS0", Line: "/dev/ttyS1", Events: []string{"-serial", "chardev:events"},
			// The clock costs time under emulation, or is misjudged.
			KernelArgs: []string{"tsc=reliable", "no_timer_check"},
		},
		"arm64": {
			QEMU: "qemu-system-aarch64", Package: "qemu-system-arm", Kernel: "linux-image-cloud-arm64",
			// The older interrupt controller has no more than 8 CPUs. CPU "max" authenticates pointers, which is slow.
			Machine: "virt,gic-version=3", CPU: "cortex-a72",
			// The board has one serial line; the other one is on its PCI bus.
			Console: "ttyAMA0", Line: "/dev/ttyS0", Events: []string{"-device", "pci-serial,chardev=events"},
		},
	}
}

// Named finds an architecture.
func Named(name string) (Arch, error) {
	all := table()
	a, ok := all[name]
	if !ok {
		return Arch{}, fmt.Errorf("architecture %q: expected %s", name, strings.Join(slices.Sorted(maps.Keys(all)), " or "))
	}
	a.Name = name
	return a, nil
}
