package sysfs

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strconv"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

// readNodes reads the CPUs, memory, huge pages and distances of every node
// directory. Nodes without CPUs and without memory are kept. The links to CPUs in
// a node's directory are not followed: the CPU directories hold the same.
func (d *discovery) readNodes(dirs []entry) error {
	for _, dir := range dirs {
		base := nodeDir + "/" + dir.name
		cpus, err := d.sys.numbered(base, cpuName)
		if err != nil {
			return err
		}
		if err := d.addCPUs(dir.id, cpus); err != nil {
			return err
		}
		node := machine.Node{ID: dir.id}
		if node.MemoryBytes, err = d.readNodeMemory(base); err != nil {
			return err
		}
		if node.HugePages, err = d.sys.hugePages(base+"/hugepages", "nr_hugepages"); err != nil {
			return err
		}
		d.out.Nodes = append(d.out.Nodes, node)
	}
	return d.readDistances(dirs)
}

// readNodeMemory returns the memory of a node, 0 if the node has no meminfo.
func (d *discovery) readNodeMemory(base string) (uint64, error) {
	text, err := d.sys.text(base + "/meminfo")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	bytes, err := memTotal(text)
	if err != nil {
		return 0, errdefs.Corruptf("read /sys/%s/meminfo: %w", base, err)
	}
	return bytes, nil
}

// hugePages reads a count of the pools below a directory that may be absent: nr_hugepages is the
// total, free_hugepages the unused pages.
func (t tree) hugePages(dir, count string) ([]machine.HugePages, error) {
	pools, err := t.numbered(dir, hugePagesName)
	if err != nil {
		return nil, err
	}
	var pages []machine.HugePages
	for _, pool := range pools {
		file := dir + "/" + pool.name + "/" + count
		text, err := t.text(file)
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, errdefs.Corruptf("read %s/%s: %q is not a number of pages", t.mount, file, text)
		}
		pages = append(pages, machine.HugePages{SizeKiB: uint64(pool.id), Count: n})
	}
	slices.SortFunc(pages, func(a, b machine.HugePages) int { return cmp.Compare(a.SizeKiB, b.SizeKiB) })
	return pages, nil
}

// readDistances reads each node's list, which has one number for every online node by position.
// The node directories are the online nodes (kernel: drivers/base/node.c). A missing list, or one
// with another length, is ignored. The reference uses the id as the index. If ids have gaps, it
// gets another pair's distance or crashes (kubernetes#113781 is about the same list).
func (d *discovery) readDistances(dirs []entry) error {
	ids := make([]int, 0, len(dirs))
	for _, dir := range dirs {
		ids = append(ids, dir.id)
	}
	slices.Sort(ids)
	if ids[len(ids)-1] >= numa.MaxNodes {
		return nil // machine.New refuses this machine, and returns the reason
	}
	lists := make(map[int][]int, len(dirs))
	for _, dir := range dirs {
		file := nodeDir + "/" + dir.name + "/distance"
		text, err := d.sys.text(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		list, err := parseDistances(text)
		if err != nil {
			return errdefs.Corruptf("read /sys/%s: %w", file, err)
		}
		if len(list) != len(ids) {
			d.notef("the distances of node %d are left out: /sys/%s has %d numbers for %d nodes", dir.id, file, len(list), len(ids))
			continue
		}
		lists[dir.id] = list
	}
	var err error
	if d.out.Distances, err = numa.FromLists(ids, lists); err != nil {
		return errdefs.Corruptf("read distances: %w", err)
	}
	return nil
}

// readPackages creates a node for every physical package, for a kernel without node directories.
// The reference does the same but gives these nodes no memory, so that no memory can be pinned.
// Here a single package gets all memory and huge pages of the machine, because no other
// distribution is possible.
func (d *discovery) readPackages(all []entry) error {
	d.notef("the kernel has no NUMA nodes: every physical package counts as one")
	byPackage := make(map[int][]entry)
	var packages []int
	for _, dir := range all {
		id, err := d.sys.number(packageFile(dir.id))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if byPackage[id] == nil {
			packages = append(packages, id)
		}
		byPackage[id] = append(byPackage[id], dir)
	}
	slices.Sort(packages)
	for position, id := range packages {
		node := d.pseudoNode(packages, position)
		if err := d.addCPUs(node.ID, byPackage[id]); err != nil {
			return err
		}
		d.out.Nodes = append(d.out.Nodes, node)
	}
	if len(d.out.Nodes) != 1 {
		return nil
	}
	d.out.Nodes[0].MemoryBytes = d.out.MemoryBytes
	var err error
	d.out.Nodes[0].HugePages, err = d.sys.hugePages(hugePagesDir, "nr_hugepages")
	return err
}

// pseudoNode returns the node of a package. Its id is the package's. If firmware numbers packages
// with invalid node ids (-1 for "unknown", or offsets in a table), its id is the position.
func (d *discovery) pseudoNode(packages []int, position int) machine.Node {
	if packages[0] < 0 || packages[len(packages)-1] >= numa.MaxNodes {
		return machine.Node{ID: position}
	}
	return machine.Node{ID: packages[position]}
}
