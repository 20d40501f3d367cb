package main

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// asKinds has how many MiB of each other kind of memory a process uses: locked, shared, and of a file in a tmpfs that nobody has mapped.
const asKinds = "BERTHD_TEST_KINDS"

func useKinds(mib string) error {
	if mib == "" {
		return nil
	}
	n, err := strconv.Atoi(mib)
	if err != nil {
		return err
	}
	for _, m := range []struct {
		flags int
		lock  bool
	}{{syscall.MAP_PRIVATE, true}, {syscall.MAP_SHARED, false}} {
		data, err := syscall.Mmap(-1, 0, n<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_POPULATE|m.flags)
		if err == nil && m.lock {
			err = syscall.Mlock(data)
		}
		if err != nil {
			return fmt.Errorf("map memory: %w", err)
		}
	}
	fd, err := unix.MemfdCreate("kinds", 0)
	if err != nil {
		return err
	}
	if _, err := unix.Write(fd, make([]byte, n<<20)); err != nil {
		return fmt.Errorf("write to a file in memory: %w", err)
	}
	return nil
}

// sharedPages counts by node the pages of shared memory that a process has mapped.
func (p *process) sharedPages() map[int]int {
	p.t.Helper()
	return nodetest.Pages(p.t, p.pid(), func(mapping string) bool { return strings.Contains(mapping, " file=/dev/zero") })
}

// TestMoveEachKindOnTheMachine: locked and shared memory moves with its container, and files of a tmpfs that nobody has mapped do not
// hold up the move.
func TestMoveEachKindOnTheMachine(t *testing.T) {
	n, d, _, byNode, _ := twoNodes(t)
	d.admitted(withMemory("a", 1, "128Mi"))
	const each = 8 // MiB
	p := n.stoppedWith(1, asKinds+"="+strconv.Itoa(each))
	d.run(p, "a", "main", "c-a")
	p.works()
	from, err := strconv.Atoi(p.status("Mems_allowed_list"))
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	for _, count := range byNode {
		most = max(most, count)
	}
	resp, err := d.admission.Resize(d.ctx(), berth.ResizeTo(withMemory("a", most, "128Mi")))
	if err != nil || resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%v, %v", resp, err)
	}
	_, nodes := d.agrees("a", p)
	private, shared := p.pages(), p.sharedPages()
	t.Logf("memory on nodes %s: private pages by node %v, shared %v", nodes, private, shared)
	to := lowestOf(nodes)
	const pages = each << 20 / 4096
	if to == from || private[to] < pages || shared[to] < pages || shared[from] > 0 {
		t.Errorf("it was on node %d, and is on %d: private pages by node %v, shared %v", from, to, private, shared)
	}
	d.check()
}
