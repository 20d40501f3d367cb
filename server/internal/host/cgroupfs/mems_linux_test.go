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

// workerEnv makes the test binary be a process that, after a line of input, uses so many
// bytes of memory.
const workerEnv = "BERTH_TEST_WORKER"

// work waits for a line, uses memory, prints a line and waits for the end of its input.
func work(bytes int) {
	fmt.Println("ready")
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
		if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name, Values: cgroup.Values{Cpuset: want}}); err != nil {
			t.Fatal(err)
		}
		const bytes = 16 << 20
		before, after := useMemory(t, d, name, bytes)
		if got, least := after[node]-before[node], bytes/os.Getpagesize(); got < least {
			t.Errorf("a process on node %d has got %d pages there, want at least %d", node, got, least)
		}
		for other := range after {
			if other != node && after[other] > before[other] {
				t.Errorf("a process on node %d has got %d pages on node %d", node, after[other]-before[other], other)
			}
		}
	}
}

// useMemory runs a process in a cgroup that uses memory, and counts the pages
// that it had there before and those that it has afterwards, by node. On v1 what
// it had before it was moved stays where it is.
func useMemory(t *testing.T, d *Driver, name cgroup.Name, bytes int) (before, after map[int]int) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", workerEnv, bytes))
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	piped, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = c.Wait() }()
	out := bufio.NewReader(piped)
	says := func(want string) {
		t.Helper()
		if line, err := out.ReadString('\n'); err != nil || line != want {
			t.Fatalf("the process said %q, %v; want %q", line, err, want)
		}
	}
	says("ready\n")
	if err := d.Move(t.Context(), name, c.Process.Pid); err != nil {
		t.Fatal(err)
	}
	before = pages(t, c.Process.Pid)
	if _, err := io.WriteString(in, "go\n"); err != nil {
		t.Fatal(err)
	}
	says("done\n")
	return before, pages(t, c.Process.Pid)
}

// pages counts a process's pages by node (numa(7)). Those of files are left out:
// the first reader of a file has chosen their node.
func pages(t *testing.T, pid int) map[int]int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/numa_maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[int]int)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " file=") {
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

var pagesOnNode = regexp.MustCompile(` N(\d+)=(\d+)`)
