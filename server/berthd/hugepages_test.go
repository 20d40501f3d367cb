package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/server/internal/host/sysfs"
)

const pageOf2Mi = 2 << 20

// freePages counts the kernel's free huge pages of 2 MiB.
func freePages(t *testing.T) (n int) {
	t.Helper()
	nodes, err := sysfs.FreeHugePages(os.DirFS("/sys"))
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		for _, p := range node.HugePages {
			if p.SizeKiB == pageOf2Mi>>10 {
				n += int(p.Count)
			}
		}
	}
	return n
}

// TestFreeHugePages: huge pages that other processes use are not promised,
// with that configuration, and the answer names what the ledger and what
// the kernel has.
func TestFreeHugePages(t *testing.T) {
	t.Parallel()
	lowest, _ := hostNodes(t).Lowest()
	pages := freePages(t)
	if pages == 0 {
		t.Skip("needs free huge pages, and the kernel has 0 of 2 MiB (free_hugepages)")
	}
	for name, row := range map[string]struct {
		config  string
		verdict admissionv1.Verdict
		reason  string
	}{
		"reject": {"memory: {checkFreeHugePages: reject}\n", admissionv1.Verdict_VERDICT_REJECTED, "OutOfhugepages-2Mi"},
		"defer":  {"memory: {checkFreeHugePages: defer}\nverdicts: {deferred: true}\n", admissionv1.Verdict_VERDICT_DEFERRED, ""},
		"off":    {"", admissionv1.Verdict_VERDICT_ADMITTED, ""},
	} {
		n := newNode(t, staticMemory(lowest, "64Mi")...)
		text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\n" + row.config
		if err := os.WriteFile(n.root+"/berth.yaml", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		d := n.start("--config", n.root+"/berth.yaml", "--cgroup-tree", "memory")
		taken, err := syscall.Mmap(-1, 0, pages*pageOf2Mi, syscall.PROT_READ|syscall.PROT_WRITE,
			syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_HUGETLB|syscall.MAP_POPULATE)
		if err != nil {
			t.Fatalf("take %d huge pages: %v", pages, err)
		}
		resp := d.admit(pinned("late", "16Mi", "hugepages-2Mi", "2Mi"))
		if err := syscall.Munmap(taken); err != nil {
			t.Fatal(err)
		}
		if resp.GetVerdict() != row.verdict || resp.GetReason() != row.reason ||
			row.config != "" && !strings.HasSuffix(resp.GetMessage(), "are free by the ledger and the kernel has 0") {
			t.Errorf("%s: %v %q: %s", name, resp.GetVerdict(), resp.GetReason(), resp.GetMessage())
		}
		d.admitted(pinned("late", "16Mi", "hugepages-2Mi", "2Mi"))
		d.kill()
	}
}
