package main

import (
	"context"
	"fmt"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/numamaps"
	"github.com/berthd/berth/server/internal/host/sysfs"
	"github.com/berthd/berth/server/internal/privileges"
)

// asHuge has how many huge pages of 2 MiB a process uses for itself, shares with others, and pins until it gets a line, and
// how many of 1 GiB it uses: as "5 3 0 0".
const asHuge = "BERTHD_TEST_HUGE"

const pageOf1Gi = 1 << 30

// mapHuge maps huge pages of a size.
func mapHuge(size, count, flag int) ([]byte, error) {
	flag |= syscall.MAP_ANON | syscall.MAP_HUGETLB | syscall.MAP_POPULATE | bits.TrailingZeros(uint(size))<<26
	m, err := syscall.Mmap(-1, 0, count*size, syscall.PROT_READ|syscall.PROT_WRITE, flag)
	if err != nil {
		return nil, fmt.Errorf("map %d huge pages of %d bytes: %w", count, size, err)
	}
	return m, nil
}

// useHugePages maps huge pages. A page in a pipe is pinned: the kernel cannot move it before it is out.
func useHugePages(counts string) (release func(), err error) {
	if counts == "" {
		return func() {}, nil
	}
	var private, shared, pinned, giant int
	if _, err := fmt.Sscan(counts, &private, &shared, &pinned, &giant); err != nil {
		return nil, err
	}
	for _, m := range []struct{ size, count, flag int }{
		{pageOf2Mi, private, syscall.MAP_PRIVATE}, {pageOf2Mi, shared, syscall.MAP_SHARED}, {pageOf1Gi, giant, syscall.MAP_PRIVATE},
	} {
		if m.count > 0 {
			if _, err := mapHuge(m.size, m.count, m.flag); err != nil {
				return nil, err
			}
		}
	}
	if pinned == 0 {
		return func() {}, nil
	}
	page, err := mapHuge(pageOf2Mi, pinned, syscall.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	var ends [2]int
	if err := unix.Pipe(ends[:]); err != nil {
		return nil, err
	}
	for i := range pinned {
		vec := unix.Iovec{Base: &page[i*pageOf2Mi]}
		vec.SetLen(1)
		if _, err := unix.Vmsplice(ends[1], []unix.Iovec{vec}, 0); err != nil {
			return nil, fmt.Errorf("put a page into a pipe: %w", err)
		}
	}
	return func() { _, _ = unix.Close(ends[0]), unix.Close(ends[1]) }, nil
}

// hugePages counts by node the huge pages that a process has mapped.
func (p *process) hugePages() map[int]int {
	p.t.Helper()
	return nodetest.Pages(p.t, p.pid(), func(mapping string) bool { return strings.Contains(mapping, " huge ") })
}

// pools are how many huge pages of a size the nodes have, and how many of them are free.
func pools(t *testing.T, size int) (all, free map[int]int) {
	t.Helper()
	all, free = map[int]int{}, map[int]int{}
	nodes, err := sysfs.FreeHugePages(os.DirFS("/sys"))
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		for _, p := range node.HugePages {
			if int(p.SizeKiB) == size>>10 {
				free[node.ID] = int(p.Count)
				text, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-%dkB/nr_hugepages", node.ID,
					p.SizeKiB))
				if err != nil {
					t.Fatal(err)
				}
				all[node.ID], _ = strconv.Atoi(strings.TrimSpace(string(text)))
			}
		}
	}
	return all, free
}

// takePages maps huge pages of a size of a node until back is called.
func takePages(t *testing.T, size, node, count int) (back func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const bind = 2 // MPOL_BIND
	mask := uint64(1) << node
	if _, _, errno := unix.Syscall(unix.SYS_SET_MEMPOLICY, bind, uintptr(unsafe.Pointer(&mask)), 64); errno != 0 {
		t.Fatal(errno)
	}
	taken, err := mapHuge(size, count, syscall.MAP_PRIVATE)
	if _, _, errno := unix.Syscall(unix.SYS_SET_MEMPOLICY, 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	if err != nil {
		t.Fatalf("node %d: %v", node, err)
	}
	return func() { _ = syscall.Munmap(taken) }
}

// withHugePages makes a pod with CPUs, memory and huge pages of its own.
func withHugePages(uid string, cpus int) *typesv1.Pod {
	r := map[string]string{"cpu": strconv.Itoa(cpus), "memory": "64Mi", "hugepages-2Mi": "32Mi"}
	return pod(uid, r, r)
}

// numaStat reads what the cgroup of a container counts by node.
func (d *daemon) numaStat(uid string) string {
	var out []string
	for _, dir := range d.cgroupDirs() {
		files, _ := filepath.Glob(filepath.Join(dir, "kubepods/pod"+uid+"/main/hugetlb.2MB.numa_stat"))
		for _, f := range files {
			text, _ := os.ReadFile(f)
			out = append(out, strings.TrimSpace(string(text)))
		}
	}
	return strings.Join(out, "; ")
}

// movesHugePages lets huge pages move. Those that a test takes are not counted as taken from pods meanwhile.
const movesHugePages = "moves: {hugePages: true}\nhotplug: {poll: 1h}\n"

// twoNodesWithPages is twoNodes on a machine whose nodes have free huge pages.
func twoNodesWithPages(t *testing.T) (n *node, d *daemon, shared *process, counts map[int]int, lowest int) {
	t.Helper()
	needPages(t)
	return twoNodesWith(t, movesHugePages)
}

// needPages skips a test of a machine without two NUMA nodes that have free huge pages of 2 MiB.
func needPages(t *testing.T) {
	t.Helper()
	all, free := pools(t, pageOf2Mi)
	if len(all) != 2 {
		t.Skipf("needs two NUMA nodes, so that there is one to move to; this machine has huge pages on %v", all)
	}
	for id := range hostNodes(t).All() {
		const need = 16
		if free[id] < need {
			t.Skipf("a move needs %d free huge pages of 2 MiB on each NUMA node; this machine has %v, and %v are free", need, all, free)
		}
	}
}

// movesTo resizes pod a, with huge pages, so that it moves.
func (d *daemon) movesTo(cpus int) *admissionv1.ResizeResponse {
	d.t.Helper()
	resp, err := d.admission.Resize(d.ctx(), berth.ResizeTo(withHugePages("a", cpus)))
	if err != nil {
		d.t.Fatal(err)
	}
	return resp
}

// TestMoveHugePagesOnTheMachine: a container that its NUMA node cannot serve any more moves to another one, with its huge
// pages: those of its own, and those that it shares. One that is pinned stays until it is not any more.
func TestMoveHugePagesOnTheMachine(t *testing.T) {
	n, d, _, byNode, _ := twoNodesWithPages(t)
	most := 0
	for _, count := range byNode {
		most = max(most, count)
	}
	for _, row := range []struct {
		name   string
		pages  string
		all    int
		pinned int
	}{
		{"all move", "5 3 0 0", 8, 0},
		{"one is pinned", "4 0 1 0", 5, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			d.admitted(withHugePages("a", 1))
			defer d.remove("a")
			p := n.stoppedWith(1, asHuge+"="+row.pages)
			d.run(p, "a", "main", "c-a")
			p.works()
			from, err := strconv.Atoi(p.status("Mems_allowed_list"))
			if err != nil {
				t.Fatal(err)
			}
			before, stat := p.hugePages(), d.numaStat("a")
			if before[from] != row.all {
				t.Fatalf("huge pages by node %v, and it may use node %d", before, from)
			}
			pool, free := pools(t, pageOf2Mi)
			to := 0
			for id := range pool {
				if id != from {
					to = id
				}
			}
			// Without free pages there, it does not move, and the kernel makes no pages of other memory.
			back := takePages(t, pageOf2Mi, to, free[to]-2)
			resp := d.movesTo(most)
			back()
			if resp.GetVerdict() != admissionv1.Verdict_VERDICT_DEFERRED ||
				!strings.Contains(resp.GetMessage(), "free pages of hugepages-2Mi needed there: 16; the kernel has 2") {
				t.Fatalf("without free pages: %v", resp)
			}
			resp = d.movesTo(most)
			if resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED || resp.GetPlan().GetBytes() != 96<<20 {
				t.Fatalf("%v", resp)
			}
			if row.pinned > 0 {
				want := fmt.Sprintf("%d of 2MB on NUMA node %d", row.pinned, from)
				nodetest.Eventually(t, moveTimeout, "berthd logs which pages stay",
					func() bool { return strings.Contains(d.log.String(), want) })
				if got := p.hugePages(); got[from] != row.pinned || !d.pods()["a"].GetMoving() {
					t.Errorf("huge pages by node %v, moving %v", got, d.pods()["a"].GetMoving())
				}
				p.released()
			}
			cpus, _ := d.agrees("a", p)
			after := p.hugePages()
			t.Logf("huge pages by node: %v before, %v after; the cgroup counts %q before, %q after; CPUs %s", before, after, stat,
				d.numaStat("a"), cpus)
			if after[from] != 0 || after[to] != row.all {
				t.Errorf("huge pages by node: %v before, %v after", before, after)
			}
			if now, _ := pools(t, pageOf2Mi); now[from] != pool[from] || now[to] != pool[to] {
				t.Errorf("the nodes have %v huge pages, had %v", now, pool)
			}
		})
	}
	d.check()
}

// TestMoveGiantPagesOnTheMachine: pages of 1 GiB move to free pages of the new NUMA node, and there are no others to move to.
func TestMoveGiantPagesOnTheMachine(t *testing.T) {
	pool, free := pools(t, pageOf1Gi)
	if len(pool) != 2 || free[0] == 0 || free[1] == 0 {
		t.Skipf("needs two NUMA nodes with a free huge page of 1 GiB each; this machine has %v, and %v are free", pool, free)
	}
	n, d, _, byNode, lowest := twoNodesWith(t, movesHugePages)
	wants := func(cpus int) *typesv1.Pod {
		r := map[string]string{"cpu": strconv.Itoa(cpus), "memory": "64Mi", "hugepages-1Gi": "1Gi"}
		return pod("a", r, r)
	}
	d.admitted(wants(1))
	p := n.stoppedWith(1, asHuge+"=0 0 0 1")
	d.run(p, "a", "main", "c-a")
	p.works()
	from := lowest
	to := 1 - from
	if before := p.hugePages(); before[from] != 1 {
		t.Fatalf("huge pages by node %v, and it has node %d", before, from)
	}
	back := takePages(t, pageOf1Gi, to, free[to])
	resp, err := d.admission.Resize(d.ctx(), berth.ResizeTo(wants(byNode[to])))
	back()
	if err != nil || resp.GetVerdict() != admissionv1.Verdict_VERDICT_DEFERRED ||
		!strings.Contains(resp.GetMessage(), "free pages of hugepages-1Gi needed there: 1; the kernel has 0") {
		t.Fatalf("without free pages: %v, %v", resp, err)
	}
	resp, err = d.admission.Resize(d.ctx(), berth.ResizeTo(wants(byNode[to])))
	if err != nil || resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%v, %v", resp, err)
	}
	cpus, _ := d.agrees("a", p)
	after := p.hugePages()
	t.Logf("huge pages by node after: %v; CPUs %s", after, cpus)
	if after[from] != 0 || after[to] != 1 {
		t.Errorf("huge pages by node after: %v", after)
	}
	if now, _ := pools(t, pageOf1Gi); now[from] != pool[from] || now[to] != pool[to] {
		t.Errorf("the nodes have %v huge pages, had %v", now, pool)
	}
	d.check()
}

// released lets a process give back the huge pages that it has pinned.
func (p *process) released() {
	p.t.Helper()
	if _, err := p.in.Write([]byte("\n")); err != nil {
		p.t.Fatal(err)
	}
	if line, err := p.out.ReadString('\n'); err != nil || line != "released\n" {
		p.t.Fatalf("the process said %q, %v", line, err)
	}
}

// TestDefragHugePagesOnTheMachine: a container leaves its NUMA node, with its huge pages, so that a pod which needs the
// whole node fits.
func TestDefragHugePagesOnTheMachine(t *testing.T) {
	n, d, _, byNode, lowest := twoNodesWithPages(t)
	d.admitted(withMemory("first", byNode[lowest]-1, "1Mi"))
	d.admitted(movable(withHugePages("a", 1)))
	p := n.stoppedWith(1, asHuge+"=6 2 0 0")
	d.run(p, "a", "main", "c-a")
	p.works()
	from, err := strconv.Atoi(p.status("Mems_allowed_list"))
	if err != nil || from == lowest {
		t.Fatalf("it may use memory of node %d: %v", from, err)
	}
	d.remove("first")
	wants := withMemory("new", byNode[from], "1Mi")
	before := p.hugePages()
	ctx, cancel := context.WithTimeout(context.Background(), moveTimeout)
	defer cancel()
	most := uint64(0)
	moved, end, err := d.defragment(ctx, &admissionv1.DefragmentRequest{Pod: wants, MaxMoves: 1}, func(e *admissionv1.DefragmentResponse) {
		most = max(most, e.GetProgress().GetAllBytes())
	})
	if err != nil || !end.GetFits() || len(moved) != 1 {
		t.Fatalf("%v: moved %v, end %v", err, moved, end)
	}
	after := p.hugePages()
	t.Logf("huge pages by node: %v before, %v after; %v", before, after, moved[0])
	const pages = 8
	if before[from] != pages || after[from] != 0 || after[lowest] != pages {
		t.Errorf("huge pages by node: %v before, %v after", before, after)
	}
	if m := moved[0]; m.GetBytesBefore()[uint32(from)] < pages*pageOf2Mi || m.GetBytesAfter()[uint32(lowest)] < pages*pageOf2Mi ||
		most < pages*pageOf2Mi {
		t.Errorf("measured: %v; at most %d bytes in the progress", m, most)
	}
	d.admitted(wants)
	d.check()
}

// TestMoveOfRunningHugePages moves a container with huge pages, on a simulated machine.
func TestMoveOfRunningHugePages(t *testing.T) {
	t.Parallel()
	for settings, refusal := range map[string]string{"": "moves.hugePages of the configuration is false", movesHugePages: ""} {
		n := newNode(t, append(staticMemory(0, "64Mi"), "--machine", "2s1n8c1t,mem=8Gi,huge=2Mi:64", "--topology-manager-policy",
			"single-numa-node")...)
		n.kernel = false
		n.configure(settings)
		d := n.start()
		d.admitted(withHugePages("a", 2))
		d.admitted(withMemory("b", 4, "1Gi"))
		d.run(n.stopped(), "a", "main", "c-a")
		resp := d.movesTo(6)
		if refusal != "" {
			if resp.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED || !strings.Contains(resp.GetMessage(), refusal) {
				t.Errorf("%q: %v", settings, resp)
			}
			continue
		}
		if resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED || resp.GetPlan().GetBytes() != 96<<20 {
			t.Fatalf("%q: %v", settings, resp)
		}
		if cpus, p := d.arrived("a"); cpus.Len() != 6 || d.mems("a", "main") != "1" {
			t.Errorf("it has CPUs %s, and memory %v", cpus, p.GetContainers()[0].GetNodeMemory())
		}
		d.check()
	}
}

// TestReaderOfHugePages: berthd has a second process only if the configuration requests it. It has one capability, no
// file of berthd, and ends with berthd.
func TestReaderOfHugePages(t *testing.T) {
	t.Parallel()
	needRoot(t)
	n := newNode(t)
	n.needKernel()
	n.env = append(n.env, readerOf+"="+n.root)
	d := n.start()
	if got := readers(n.root); len(got) != 0 {
		t.Errorf("processes %v without moves.hugePages", got)
	}
	d.kill()
	n.configure(movesHugePages)
	d = n.start()
	var pids []int
	want := mask(t, unix.CAP_SYS_PTRACE)
	n.eventually("its reader has only its capability", func() bool {
		pids = readers(n.root)
		if len(pids) != 1 {
			return false
		}
		for _, lines := range threads(t, pids[0]) {
			if lines["CapEff"] != want || lines["CapPrm"] != want || lines["CapBnd"] != want || lines["NoNewPrivs"] != "1" ||
				lines["Seccomp"] != "2" {
				return false
			}
		}
		return true
	})
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pids[0]))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		at, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pids[0], fd.Name()))
		// Go's runtime has files for its poller, and the limits of its cgroup.
		runtimes := strings.HasPrefix(at, "anon_inode:") || strings.HasPrefix(at, "/sys/fs/cgroup/")
		if number, _ := strconv.Atoi(fd.Name()); number > 2 && !runtimes {
			t.Errorf("it has file %s open", at)
		}
	}
	d.kill()
	n.eventually("the reader has ended", func() bool { return len(readers(n.root)) == 0 })
}

// TestReaderNeedsItsCapability: the reader reads processes of other users with its capability, and says what is missing
// without it.
func TestReaderNeedsItsCapability(t *testing.T) {
	t.Parallel()
	needRoot(t)
	if none := mask(t); mask(t, unix.CAP_SYS_PTRACE) == none {
		t.Skip("needs CAP_SYS_PTRACE, which this process does not have")
	}
	n := newNode(t)
	other := n.stoppedWith(1, asUser+"=1234")
	for capability, refused := range map[string]bool{"": false, strconv.Itoa(unix.CAP_SYS_PTRACE): true} {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.SetNonblock(ends[0], true); err != nil { // else its end waits for the read of the client
			t.Fatal(err)
		}
		mine, theirs := os.NewFile(uintptr(ends[0]), "reader"), os.NewFile(uintptr(ends[1]), "berthd")
		cmd := exec.Command(os.Args[0], privileges.ReaderCommand)
		cmd.Env = append(os.Environ(), asDaemon+"=1", without+"="+capability)
		cmd.Stdin, cmd.Stderr = theirs, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = theirs.Close()
		c := numamaps.NewClient(mine)
		for _, err := range []error{c.Check(n.ctx(), other.pid()), read(n.ctx(), c, other.pid())} {
			if (err != nil) != refused || refused && errdefs.ClassOf(err) != errdefs.Unsupported {
				t.Errorf("without capability %q: %v", capability, err)
			}
		}
		// Signals for the whole service, as of 'systemctl kill --signal=HUP berthd', do not end it.
		for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2} {
			if err := cmd.Process.Signal(s); err != nil {
				t.Error(err)
			}
		}
		if err := c.Check(n.ctx(), other.pid()); (err != nil) != refused || refused && errdefs.ClassOf(err) != errdefs.Unsupported {
			t.Errorf("after signals, without capability %q: %v", capability, err)
		}
		// The end of the connection ends it.
		if err := mine.Close(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

func read(ctx context.Context, c *numamaps.Client, pid int) error {
	_, err := c.Read(ctx, pid)
	return err
}

// readerOf marks the reader of a node by its environment.
const readerOf = "BERTHD_TEST_READER_OF"

// readers lists the readers of a berthd with a root directory, or all.
func readers(root string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		text, err := os.ReadFile(f)
		args := strings.Split(string(text), "\x00")
		if err != nil || len(args) < 2 || args[1] != privileges.ReaderCommand {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		env, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "environ"))
		if root == "" || strings.Contains(string(env), readerOf+"="+root+"\x00") {
			pids = append(pids, pid)
		}
	}
	return pids
}
