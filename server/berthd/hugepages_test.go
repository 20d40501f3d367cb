package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
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
// with that configuration, also where they are not counted (features.asKubelet), and the answer names what the ledger and what
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
	} {
		n := newNode(t, staticMemory(lowest, "64Mi")...)
		text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\nfeatures: {asKubelet: true}\n" + row.config
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
			!strings.HasSuffix(resp.GetMessage(), "are free by the ledger and the kernel has 0") {
			t.Errorf("%s: %v %q: %s", name, resp.GetVerdict(), resp.GetReason(), resp.GetMessage())
		}
		d.admitted(pinned("late", "16Mi", "hugepages-2Mi", "2Mi"))
		d.kill()
	}
}

// TestPagesOfOthers: huge pages that a process outside of pods uses are counted: they are a finding, and no pod gets them until they
// are free. Those of pods are not.
func TestPagesOfOthers(t *testing.T) { //nolint:paralleltest // other tests use the machine's huge pages, too
	if pages := freePages(t); pages < 4 {
		t.Skipf("needs 4 free huge pages, and the kernel has %d of 2 MiB (free_hugepages)", pages)
	}
	lowest, _ := hostNodes(t).Lowest()
	n := newNode(t, staticMemory(lowest, "64Mi")...)
	n.needKernel()
	n.configure("hotplug: {poll: 10ms}\n")
	d := n.start("--node-fit")
	taken := func() (texts []string) {
		check, err := d.inspect.Check(d.ctx(), &inspectv1.CheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range check.GetFindings() {
			if strings.Contains(f.GetText(), "in use outside of pods") {
				texts = append(texts, f.GetText())
			}
		}
		return texts
	}
	d.eventually("no page is in use", func() bool { return len(taken()) == 0 })

	d.admitted(pinned("mine", "16Mi", "hugepages-2Mi", "4Mi"))
	p := n.stoppedWith(1, asHuge+"=2 0 0 0")
	d.run(p, "mine", "main", "id-mine")
	p.works()
	if texts := taken(); len(texts) > 0 {
		t.Errorf("pages of a pod: %q", texts)
	}

	all, err := mapHuge(pageOf2Mi, freePages(t), syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	d.eventually("the pages of another process are a finding", func() bool { return len(taken()) > 0 })
	for _, late := range []*typesv1.Pod{
		pinned("late", "16Mi", "hugepages-2Mi", "2Mi"),
		pod("burstable", map[string]string{"cpu": "100m", "memory": "16Mi", "hugepages-2Mi": "2Mi"},
			map[string]string{"hugepages-2Mi": "2Mi"}),
	} {
		if v := d.admit(late); v.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED {
			t.Errorf("a page that another process has: %v", v)
		}
	}
	if err := syscall.Munmap(all); err != nil {
		t.Fatal(err)
	}
	d.eventually("the pages are free again", func() bool { return len(taken()) == 0 })
	d.admitted(pinned("late", "16Mi", "hugepages-2Mi", "2Mi"))
	d.check()
}
