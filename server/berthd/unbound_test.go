package main

import (
	"testing"

	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	"github.com/berthd/berth/server/internal/store"
)

// TestStartThatWasCutOff kills the daemon between the move of a process and the
// binding's commit. The next one keeps the process off CPUs that others get, and the
// call can be repeated.
func TestStartThatWasCutOff(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	n := newNode(t)
	n.needKernel()
	d := n.start()
	d.admitted(burstable("a"))
	d.kill()
	d = n.start("--failpoint", store.BeforeCommit+":kill:1")
	p := n.stopped()
	start := func(d *daemon) error {
		_, err := d.lifecycle.PreStartContainer(d.ctx(), &lifecyclev1.PreStartContainerRequest{
			PodUid: "a", ContainerName: "main", ContainerId: "c-a", Pid: int32(p.pid()),
		})
		return err
	}
	d.diesOf(func() error { return start(d) })
	p.resume()
	p.works()
	d = n.start()
	d.admitted(guaranteed("x", 1, 0))
	x := n.stopped()
	d.run(x, "x", "main", "c-x")
	if p.allowed().Overlaps(x.allowed()) {
		t.Errorf("the process that was cut off runs on %s, the owner on %s", p.allowed(), x.allowed())
	}
	if err := start(d); err != nil {
		t.Errorf("again: %v", err)
	}
	for _, uid := range []string{"a", "x"} {
		d.remove(uid)
	}
	d.check()
}
