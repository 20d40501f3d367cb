package cpu

import (
	"testing"

	"github.com/berthd/berth/managers/cpuset"
)

// Offline CPUs are not allocated, whole cores included; once they are back
// they are given again.
func TestOfflineCPUsAreNotGiven(t *testing.T) {
	t.Parallel()
	n := newNode(t, machines["A"], "0", "") // cores of CPUs i and i+4
	offline := func(list string) {
		t.Helper()
		if _, err := n.SetOffline(t.Context(), set(list)); err != nil {
			t.Fatal(err)
		}
	}
	offline("1,5")
	if err := n.admit(pod("p", "c=2"), anywhere); err != nil {
		t.Fatal(err)
	}
	if got := n.held("p", "c"); got != "2,6" {
		t.Errorf("p got %s", got)
	}
	offline("1,3-5,7")
	if err := n.admit(pod("q", "c=1"), anywhere); err == nil {
		t.Errorf("q got %s", n.held("q", "c"))
	}
	offline("")
	if err := n.admit(pod("q", "c=2"), anywhere); err != nil || n.held("q", "c") != "1,5" {
		t.Errorf("q got %s, %v", n.held("q", "c"), err)
	}
	if shared := n.View().SharedCPUs(); shared != cpuset.Of(0, 3, 4, 7) {
		t.Errorf("shared are %s", shared)
	}
}
