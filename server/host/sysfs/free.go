package sysfs

import (
	"io/fs"

	"github.com/berthd/berth/managers/machine"
)

// FreeHugePages tells how many huge pages the kernel has free now, by NUMA node, or
// of the whole machine as node 0 where the kernel has no nodes. sys is /sys. Errors
// name the file; those about its content are of class Corrupt.
func FreeHugePages(sys fs.FS) ([]machine.Node, error) {
	const count = "free_hugepages"
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
		if nodes[i].HugePages, err = t.hugePages(nodeDir+"/"+dir.name+"/hugepages", count); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}
