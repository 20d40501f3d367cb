package main

import (
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/berthd/berth/server/servertest"
)

func TestContainerdRelease(t *testing.T) {
	t.Parallel()
	testRelease(t, nil)
}

// TestContainerdSlicesRelease has systemd as the driver of cgroups.
func TestContainerdSlicesRelease(t *testing.T) {
	t.Parallel()
	tree, err := servertest.OpenSlices()
	if err != nil {
		t.Skipf("no systemd to ask: %v", err)
	}
	testRelease(t, tree)
}

// testRelease ends berth-nri in an orderly way. After an end for an upgrade the containers are where they
// were. After the last end each process is back on all CPUs, with its quota, as if berth had never been
// there, by the kernel's values. berthd has ended before, as both end together.
func testRelease(t *testing.T, slices *servertest.Slices) {
	if runtime.NumCPU() < 2 {
		t.Skipf("needs 2 CPUs, one of them for the system; here are %d", runtime.NumCPU())
	}
	n := newNode(t, slices)
	all, rest := "0-"+strconv.Itoa(runtime.NumCPU()-1), range1(runtime.NumCPU()-1)
	milli := int64(runtime.NumCPU()-1) * 1000
	web, trainer := n.pod("web", "burstable"), n.pod("trainer", "")
	w, tr := web.run(100, 0), trainer.run(milli, 128*mib)
	n.runsOn("the shared container", w, "0")
	n.runsOn("the container of its own", tr, rest)

	if err := n.plugin.End(os.Interrupt); err != nil {
		t.Errorf("the end for an upgrade: %v", err)
	}
	if allowed(w) != "0" || allowed(tr) != rest {
		t.Errorf("after an end for an upgrade the containers run on %s and %s", allowed(w), allowed(tr))
	}
	n.startPlugin("--release-at-end", "always")
	if err := n.berthd.End(os.Interrupt); err != nil {
		t.Errorf("the end of berthd: %v", err)
	}
	if err := n.plugin.End(os.Interrupt); err != nil {
		t.Errorf("the last end: %v", err)
	}
	if allowed(w) != all || allowed(tr) != all {
		t.Errorf("after the last end the containers run on %s and %s, want %s", allowed(w), allowed(tr), all)
	}
	if got, want := quotaOf(t, tr), strconv.FormatInt(milli*100, 10); got != want {
		t.Errorf("after the last end the container has the quota %q, want %s", got, want)
	}
}
