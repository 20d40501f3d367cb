package sysfs

import (
	"errors"
	"io/fs"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
)

// FreeHugePages returns the number of free huge pages by NUMA node. If the kernel has no nodes,
// node 0 has the whole machine's. sys is /sys. Errors name the file. Errors about its content are
// of class Corrupt.
func FreeHugePages(sys fs.FS) ([]machine.Node, error) {
	return pagesOf(sys, freePages, noMemory)
}

// HugePagesInUse returns the number of huge pages that are not free, surplus pages included. Pages that a process has reserved and
// not used yet are free.
func HugePagesInUse(sys fs.FS) ([]machine.Node, error) {
	all, err := pagesOf(sys, "nr_hugepages", noMemory)
	if err != nil {
		return nil, err
	}
	free, err := FreeHugePages(sys)
	if err != nil {
		return nil, err
	}
	has := map[[2]uint64]uint64{}
	for _, n := range free {
		for _, p := range n.HugePages {
			has[[2]uint64{uint64(n.ID), p.SizeKiB}] = p.Count
		}
	}
	for _, n := range all {
		for i := range n.HugePages {
			p := &n.HugePages[i]
			p.Count -= min(p.Count, has[[2]uint64{uint64(n.ID), p.SizeKiB}])
		}
	}
	return all, nil
}

const freePages = "free_hugepages"

func noMemory(tree, string) (uint64, error) { return 0, nil }

// Free is FreeHugePages with the free memory of each node (MemFree). A node without a meminfo
// has 0 bytes.
func Free(sys fs.FS) ([]machine.Node, error) {
	return pagesOf(sys, freePages, func(t tree, dir string) (uint64, error) {
		file := dir + "/meminfo"
		text, err := t.text(file)
		if errors.Is(err, fs.ErrNotExist) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		bytes, err := memAmount(text, "MemFree")
		if err != nil {
			return 0, errdefs.Corruptf("read %s/%s: %w", t.mount, file, err)
		}
		return bytes, nil
	})
}

// pagesOf reads a count of the pools of each node.
func pagesOf(sys fs.FS, count string, memory func(t tree, dir string) (uint64, error)) ([]machine.Node, error) {
	t := tree{fsys: sys, mount: "/sys"}
	dirs, err := t.numbered(nodeDir, nodeName)
	if err != nil {
		return nil, err
	}
	if len(dirs) == 0 {
		pages, err := t.hugePages(hugePagesDir, count)
		return []machine.Node{{HugePages: pages}}, err
	}
	nodes := make([]machine.Node, len(dirs))
	for i, dir := range dirs {
		nodes[i].ID = dir.id
		if nodes[i].MemoryBytes, err = memory(t, nodeDir+"/"+dir.name); err != nil {
			return nil, err
		}
		if nodes[i].HugePages, err = t.hugePages(nodeDir+"/"+dir.name+"/hugepages", count); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}
