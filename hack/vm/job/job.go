// Package job has the messages between hack/vm and the init in its VM: the
// job that goes in with the image and the events that come out on the second
// serial line.
//
// # Words
//
//   - job: what the VM sets up and which tests it runs, in order.
//   - test: one package's compiled test binary.
//   - event: one line of JSON from the VM.
//
// # Invariants
//
//   - A VM that comes to its end says Done last; a run without it has failed,
//     whatever was said before.
//   - Every Start of a test is followed by its End, unless the VM dies.
package job

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// Where things are in the VM.
const (
	// Path is the job.
	Path = "/berth/job.json"
	// Modules is a folder of kernel modules, which are loaded before the tests.
	Modules = "/berth/modules"
	// Line is a link to the device that events are written to.
	Line = "/berth/line"
)

// ShapeEnv names the shape of the machine to the tests that run on it (package
// shape); it is empty for one that has no name.
const ShapeEnv = "BERTH_VM_SHAPE"

// Variables for the tests of a machine with a disk.
const (
	// DiskEnv names the disk's device; it is empty without one.
	DiskEnv = "BERTH_VM_DISK"
	// BootEnv numbers the boots of a machine with a disk, from 0.
	BootEnv = "BERTH_VM_BOOT"
	// LastEnv is not empty in the last boot.
	LastEnv = "BERTH_VM_LAST"
	// CutEnv is not empty in a boot that will be cut.
	CutEnv = "BERTH_VM_CUT"
	// KeptEnv names the file of the lines that the boots before have kept.
	KeptEnv = "BERTH_VM_KEPT"
)

// PartsEnv names the parts that can be plugged into the machine while it runs, with a space between; it is empty
// if there are none.
const PartsEnv = "BERTH_VM_PARTS"

// Beginnings of lines that a test prints, with the name of a part after each.
const (
	// Plug has the part plugged into the machine.
	Plug = "plug "
	// Unplug asks the kernel of the machine to let go of the part.
	Unplug = "unplug "
)

const (
	// Disk is the device of the disk.
	Disk = "/dev/nvme0n1"
	// Kept is the file of the lines that the boots before have kept.
	Kept = "/berth/kept"
	// Keep begins a line that a test prints to have it kept for the next boots.
	Keep = "keep "
)

// Cgroup is how the VM mounts cgroups.
type Cgroup string

const (
	// V1 has a hierarchy for each controller.
	V1 Cgroup = "v1"
	// Hybrid is V1 with a unified hierarchy beside it that has no controllers.
	Hybrid Cgroup = "hybrid"
	// V2 has the unified hierarchy alone.
	V2 Cgroup = "v2"
)

// Job is what a VM does.
type Job struct {
	// Cgroup is what to mount; empty where another program does.
	Cgroup Cgroup
	Tests  []Test
}

// Test is one test binary.
type Test struct {
	// Package is its import path.
	Package string
	// Binary and Dir are the program and the folder to run it in.
	Binary, Dir string
	Args        []string
	// Env is added to the VM's own.
	Env []string
}

// Kind of an event.
type Kind string

const (
	// Boot is said as soon as the VM is in user space; Text names the kernel.
	Boot Kind = "boot"
	// Start and End enclose a test; End has its exit status.
	Start Kind = "start"
	End   Kind = "end"
	// Output is Text that a test has printed.
	Output Kind = "output"
	// Trouble is why the VM could not do its job.
	Trouble Kind = "trouble"
	// Done is the last event.
	Done Kind = "done"
)

// Event is one message from the VM.
type Event struct {
	Kind Kind
	// Test is the index in Job.Tests.
	Test int `json:",omitempty"`
	// Status is the exit status of a test; 128 and the signal's number if a
	// signal ended it, as a shell has it.
	Status  int     `json:",omitempty"`
	Seconds float64 `json:",omitempty"`
	Text    string  `json:",omitempty"`
}

// Encode writes an event as one line.
func Encode(w io.Writer, e Event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// maxLine bounds a line: a VM's output comes in much smaller pieces.
const maxLine = 1 << 20

// Decode hands over events until the line ends. Empty lines are passed over: the
// line discipline of a serial line may make some. Anything else that is not an
// event is an error.
func Decode(r io.Reader, handle func(Event)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		var e Event
		if err := json.Unmarshal(text, &e); err != nil {
			return fmt.Errorf("%q is no event of the VM: %w", text, err)
		}
		handle(e)
	}
	return lines.Err()
}
