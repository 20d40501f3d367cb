package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// The environment that a virtual machine gives these tests (hack/vm/README.md): the disk that outlives
// the machine, what earlier boots have acknowledged, and whether this boot will be cut.
const (
	vmDisk = "BERTH_VM_DISK"
	vmKept = "BERTH_VM_KEPT"
	vmCut  = "BERTH_VM_CUT"
	vmBoot = "BERTH_VM_BOOT"
)

// powerMachine has room for some hundred pods with CPUs of their own.
const powerMachine = "2s2n32c2t,mem=64Gi"

// TestFileSystemCut shuts the file system down under the ledger while pods come and go,
// without a flush of its log, as a power cut does: what was acknowledged is there
// afterwards, what was not is there whole or not at all.
func TestFileSystemCut(t *testing.T) {
	t.Parallel()
	cuts := 3
	if os.Getenv("BERTH_LONG") != "" {
		cuts = 20
	}
	n := newPowerNode(t)
	disk := filepath.Join(n.root, "disk")
	if err := makeDisk(disk); err != nil {
		t.Skipf("needs mkfs.ext4: %v", err)
	}
	// A file system that was shut down stays so for as long as anybody has it mounted, as
	// containers of other tests may for a moment, in mount namespaces of their own. What is
	// mounted again is therefore a copy of the disk.
	mount := func(cut int) error {
		if cut == 0 {
			return runTool("mount", "-o", "loop", disk, n.state())
		}
		was := disk
		disk = fmt.Sprintf("%s.%d", filepath.Join(n.root, "disk"), cut)
		return errors.Join(
			runTool("cp", "--sparse=always", was, disk), os.Remove(was),
			runTool("mount", "-o", "loop", disk, n.state()),
		)
	}
	if err := mount(0); err != nil {
		t.Skipf("needs the right to mount a file system from a loop device: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(n.state(), syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	known := newAcknowledged(nil)
	for cut := range cuts {
		d := n.start()
		known.verify(d)
		// The cut comes in the middle of the work of four clients.
		d.churn(cut, known, rnd.IntN(60)+5, func() {
			if err := shutDown(n.state()); err != nil {
				t.Errorf("shut the file system down: %v", err)
			}
		})
		d.kill()
		if err := syscall.Unmount(n.state(), 0); err != nil {
			t.Fatalf("unmount after cut %d: %v", cut, err)
		}
		if err := mount(cut + 1); err != nil {
			t.Fatalf("mount after cut %d: %v", cut, err)
		}
	}
	d := n.start()
	known.verify(d)
	t.Logf("%d cuts, %d acknowledged changes", cuts, known.changes)
	if known.changes < cuts {
		t.Error("that was no test")
	}
	d.stop() // lets go of the file system
}

// TestMachineCut is one boot of a virtual machine that is killed again and again: it
// checks the answers of earlier boots, then lets pods come and go until the end.
func TestMachineCut(t *testing.T) {
	device := os.Getenv(vmDisk)
	if device == "" {
		t.Skipf("needs a virtual machine with a disk that outlives it: %s is not set", vmDisk)
	}
	n := newPowerNode(t)
	// All of the node's folder outlives the machine: the claim records of the boots before
	// are there too, and must be ignored.
	if err := syscall.Mount(device, n.root, "ext4", 0, ""); err != nil {
		t.Fatalf("mount %s: %v", device, err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(n.root, syscall.MNT_DETACH) })
	if err := os.MkdirAll(n.state(), 0o700); err != nil {
		t.Fatal(err)
	}
	known := newAcknowledged(func(line string) { fmt.Println("keep " + line) })
	known.read(t, os.Getenv(vmKept))
	d := n.start()
	known.verify(d)
	if os.Getenv(vmCut) == "" {
		t.Logf("boot %s: %d acknowledged changes", os.Getenv(vmBoot), known.changes)
		d.stop()
		return
	}
	const more = 5_000 // than any boot lives for
	d.churn(os.Getenv(vmBoot), known, more, func() { t.Error("the machine was not cut") })
}

// leaves ends the uid of a pod that may be removed. The last line of a machine before it was
// cut may never have arrived, so of these pods it cannot be known that they were to stay.
const leaves = "-leaves"

// newPowerNode makes a node with a made-up machine, whose ledger is on a disk to come.
func newPowerNode(t *testing.T) *node {
	n := newNode(t, "--machine", powerMachine)
	n.kernel = false
	if err := os.Mkdir(n.state(), 0o700); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) state() string { return filepath.Join(n.root, "state") }

// makeDisk makes a file with an ext4 file system.
func makeDisk(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(64 << 20); err != nil {
		return err
	}
	return runTool("mkfs.ext4", "-q", "-F", path)
}

func runTool(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// shutDown ends a file system at once and forgets the part of its log that is not on
// the disk yet (EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH, linux/fs/ext4/ext4.h).
func shutDown(dir string) error {
	const (
		request    = 0x8004587d // _IOR('X', 125, __u32)
		noLogFlush = 2
	)
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := uint32(noLogFlush)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(&flags))); errno != 0 {
		return errno
	}
	return nil
}

// acknowledged are the clients' answers about their pods.
type acknowledged struct {
	keep    func(line string) // gets every answer before the next call; may be nil
	mu      sync.Mutex
	pods    map[string]string // by uid: what each holds; guarded by mu
	removed map[string]bool   // guarded by mu
	asked   map[string]bool   // removals without an answer yet; guarded by mu
	changes int               // guarded by mu
}

func newAcknowledged(keep func(string)) *acknowledged {
	return &acknowledged{keep: keep, pods: map[string]string{}, removed: map[string]bool{}, asked: map[string]bool{}}
}

// note records one answer, or a removal that is about to be called.
func (a *acknowledged) note(what, uid, content string) (changes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch what {
	case "admitted":
		a.pods[uid] = content
		a.changes++
	case "removing":
		a.asked[uid] = true
	case "removed":
		a.removed[uid] = true
		a.changes++
	}
	if a.keep != nil {
		a.keep(what + " " + uid + " " + content)
	}
	return a.changes
}

// read takes over what earlier boots have kept.
func (a *acknowledged) read(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	keep := a.keep
	a.keep = nil
	defer func() { a.keep = keep }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch len(fields) {
		case 2:
			a.note(fields[0], fields[1], "")
		case 3:
			a.note(fields[0], fields[1], fields[2])
		} // a line that was cut is none
	}
}

// verify compares berthd's state with its answers.
func (a *acknowledged) verify(d *daemon) {
	d.t.Helper()
	have := d.pods()
	for _, uid := range slices.Sorted(maps.Keys(a.pods)) {
		p := have[uid]
		switch {
		case a.removed[uid] && p != nil:
			d.t.Errorf("pod %s was removed and is back", uid)
		case a.removed[uid], p == nil && (a.asked[uid] || a.keep != nil && strings.HasSuffix(uid, leaves)):
		case p == nil:
			d.t.Errorf("pod %s was admitted and is lost", uid)
		case allocationOf(p.GetContainers()) != a.pods[uid]:
			d.t.Errorf("pod %s does not hold what it was told", uid)
		}
	}
	for uid := range have {
		if a.removed[uid] {
			d.t.Errorf("pod %s was removed and is back", uid)
		}
	}
	d.check()
	resp, err := d.inspect.Check(d.ctx(), &inspectv1.CheckRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, line := range resp.GetStartReport() {
		if strings.Contains(line, "damaged") || strings.Contains(line, "lives here") {
			d.t.Errorf("the report of the start says %q", line)
		}
	}
}

// allocationOf returns the CPUs that the containers own; those that they share change with
// every pod.
func allocationOf(containers []*typesv1.ContainerAllocation) string {
	var own []string
	for _, c := range containers {
		if c.GetExclusiveCpus() {
			own = append(own, c.GetContainerName()+"="+c.GetCpus().GetList())
		}
	}
	return cmp.Or(strings.Join(own, ";"), "shared")
}

// churn lets four clients admit and remove pods until there were so many answers; then
// it calls cut, once, beside them, and returns when all of them were refused or have
// no more to do.
func (d *daemon) churn(boot any, known *acknowledged, answers int, cut func()) {
	known.mu.Lock()
	until := known.changes + answers
	known.mu.Unlock()
	ctx, cancel := context.WithCancel(d.ctx())
	defer cancel()
	var once sync.Once
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			var mine []string
			for i := 0; ; i++ {
				uid := fmt.Sprintf("p%v-%d-%d", boot, client, i)
				if i%3 > 0 {
					uid += leaves
				}
				p := burstable(uid)
				if i%4 == 0 {
					p = guaranteed(uid, 1, 0)
				}
				resp, err := d.admission.Admit(ctx, &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: p}})
				if err != nil {
					return
				}
				if resp.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
					if strings.HasSuffix(uid, leaves) {
						mine = append(mine, uid)
					}
					if known.note("admitted", uid, allocationOf(resp.GetAllocations())) >= until {
						once.Do(cut)
					}
				}
				if len(mine) < 3 || i%2 == 0 {
					continue
				}
				gone := mine[0]
				mine = mine[1:]
				known.note("removing", gone, "")
				if _, err := d.admission.RemovePod(ctx, &admissionv1.RemovePodRequest{PodUid: gone}); err != nil {
					return
				}
				known.note("removed", gone, "")
			}
		})
	}
	clients.Wait()
	once.Do(cut)
}
