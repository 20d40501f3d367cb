package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/berthd/berth/server/servertest"
)

// TestContainerdSlicesAppArmor: containerd confines containers with its profile of AppArmor, as it does on Debian. berthd and berth-nri,
// which are not confined, place and resize them all the same.
func TestContainerdSlicesAppArmor(t *testing.T) {
	t.Parallel()
	tree, err := servertest.OpenSlices()
	if err != nil {
		t.Skipf("no systemd to ask: %v", err)
	}
	if on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err != nil || strings.TrimSpace(string(on)) != "Y" {
		t.Skipf("the kernel does not have AppArmor, or it is off: %q, %v", on, err)
	}
	// containerd loads the profile with it.
	if _, err := os.Stat("/sbin/apparmor_parser"); err != nil {
		t.Skip(err)
	}
	n := newNode(t, tree)
	last := runtime.NumCPU() - 1 // CPU 0 is reserved
	milli := int64(last) * 1000
	web := n.pod("web", "burstable")
	w := web.run(100, 0)
	trainer := n.pod("trainer", "")
	tr := trainer.run(milli, 128*mib)
	for what, pid := range map[string]int{"shared": w, "exclusive": tr} {
		profile, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", pid))
		if got := strings.TrimSpace(string(profile)); err != nil || got != "cri-containerd.apparmor.d (enforce)" {
			t.Errorf("the %s container has the profile %q: %v", what, got, err)
		}
	}
	if began := trainer.said("affinity"); began != range1(last) {
		t.Errorf("the exclusive container began on %s, expected %s", began, range1(last))
	}
	n.runsOn("the exclusive container", tr, range1(last))
	n.runsOn("the shared container", w, "0")
	testResize(n, web, w, trainer, tr, milli)
}
