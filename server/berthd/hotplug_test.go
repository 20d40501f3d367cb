package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
)

// onlineFile is the kernel's switch of a CPU.
func onlineFile(cpu int) string { return fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", cpu) }

// TestCPUsGoWhileKilled takes CPUs of exclusive and shared containers offline, kills berthd before
// and after it has noticed, and brings the CPUs back. At no time does a container run on another's
// exclusive CPUs, once berthd runs. No other test runs beside it.
func TestCPUsGoWhileKilled(t *testing.T) {
	if os.Getenv(offlineEnv) == "" {
		t.Skipf("takes CPUs of the machine offline: %s is not set", offlineEnv)
	}
	needCPUs(t, 4)
	n := newNode(t)
	n.needKernel()
	file := filepath.Join(n.root, "berth.yaml")
	text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\nhotplug: {poll: 200ms, debounce: 0s}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() *daemon { return n.start("--config", file) }
	d := start()
	b := d.neighbours(n)
	x, y, s, own, others, lost := b.x, b.y, b.s, b.own, b.others, b.lost
	online := func(value string) {
		t.Helper()
		if err := os.WriteFile(onlineFile(lost), []byte(value), 0); err != nil {
			t.Skipf("CPU %d cannot be taken offline: %v", lost, err)
		}
	}
	t.Cleanup(func() { _ = os.WriteFile(onlineFile(lost), []byte("1"), 0) })
	away := func() bool {
		return x.allowed() == s.allowed() && !x.allowed().Overlaps(others) && y.allowed() == others
	}
	back := func() bool { return x.allowed() == own && !s.allowed().Overlaps(own.Union(others)) }

	d.kill()
	online("0") // while no berthd runs
	d = start()
	d.eventually("its owner runs with those that share", away)
	d.eventually("the check finds it", func() bool { return len(d.findings()) == 1 })
	online("1")
	d.eventually("its owner has it again", back)
	d.check()

	online("0")
	d.eventually("its owner runs with those that share", away)
	d.kill()
	online("1") // while no berthd runs
	d = start()
	d.eventually("its owner has it again", back)
	d.check()
	for _, uid := range []string{"x", "y", "s"} {
		d.remove(uid)
	}
	d.check()
}

// TestHugePagesAtRunTime provides huge pages while berthd runs, and takes them away again.
func TestHugePagesAtRunTime(t *testing.T) {
	if os.Getenv(offlineEnv) == "" {
		t.Skipf("changes the huge pages of the machine: %s is not set", offlineEnv)
	}
	lowest, _ := hostNodes(t).Lowest()
	poolOf := func(node int) string {
		return fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages", node)
	}
	setOn := func(node, pages int) int {
		t.Helper()
		if err := os.WriteFile(poolOf(node), []byte(strconv.Itoa(pages)), 0); err != nil {
			t.Skipf("huge pages cannot be changed: %v", err)
		}
		text, err := os.ReadFile(poolOf(node))
		if err != nil {
			t.Fatal(err)
		}
		got, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	set := func(pages int) int { t.Helper(); return setOn(lowest, pages) }
	for node := range hostNodes(t).All() {
		before, err := os.ReadFile(poolOf(node))
		if err != nil {
			t.Skipf("the kernel has no huge pages of 2 MiB: %v", err)
		}
		t.Cleanup(func() { _ = os.WriteFile(poolOf(node), before, 0) })
		if got := setOn(node, 0); got != 0 {
			t.Skipf("the kernel keeps %d huge pages of node %d, which are in use", got, node)
		}
	}
	n := newNode(t, staticMemory(lowest, "64Mi")...)
	config := filepath.Join(n.root, "berth.yaml")
	text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\nhotplug: {poll: 100ms, debounce: 0s}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := n.start("--config", config, "--cgroup-tree", "memory")
	if v := d.admit(pinned("p", "16Mi", "hugepages-2Mi", "4Mi")); v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatal("huge pages of a machine without any")
	}
	if got := set(4); got < 4 {
		t.Skipf("the kernel gives only %d huge pages", got)
	}
	pages := func() (count uint64) {
		for _, node := range d.machine().GetNodes() {
			for _, p := range node.GetHugePages() {
				if int(node.GetNumaNode()) == lowest && p.GetPageSizeBytes() == pageOf2Mi {
					count = p.GetCount()
				}
			}
		}
		return count
	}
	d.eventually("berthd knows the pages", func() bool { return pages() == 4 })
	d.admitted(pinned("p", "16Mi", "hugepages-2Mi", "4Mi"))
	if got := d.findings(); len(got) != 0 {
		t.Errorf("with enough pages: findings %q", got)
	}
	set(1)
	d.eventually("berthd knows that pages are gone", func() bool { return pages() == 1 })
	if got := d.findings(); len(got) != 1 {
		t.Errorf("findings %q", got)
	}
	d.kill()
	d = n.start("--config", config, "--cgroup-tree", "memory")
	if got := d.findings(); len(got) != 1 {
		t.Errorf("after a restart: findings %q", got)
	}
	set(4)
	d.eventually("berthd knows that the pages are back", func() bool { return pages() == 4 })
	if got := d.findings(); len(got) != 0 {
		t.Errorf("with the pages again: findings %q", got)
	}
}

// TestSetHugePagesAtRunTime sets huge pages of the machine by a call, and takes them away again.
func TestSetHugePagesAtRunTime(t *testing.T) {
	if os.Getenv(offlineEnv) == "" {
		t.Skipf("changes the huge pages of the machine: %s is not set", offlineEnv)
	}
	lowest, _ := hostNodes(t).Lowest()
	file := fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages", lowest)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Skipf("the kernel has no huge pages of 2 MiB: %v", err)
	}
	t.Cleanup(func() { _ = os.WriteFile(file, before, 0) })
	n := newNode(t, staticMemory(lowest, "64Mi")...)
	config := filepath.Join(n.root, "berth.yaml")
	settings := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\nhotplug: {poll: 1m, debounce: 0s}\n"
	write := func(more string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(settings+more), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	d := n.start("--config", config, "--cgroup-tree", "memory")
	set := func(count uint64, dryRun bool) (*nodev1.HugePagePoolResult, error) {
		t.Helper()
		resp, err := nodev1.NewNodeServiceClient(d.conn).SetHugePages(d.ctx(), &nodev1.SetHugePagesRequest{
			Pools: []*nodev1.HugePagePool{{NumaNode: uint32(lowest), PageSizeBytes: pageOf2Mi, Count: count}}, DryRun: dryRun,
		})
		if err != nil {
			return nil, err
		}
		return resp.GetPools()[0], nil
	}
	if r, err := set(8, false); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "node.setHugePages") {
		t.Fatalf("without the right: %v, %v", r, err)
	}
	d.kill()
	write("node: {setHugePages: true}\n")
	d = n.start("--config", config, "--cgroup-tree", "memory")
	if _, err := set(8, true); err != nil {
		t.Errorf("a dry run: %v", err)
	}
	if now, _ := os.ReadFile(file); string(now) != string(before) {
		t.Errorf("a dry run: %q pages, had %q", now, before)
	}
	r, err := set(8, false)
	if err != nil {
		t.Fatal(err)
	}
	now, _ := os.ReadFile(file)
	if got := strings.TrimSpace(string(now)); got != strconv.FormatUint(r.GetCount(), 10) || r.GetRequestedCount() != 8 {
		t.Errorf("%v; the kernel has %s", r, got)
	}
	if r.GetCount() < 8 {
		t.Skipf("the kernel gives only %d huge pages", r.GetCount())
	}
	d.eventually("berthd has noticed before its next poll", func() bool {
		return d.admit(pinned("p", "16Mi", "hugepages-2Mi", "4Mi")).GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED
	})
	if r, err := set(1, false); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "pods have 4Mi there") {
		t.Errorf("fewer than a pod has: %v, %v", r, err)
	}
	d.remove("p")
	if r, err := set(1, false); err != nil || r.GetCountBefore() != 8 || r.GetCount() != 1 {
		t.Errorf("fewer: %v, %v", r, err)
	}
}
