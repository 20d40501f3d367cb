package nodetest

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// pagesOnNode is how many pages of a mapping are on a node, from numa_maps.
var pagesOnNode = regexp.MustCompile(` N(\d+)=(\d+)`)

// Pages counts by NUMA node the pages of some mappings of a process: numa(7). mapping is a line of /proc/PID/numa_maps.
func Pages(t testing.TB, pid int, of func(mapping string) bool) map[int]int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/numa_maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	counts := map[int]int{}
	for line := range strings.Lines(string(text)) {
		if !of(line) {
			continue
		}
		for _, m := range pagesOnNode.FindAllStringSubmatch(line, -1) {
			node, _ := strconv.Atoi(m[1])
			n, _ := strconv.Atoi(m[2])
			counts[node] += n
		}
	}
	return counts
}

// OfNoFile selects mappings of memory that belongs to no file. The first reader of a file has chosen the node of the file's pages.
func OfNoFile(mapping string) bool { return !strings.Contains(mapping, " file=") }
