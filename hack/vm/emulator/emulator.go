// Package emulator boots a virtual machine under QEMU and listens to it until it
// has powered itself off.
//
// # Words
//
//   - console: the first serial line, where the kernel writes; it goes to a file.
//   - line: the second one, on which the VM says its events.
//   - hang: a boot that does not reach user space. Under emulation on a busy
//     machine about one in fifteen does so, before the kernel says anything.
//
// # Invariants
//
//   - A boot that hangs is tried again; what happens in user space never is.
//   - No QEMU outlives Run.
package emulator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/hack/vm/arch"
	"github.com/berthd/berth/hack/vm/job"
)

// Config of a machine.
type Config struct {
	// Arch has the machine's serial lines.
	Arch arch.Arch
	// QEMU, Kernel and Image are paths of the host.
	QEMU, Kernel, Image string
	// Disk is the file of an NVMe disk; empty for none. It outlives the machine.
	Disk string
	// Accelerator is QEMU's -accel.
	Accelerator string
	// Monitor is the socket on which QEMU takes commands; empty for none.
	Monitor string
	// Machine are the arguments that make the machine, see package shape.
	Machine []string
	// KernelArgs go to the kernel's command line.
	KernelArgs []string
	// Dir takes the console's file.
	Dir string
	// BootLimit is how long a boot may take to user space, if the kernel says
	// nothing; one that does say something may take a few times as long.
	BootLimit time.Duration
	// Log receives messages about repeated boots.
	Log io.Writer
}

// attempts is how often a boot is tried.
const attempts = 4

// slowness is how many times the limit a boot may take whose kernel has said
// something: it is slow, and would be so again.
const slowness = 4

// errHang is a boot that did not reach user space.
var errHang = errors.New("the VM did not reach user space")

// Run boots the machine and hands its events over. It returns nil if the VM
// said job.Done and powered off.
func Run(ctx context.Context, cfg Config, handle func(job.Event)) error {
	for try := 1; ; try++ {
		err := boot(ctx, cfg, handle)
		if !errors.Is(err, errHang) || try == attempts {
			return err
		}
		fmt.Fprintf(cfg.Log, "boot %d hung, trying again\n", try)
	}
}

// consoleTail is how much of the console an error shows.
const consoleTail = 8 << 10

func boot(ctx context.Context, cfg Config, handle func(job.Event)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	line, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer line.Close()
	console := filepath.Join(cfg.Dir, "console.log")
	_ = os.Remove(console) // of a boot before
	var said strings.Builder
	cmd := exec.CommandContext(ctx, cfg.QEMU, cfg.args(console)...)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stdout, cmd.Stderr = &said, &said
	err = cmd.Start()
	_ = theirs.Close() // QEMU has its own
	if err != nil {
		return err
	}
	late := time.AfterFunc(slowness*cfg.BootLimit, func() { cancel(errHang) })
	defer late.Stop()
	hang := time.AfterFunc(cfg.BootLimit, func() {
		if tail(console) == emptyConsole {
			cancel(errHang)
		}
	})
	defer hang.Stop()
	var done atomic.Bool
	heard := job.Decode(line, func(e job.Event) {
		switch e.Kind {
		case job.Boot:
			hang.Stop()
			late.Stop()
		case job.Done:
			done.Store(true)
		}
		handle(e)
	})
	if heard != nil {
		cancel(heard)
	}
	ended := cmd.Wait()
	if cause := context.Cause(ctx); cause != nil {
		ended = cause
	} else if ended == nil && !done.Load() {
		ended = errors.New("the VM ended before its job was done")
	}
	if ended == nil {
		return nil
	}
	return fmt.Errorf("%w\n%s%s", ended, said.String(), tail(console))
}

// args is QEMU's command line. The second serial line is the first of the files
// that the process inherits.
func (cfg Config) args(console string) []string {
	kernel := slices.Concat([]string{
		// A kernel that lies elsewhere each time lies now and then where a page of 1 GiB
		// should.
		"console=" + cfg.Arch.Console, "quiet", "panic=-1", "nokaslr",
		// What costs time under emulation.
		"mitigations=off", "nowatchdog",
	}, cfg.Arch.KernelArgs, cfg.KernelArgs)
	var disk []string
	if cfg.Disk != "" {
		disk = []string{"-drive", "if=none,id=disk,format=raw,file=" + cfg.Disk, "-device", "nvme,drive=disk,serial=berth"}
	}
	var monitor []string
	if cfg.Monitor != "" {
		monitor = []string{"-qmp", "unix:" + cfg.Monitor + ",server=on,wait=off"}
	}
	return slices.Concat(cfg.Machine, disk, monitor, []string{
		"-chardev", "file,id=events,path=/dev/fd/3",
		"-accel", cfg.Accelerator, "-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", cfg.Kernel, "-initrd", cfg.Image, "-append", strings.Join(kernel, " "),
		"-serial", "file:" + console,
	}, cfg.Arch.Events)
}

const emptyConsole = "the console is empty"

// tail gives the end of the console.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil || len(text) == 0 {
		return emptyConsole
	}
	return "console:\n" + string(text[max(0, len(text)-consoleTail):])
}
