package cgroup

import "fmt"

// MovesMemoryV2 reports whether a kernel moves memory with the memory nodes of a cgroup of v2, by its
// release: no file shows it, and the kernel accepts the nodes in any case.
func MovesMemoryV2(release string) bool {
	var major, minor int
	_, err := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return err == nil && (major > 5 || major == 5 && minor >= 15)
}
