package numamaps

import (
	"bufio"
	"fmt"
	"io"
	"math/bits"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
)

const (
	// maxLine is longer than a line with the longest path, whose bytes may all be escaped.
	maxLine = 64 << 10
	// maxNodes is the most NUMA nodes that a kernel is built for.
	maxNodes = 1024
)

// parse adds up the huge pages of a numa_maps. Each mapping is a line: its address, its policy, and words such as
// "huge", "N0=3" for three pages on node 0, and "kernelpagesize_kB=2048". Paths have no blank, because the kernel
// escapes it.
func parse(r io.Reader) (cgroup.HugeBytes, error) {
	out := cgroup.HugeBytes{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		huge, size := false, uint64(0)
		nodes := map[int]uint64{}
		for _, field := range fields[min(2, len(fields)):] {
			key, value, valued := strings.Cut(field, "=")
			switch {
			case !valued:
				huge = huge || key == "huge"
			case key == "kernelpagesize_kB":
				size, _ = strconv.ParseUint(value, 10, 40)
			case strings.HasPrefix(key, "N"):
				id, err := strconv.Atoi(key[1:])
				pages, err2 := strconv.ParseUint(value, 10, 63)
				if err != nil || err2 != nil || id < 0 || id >= maxNodes {
					return nil, fmt.Errorf("numa_maps: %q is no number of pages on a node", field)
				}
				nodes[id] = pages
			}
		}
		if !huge || len(nodes) == 0 {
			continue
		}
		size <<= 10
		if size == 0 {
			return nil, fmt.Errorf("numa_maps: huge pages without a size")
		}
		for id, pages := range nodes {
			hi, bytes := bits.Mul64(pages, size)
			if hi != 0 || bytes > 1<<62 {
				return nil, fmt.Errorf("numa_maps: %d pages of %d bytes", pages, size)
			}
			out.Add(cgroup.HugeBytes{int64(size): {id: bytes}})
		}
	}
	return out, lines.Err()
}
