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

// core is one core of one node while it is being put together.
type core struct {
	key     coreKey
	threads []int // in the order of the directories
	uncore  int   // id of the first uncore cache; valid if hasUncore
	// hasUncore means that a cache between core and node was found.
	hasUncore bool
}

// coreKey is what the threads of a core have in common. The kernel's core_id is
// unique only inside a package; book and drawer exist on s390x only.
type coreKey struct{ id, socket, book, drawer int }

func cpuFile(cpu int, name string) string { return fmt.Sprintf("%s/cpu%d/%s", cpuDir, cpu, name) }

func coreFile(cpu int) string { return cpuFile(cpu, "topology/core_id") }

func packageFile(cpu int) string { return cpuFile(cpu, "topology/physical_package_id") }

// addCPUs adds the online CPUs among dirs to the snapshot, as CPUs of one node.
func (d *discovery) addCPUs(node int, dirs []entry) error {
	cores, err := d.readCores(dirs)
	if err != nil {
		return err
	}
	d.readUncores(cores)
	for _, c := range cores {
		uncore := c.key.socket
		if c.hasUncore {
			uncore = c.uncore
		}
		for _, thread := range c.threads {
			d.out.CPUs = append(d.out.CPUs, machine.CPU{
				ID:      thread,
				Core:    slices.Min(c.threads),
				Socket:  c.key.socket,
				Die:     d.sys.optional(cpuFile(thread, "topology/die_id")),
				Cluster: d.sys.optional(cpuFile(thread, "topology/cluster_id")),
				Node:    node,
				Uncore:  uncore,
			})
		}
	}
	return nil
}

// readCores groups the online CPUs among dirs into cores, in the order in which
// each core's first thread appears. A CPU that lacks its ids is left out with a
// note. The reference takes all CPUs with the core_id -1 for threads of one core. Here such a CPU is
// left out, too, if the kernel reports the cores of others: it is being added.
func (d *discovery) readCores(dirs []entry) ([]*core, error) {
	var cores []*core
	byKey := make(map[coreKey]*core)
	for _, dir := range dirs {
		if !d.isOnline(dir.id) {
			continue
		}
		key, err := d.readCoreKey(dir.id)
		if errors.Is(err, fs.ErrNotExist) {
			d.notef("CPU %d is left out: %v", dir.id, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		if key.id == unknown && d.coresKnown {
			d.notef("CPU %d is left out: its core_id is %d", dir.id, unknown)
			continue
		}
		c := byKey[key]
		if c == nil {
			c = &core{key: key}
			byKey[key] = c
			cores = append(cores, c)
		}
		c.threads = append(c.threads, dir.id)
	}
	return cores, nil
}

func (d *discovery) readCoreKey(cpu int) (coreKey, error) {
	id, err := d.sys.number(coreFile(cpu))
	if err != nil {
		return coreKey{}, err
	}
	socket, err := d.sys.number(packageFile(cpu))
	if err != nil {
		return coreKey{}, err
	}
	if socket < unknown {
		return coreKey{}, errdefs.Corruptf("read /sys/%s: package %d is below -1", packageFile(cpu), socket)
	}
	return coreKey{
		id:     id,
		socket: socket,
		book:   d.sys.optional(cpuFile(cpu, "topology/book_id")),
		drawer: d.sys.optional(cpuFile(cpu, "topology/drawer_id")),
	}, nil
}

// readUncores finds each core's first cache beyond the second level that is not the whole node's.
// A cache counts as the node's if it serves as many CPUs as the node would have with all cores
// like this one. An unreadable cache ends the search: the later cores have none.
func (d *discovery) readUncores(cores []*core) {
	for _, c := range cores {
		caches, err := d.readCaches(c)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				d.notef("caches from CPU %d on are not known: %v", c.threads[0], err)
			}
			return
		}
		ofNode := len(cores) * len(c.threads)
		i := slices.IndexFunc(caches, func(ca cache) bool { return ca.level > 2 && ca.cpus != ofNode })
		if i >= 0 {
			c.uncore, c.hasUncore = caches[i].id, true
		}
	}
}

// cache is one cache of a CPU.
type cache struct{ id, level, cpus int }

var cacheName = regexp.MustCompile(`^index([0-9]+)$`)

// readCaches reads the caches of a core's first thread. Every file that the
// reference reads has to be there, used or not.
func (d *discovery) readCaches(c *core) ([]cache, error) {
	dir := cpuFile(c.threads[0], "cache")
	names, err := d.sys.numbered(dir, cacheName)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("list /sys/%s: %w", dir, fs.ErrNotExist)
	}
	caches := make([]cache, 0, len(names))
	for _, name := range names {
		file := func(name2 string) string { return dir + "/" + name.name + "/" + name2 }
		var ca cache
		// s390x, the one architecture with drawers, numbers no caches.
		if c.key.drawer == unknown {
			if ca.id, err = d.sys.number(file("id")); err != nil {
				return nil, err
			}
		}
		if ca.level, err = d.sys.number(file("level")); err != nil {
			return nil, err
		}
		for _, unused := range []string{"size", "type"} {
			if _, err := d.sys.text(file(unused)); err != nil {
				return nil, err
			}
		}
		shared, err := d.sys.text(file("shared_cpu_map"))
		if err != nil {
			return nil, err
		}
		if ca.cpus, err = countBits(shared); err != nil {
			return nil, errdefs.Corruptf("read /sys/%s: %w", file("shared_cpu_map"), err)
		}
		caches = append(caches, ca)
	}
	return caches, nil
}

// readKinds distinguishes performance and efficient cores. x86 has a list of CPUs for each kind
// of performance counters (kernel: Documentation/ABI/testing/sysfs-bus-event_source-devices).
// Other architectures have a capacity for each CPU
// (Documentation/ABI/testing/sysfs-devices-system-cpu); the largest one marks performance cores.
// If all CPUs are equal, no kind is set.
func (d *discovery) readKinds() error {
	performance, noneP, err := d.sys.cpus("devices/cpu_core/cpus")
	if err != nil {
		return err
	}
	efficient, noneE, err := d.sys.cpus("devices/cpu_atom/cpus")
	if err != nil {
		return err
	}
	if noneP || noneE {
		performance, efficient = d.readCapacities()
	}
	for i := range d.out.CPUs {
		switch cpu := &d.out.CPUs[i]; {
		case performance.Contains(cpu.ID):
			cpu.Kind = machine.KindPerformance
		case efficient.Contains(cpu.ID):
			cpu.Kind = machine.KindEfficient
		}
	}
	return nil
}

// readCapacities returns the CPUs of the largest capacity and the others; both
// empty where a CPU has no capacity or all have the same.
func (d *discovery) readCapacities() (performance, efficient cpuset.Set) {
	capacity := make(map[int]int, len(d.out.CPUs))
	largest := 0
	for _, cpu := range d.out.CPUs {
		value, err := d.sys.number(cpuFile(cpu.ID, "cpu_capacity"))
		if err != nil || cpu.ID >= cpuset.MaxCPUs {
			return cpuset.Set{}, cpuset.Set{}
		}
		capacity[cpu.ID] = value
		largest = max(largest, value)
	}
	var most, less cpuset.Builder
	for id, value := range capacity {
		if value == largest {
			most.Add(id)
		} else {
			less.Add(id)
		}
	}
	if less.Len() == 0 {
		return cpuset.Set{}, cpuset.Set{}
	}
	return most.Set(), less.Set()
}
