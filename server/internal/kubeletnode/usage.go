package kubeletnode

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/procfs"
)

// Meter reads what the containers of a running node use.
type Meter struct {
	*cgroupfs.Driver
	root  *os.Root
	mount string
	// pods is where on cgroup v1 the cgroups of pods are listed: below cpu, whose values are read anyway.
	pods string
}

// OpenMeter opens the cgroups of the node whose files are below root, a directory. Errors are of class Precondition if nothing runs there,
// as in a copy of a node's files. Links do not lead out of the directory: the usage of this machine would be shown as that node's. Close
// the meter after its last use.
func OpenMeter(root string) (_ *Meter, err error) {
	const tree = "sys/fs/cgroup"
	m := &Meter{mount: filepath.Join(root, tree)}
	if m.root, err = os.OpenRoot(root); err != nil {
		return nil, errdefs.Preconditionf("the usage of CPUs and memory cannot be read: %w", err)
	}
	if _, err = m.root.Stat(tree); err == nil {
		m.Driver, err = cgroupfs.Open(cgroupfs.Options{Mount: m.mount, Required: []string{}})
	}
	if err != nil {
		_ = m.root.Close()
		return nil, errdefs.Preconditionf("the usage of CPUs and memory cannot be read: nothing runs below %s: %w", root, err)
	}
	if m.Facts().Version == cgroup.V1 {
		m.pods = "cpu"
	}
	return m, nil
}

// CloseUnused closes the cgroups that were not used since the last call.
func (m *Meter) CloseUnused() { cgroupfs.CloseUnused(m.Driver) }

// Close closes the cgroups and the root.
func (m *Meter) Close() error { return errors.Join(m.Driver.Close(), m.root.Close()) }

// CPUs returns how long each CPU was busy since the boot.
func (m *Meter) CPUs() (map[int]time.Duration, error) {
	proc, err := fs.Sub(m.root.FS(), "proc")
	if err != nil {
		return nil, err
	}
	return procfs.CPUTimes(proc)
}

// Find returns the cgroup of a container by its runtime's id, below the cgroup of its pod; false if there is none.
func (m *Meter) Find(pod, id string) (cgroup.Name, bool) {
	entries, err := os.ReadDir(filepath.Join(m.mount, m.pods, pod))
	if err != nil || pod == "" {
		return nil, false
	}
	for _, e := range entries {
		if name := e.Name(); e.IsDir() && containerID(name) == id && !strings.Contains(name, "conmon") {
			return cgroup.Cgroupfs.Parse(pod + "/" + name), true
		}
	}
	return nil, false
}
