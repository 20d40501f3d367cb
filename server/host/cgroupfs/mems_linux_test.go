package cgroupfs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/numa"
)

// workerEnv makes the test binary be a process that, once told to, uses so many
// bytes of memory.
const workerEnv = "BERTH_TEST_WORKER"

// work waits for a line, uses memory, says so and waits for the end of its input.
func work(bytes int) {
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		os.Exit(1)
	}
	used, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		os.Exit(1)
	}
	for i := 0; i < len(used); i += os.Getpagesize() {
		used[i] = 1
	}
	fmt.Println("done")
	_, _ = io.Copy(io.Discard, in)
}

// The memory of a process comes from the nodes of its cgroup, whichever CPU it
// runs on.
func TestMemoryComesFromTheNodes(t *testing.T) {
	t.Parallel()
	d := kernelTrees[0].open(t)
	top, err := d.Observe(t.Context(), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := top.Nodes[0].Effective.Mems
	if all.Len() < 2 {
		t.Skipf("this machine has one memory node (%s)", all)
	}
	root := place(t, d)
	for node := range all.All() {
		name := append(root, fmt.Sprint("node", node))
		want := cgroup.Cpuset{CPUs: top.Nodes[0].Effective.CPUs, Mems: numa.Of(node)}
		if err := d.Ensure(t.Context(), cgroup.Node{Name: name, Values: cgroup.Values{Cpuset: want}}); err != nil {
			t.Fatal(err)
		}
		const bytes = 16 << 20
		used := useMemory(t, d, name, bytes)
		if most := bytes / os.Getpagesize(); used[node] < most {
			t.Errorf("of %d pages that a process on node %d has used, these are where they should be: %d of %v", most, node, used[node], used)
		}
		for other, pages := range used {
			if other != node && pages > used[node]/4 {
				t.Errorf("a process on node %d has %d pages on node %d", node, pages, other)
			}
		}
	}
}

// useMemory runs a process in a cgroup that uses memory, and counts the pages
// that it has, by node (numa(7)). Those of files are left out: whoever read a file
// first has chosen their node.
func useMemory(t *testing.T, d *Driver, name cgroup.Name, bytes int) map[int]int {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", workerEnv, bytes))
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = c.Wait() }()
	if err := d.Move(t.Context(), name, c.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "done\n" {
		t.Fatalf("the process said %q, %v", line, err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/numa_maps", c.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	pages := make(map[int]int)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " file=") {
			continue
		}
		for _, m := range pagesOnNode.FindAllStringSubmatch(line, -1) {
			node, _ := strconv.Atoi(m[1])
			n, _ := strconv.Atoi(m[2])
			pages[node] += n
		}
	}
	return pages
}

var pagesOnNode = regexp.MustCompile(` N(\d+)=(\d+)`)
