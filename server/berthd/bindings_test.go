package main

import (
	"fmt"
	"slices"
	"testing"
)

// TestRestartsWithoutPostStop starts a container again and again, and its end is never reported: one id is left.
func TestRestartsWithoutPostStop(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	d := n.start()
	d.admitted(burstable("x"))
	ids := func() []string { return d.pods()["x"].GetContainers()[0].GetContainerIds() }
	const starts = 20
	for i := 1; i <= starts; i++ {
		p := n.stopped()
		d.run(p, "x", "main", fmt.Sprint("id-", i))
		if got := ids(); !slices.Equal(got, []string{fmt.Sprint("id-", i)}) {
			t.Fatalf("ids are %q after start %d", got, i)
		}
		if i < starts {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	}
	// The next start overlaps with the last one.
	d.run(n.stopped(), "x", "main", "next")
	if got := ids(); !slices.Equal(got, []string{fmt.Sprint("id-", starts), "next"}) {
		t.Errorf("ids are %q while both run", got)
	}
	d.check()
}
