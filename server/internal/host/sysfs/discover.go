package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
)

const (
	cpuDir       = "devices/system/cpu"
	nodeDir      = "devices/system/node"
	hugePagesDir = "kernel/mm/hugepages"
)

var (
	cpuName       = regexp.MustCompile(`^cpu([0-9]+)$`)
	nodeName      = regexp.MustCompile(`^node([0-9]+)$`)
	hugePagesName = regexp.MustCompile(`^hugepages-([0-9]+)kB$`)
)

// discovery is one run of Discover.
type discovery struct {
	sys, proc tree
	// online are the counted CPUs. allOnline means that the kernel has no list, because it cannot
	// take CPUs offline.
	online    cpuset.Set
	allOnline bool
	// coresKnown means that the kernel reports the core of the lowest CPU online.
	coresKnown bool
	out        machine.Snapshot
}

// Discover describes the machine of the given /sys and /proc. machine.New validates the result,
// and refuses a node id of 64 or more. Errors name the file. Errors about its content are of
// class Corrupt.
func Discover(sys, proc fs.FS) (machine.Snapshot, error) {
	d := &discovery{
		sys:  tree{fsys: sys, mount: "/sys"},
		proc: tree{fsys: proc, mount: "/proc"},
		out:  machine.Snapshot{Version: machine.FormatVersion},
	}
	if err := d.run(); err != nil {
		return machine.Snapshot{}, fmt.Errorf("discover machine: %w", err)
	}
	return d.out, nil
}

// Probe returns a text that differs after each change of the CPUs online, the NUMA nodes, their
// memory and their huge pages, and of the core and the node of each CPU that is online and not one of used.
// It costs a small part of Discover.
func Probe(sys, proc fs.FS, used cpuset.Set) (string, error) {
	d := discovery{sys: tree{fsys: sys, mount: "/sys"}, proc: tree{fsys: proc, mount: "/proc"}}
	parts, err := d.probe(used)
	if err != nil {
		return "", fmt.Errorf("discover machine: %w", err)
	}
	return fmt.Sprint(parts...), nil
}

func (d *discovery) probe(used cpuset.Set) (parts []any, err error) {
	online, absent, err := d.sys.cpus(cpuDir + "/online")
	if err != nil {
		return nil, err
	}
	present, none, err := d.sys.cpus(cpuDir + "/present")
	if err != nil {
		return nil, err
	}
	parts = append(parts, online, absent, present, none)
	dirs, err := d.sys.numbered(nodeDir, nodeName)
	if err != nil {
		return nil, err
	}
	for cpu := range online.Minus(used).All() {
		key, err := d.readCoreKey(cpu)
		parts = append(parts, cpu, key, err)
		for _, dir := range dirs {
			if _, err := fs.Stat(d.sys.fsys, fmt.Sprintf("%s/%s/cpu%d", nodeDir, dir.name, cpu)); err == nil {
				parts = append(parts, dir.id)
			}
		}
	}
	for _, dir := range dirs {
		base := nodeDir + "/" + dir.name
		bytes, err := d.readNodeMemory(base)
		if err != nil {
			return nil, err
		}
		pages, err := d.sys.hugePages(base+"/hugepages", "nr_hugepages")
		if err != nil {
			return nil, err
		}
		parts = append(parts, dir.id, bytes, pages)
	}
	if len(dirs) > 0 {
		return parts, nil
	}
	// Without NUMA nodes, a single package has the memory and the pages of the machine.
	if err := d.readMemory(); err != nil {
		return nil, err
	}
	pages, err := d.sys.hugePages(hugePagesDir, "nr_hugepages")
	return append(parts, d.out.MemoryBytes, pages), err
}

func (d *discovery) run() error {
	all, err := d.sys.numbered(cpuDir, cpuName)
	if err != nil {
		return err
	}
	if err := d.readOnline(all); err != nil {
		return err
	}
	if err := d.readIsolated(); err != nil {
		return err
	}
	if err := d.readMemory(); err != nil {
		return err
	}
	nodes, err := d.sys.numbered(nodeDir, nodeName)
	if err != nil {
		return err
	}
	if len(nodes) > 0 {
		err = d.readNodes(nodes)
	} else {
		err = d.readPackages(all)
	}
	if err != nil {
		return err
	}
	if len(d.out.CPUs) == 0 {
		return errdefs.Corruptf("no online CPU in /sys/%s has a core_id and a physical_package_id", cpuDir)
	}
	d.noteLostCPUs()
	if err := d.readKinds(); err != nil {
		return err
	}
	return d.readSocketCount(all)
}

func (d *discovery) notef(format string, args ...any) {
	d.out.Notes = append(d.out.Notes, fmt.Sprintf(format, args...))
}

// readOnline finds the CPUs that count, and notes those that are present but offline.
func (d *discovery) readOnline(all []entry) error {
	var err error
	if d.online, d.allOnline, err = d.sys.cpus(cpuDir + "/online"); err != nil {
		return err
	}
	if d.allOnline {
		return nil
	}
	if lowest, ok := d.online.Min(); ok {
		d.coresKnown = d.sys.optional(coreFile(lowest)) != unknown
	}
	present, absent, err := d.sys.cpus(cpuDir + "/present")
	if err != nil {
		return err
	}
	if absent {
		var b cpuset.Builder
		for _, cpu := range all {
			if cpu.id < cpuset.MaxCPUs {
				b.Add(cpu.id)
			}
		}
		present = b.Set()
	}
	d.out.Offline = present.Minus(d.online)
	return nil
}

// readIsolated reads which CPUs the kernel leaves out of load balancing, and which have no
// periodic tick. Kernels without the feature have no file, or write "(null)".
func (d *discovery) readIsolated() error {
	for file, to := range map[string]*cpuset.Set{"isolated": &d.out.Isolated, "nohz_full": &d.out.NoHZFull} {
		text, err := d.sys.text(cpuDir + "/" + file)
		if errors.Is(err, fs.ErrNotExist) || err == nil && text == "(null)" {
			continue
		}
		if err != nil {
			return err
		}
		if *to, err = cpuset.Parse(text); err != nil {
			return errdefs.Corruptf("read /sys/%s/%s: %w", cpuDir, file, err)
		}
	}
	return nil
}

func (d *discovery) isOnline(cpu int) bool { return d.allOnline || d.online.Contains(cpu) }

// readMemory reads the memory of the whole machine; without the file the sum
// over the nodes is taken.
func (d *discovery) readMemory() error {
	text, err := d.proc.text("meminfo")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if d.out.MemoryBytes, err = memTotal(text); err != nil {
		return errdefs.Corruptf("read /proc/meminfo: %w", err)
	}
	return nil
}

// noteLostCPUs reports which online CPUs are in no node: the reference does not
// see them either. They count as offline, as a CPU does that is being added and whose core the
// kernel does not report yet.
func (d *discovery) noteLostCPUs() {
	var b cpuset.Builder
	for _, cpu := range d.out.CPUs {
		if cpu.ID < cpuset.MaxCPUs {
			b.Add(cpu.ID)
		}
	}
	if lost := d.online.Minus(b.Set()); !lost.IsEmpty() {
		d.out.Offline = d.out.Offline.Union(lost)
		d.notef("CPUs %s are online and not used: they are in no NUMA node, or the kernel does not report their core", lost)
	}
}

// readSocketCount sets the counts if the reference's number of sockets differs from the number of
// the CPUs' sockets. The reference counts the "physical id" lines of /proc/cpuinfo. Without such
// lines it counts the different physical_package_id files of the online CPUs, in which an
// unreadable file counts as 0.
//
// On a kernel without NUMA the reference's number of CPUs includes offline CPUs; here they never
// count.
func (d *discovery) readSocketCount(all []entry) error {
	cpuinfo, err := d.proc.text("cpuinfo")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	sockets := countSockets(cpuinfo)
	if sockets == 0 {
		seen := make(map[int]bool)
		for _, cpu := range all {
			if d.isOnline(cpu.id) {
				id, err := d.sys.number(packageFile(cpu.id))
				if err != nil {
					id = 0
				}
				seen[id] = true
			}
		}
		sockets = len(seen)
	}
	counts := machine.Counts{
		CPUs:      len(d.out.CPUs),
		Cores:     d.distinct(func(c machine.CPU) int { return c.Core }),
		Sockets:   d.distinct(func(c machine.CPU) int { return c.Socket }),
		NUMANodes: d.distinct(func(c machine.CPU) int { return c.Node }),
		Uncores:   d.distinct(func(c machine.CPU) int { return c.Uncore }),
	}
	if counts.Sockets != sockets {
		d.notef("the kernel counts %d sockets, its CPUs name %d: the first number enters averages", sockets, counts.Sockets)
		counts.Sockets = sockets
		d.out.Counts = &counts
	}
	return nil
}

// distinct returns how many different values key has over all CPUs.
func (d *discovery) distinct(key func(machine.CPU) int) int {
	values := make([]int, 0, len(d.out.CPUs))
	for _, cpu := range d.out.CPUs {
		values = append(values, key(cpu))
	}
	slices.Sort(values)
	return len(slices.Compact(values))
}
