package main

import (
	"os"
	"testing"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
)

// TestResetExtendedResources: only a node that knew no devices when it started tells
// agents to take back what they published.
func TestResetExtendedResources(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--machine", "4c")
	n.kernel = false
	d := n.start()
	resets := func() bool {
		t.Helper()
		status, err := nodev1.NewNodeServiceClient(d.conn).GetStatus(d.ctx(), &nodev1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return status.GetResetExtendedResources()
	}
	if !resets() {
		t.Error("a new node resets nothing")
	}
	d.plugin("g0 g1")
	d.expectDevices(2)
	d.admitted(guaranteed("a", 1, 1))
	d.kill()
	if d = n.start(); resets() {
		t.Error("a node that knows a resource resets it")
	}
	d.kill()
	// The pod lives on, and its claim record has its device.
	if err := os.Remove(n.root + "/state/ledger.db"); err != nil {
		t.Fatal(err)
	}
	if d = n.start(); resets() {
		t.Error("a node resets what a living pod holds")
	}
}
