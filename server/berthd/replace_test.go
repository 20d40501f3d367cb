package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/podrecords"
	"github.com/berthd/berth/server/internal/store"
)

// replacing are settings with which pods get other CPUs and memory for those that they lose.
const replacing = `  onLost: replace
memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 100Mi}}]}
reserved: {cpus: "0", system: {memory: 100Mi}, evictionHard: {}}
topology: {policy: single-numa-node}
`

// TestReplaceLost: a pod whose CPU goes offline gets another one, which Watch explains; where none is free it waits for
// one.
func TestReplaceLost(t *testing.T) {
	t.Parallel()
	const shape = "2s1n4c1t,mem=8Gi"
	whole := machinetest.Build(shape)
	n := newChangingNode(t, whole, replacing)
	d := n.start()
	ctx := d.ctx()
	watch, err := d.allocation.Watch(ctx, &allocationv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	d.admitted(withMemory("a", 2, "1Gi"))
	d.admitted(withMemory("b", 1, "1Gi"))
	d.run(n.stopped(), "a", "main", "c-a")
	less := machinetest.Build(shape, machinetest.Offline("2"))
	n.become(less)
	has := func(uid string, cpus cpuset.Set) {
		t.Helper()
		d.eventually(fmt.Sprintf("pod %s has CPUs %s", uid, cpus), func() bool {
			p := d.pods()[uid]
			return d.cpusOf(p) == cpus && !p.GetMoving()
		})
	}
	has("a", cpuset.Range(4, 5)) // the first node has CPUs 1 and 3, and b has 3
	d.check()
	for reason := ""; reason == ""; {
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range m.GetEvents() {
			if p := e.GetChanged(); p.GetUid() == "a" && p.GetMoving() {
				reason = p.GetMoveReason()
			}
		}
		if reason != "" && !strings.Contains(reason, "CPUs 2 are offline") {
			t.Errorf("it moves, because %s", reason)
		}
	}

	// Nothing is free, until another pod leaves.
	d.admitted(withMemory("c", 2, "1Gi"))
	d.admitted(withMemory("d", 1, "1Gi"))
	n.become(machinetest.Build(shape, machinetest.Offline("2,4")))
	d.eventually("the check finds the loss", func() bool { return len(d.findings()) == 1 })
	if got := d.cpusOf(d.pods()["a"]); got != cpuset.Range(4, 5) {
		t.Errorf("it has CPUs %s", got)
	}
	d.remove("c")
	has("a", cpuset.Range(5, 6))
	d.check()

	// Also what is lost while no berthd runs.
	d.kill()
	n.become(machinetest.Build(shape, machinetest.Offline("2,4,5")))
	d = n.start()
	has("a", cpuset.Range(6, 7))
	d.check()
}

// TestCrashDuringAReplacement kills berthd at each durable step after a CPU has gone offline. The next one ends the
// move, or begins it.
func TestCrashDuringAReplacement(t *testing.T) {
	t.Parallel()
	const shape = "2s1n4c1t,mem=8Gi"
	crashes, hits := 0, hitsOf(2, 8)
	for _, point := range slices.Concat(store.Failpoints(), podrecords.Failpoints(), []string{app.AfterMachineChange}) {
		for hit := 1; hit <= hits; hit++ {
			n := newChangingNode(t, machinetest.Build(shape), replacing)
			d := n.start()
			d.admitted(withMemory("a", 2, "1Gi"))
			d.admitted(withMemory("b", 1, "1Gi"))
			d.kill()
			d = n.launch("--failpoint", point+":kill:"+strconv.Itoa(hit))
			died := !d.readyOrDead()
			n.become(machinetest.Build(shape, machinetest.Offline("2")))
			if !died {
				died = !d.replacesOrDies("a", cpuset.Of(2))
				d.kill()
			}
			if !died {
				break // the point is not hit so often
			}
			crashes++
			d = n.start()
			d.eventually(fmt.Sprintf("%s, hit %d: it has other CPUs", point, hit), func() bool {
				p := d.pods()["a"]
				return d.cpusOf(p) == cpuset.Range(4, 5) && !p.GetMoving()
			})
			if got := d.cpusOf(d.pods()["b"]); got != cpuset.Of(3) {
				t.Errorf("%s, hit %d: the other pod has CPUs %s", point, hit, got)
			}
			d.check()
			d.kill()
		}
	}
	if crashes < 6 {
		t.Errorf("%d crashes", crashes)
	}
}

// replacesOrDies waits until a pod has none of some CPUs and does not move; false if berthd has died.
func (d *daemon) replacesOrDies(uid string, lost cpuset.Set) bool {
	for {
		resp, err := d.allocation.List(d.ctx(), &allocationv1.ListRequest{})
		if err != nil {
			return false
		}
		for _, p := range resp.GetPods() {
			if p.GetUid() == uid && !p.GetMoving() && !d.cpusOf(p).Overlaps(lost) {
				return true
			}
		}
	}
}

// TestReplaceOnTheMachine takes a CPU of an exclusive container offline. The container goes on with another one, and those
// who share never run on exclusive CPUs. So does one that loses a CPU while no berthd runs. No other test runs beside it.
func TestReplaceOnTheMachine(t *testing.T) {
	if os.Getenv(offlineEnv) == "" {
		t.Skipf("takes CPUs of the machine offline: %s is not set", offlineEnv)
	}
	needCPUs(t, 4)
	n := newNode(t)
	n.needKernel()
	file := filepath.Join(n.root, "berth.yaml")
	text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\nhotplug: {poll: 200ms, debounce: 0s, onLost: replace}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := n.start("--config", file)
	d.admitted(guaranteed("x", 1, 0))
	d.admitted(guaranteed("y", 1, 0))
	d.admitted(burstable("s"))
	x, y, s := n.stopped(), n.stopped(), n.stopped()
	d.run(x, "x", "main", "c-x")
	d.run(y, "y", "main", "c-y")
	d.run(s, "s", "main", "c-s")
	own, others := d.cpusOf(d.pods()["x"]), d.cpusOf(d.pods()["y"])
	d.eventually("all run where they shall", func() bool {
		return x.allowed() == own && y.allowed() == others && !s.allowed().Overlaps(own.Union(others))
	})
	x.works()
	lost, _ := own.Min()
	set := func(value string) error { return os.WriteFile(onlineFile(lost), []byte(value), 0) }
	t.Cleanup(func() { _ = set("1") })
	if err := set("0"); err != nil {
		t.Skipf("CPU %d cannot be taken offline: %v", lost, err)
	}
	d.eventually("it has another CPU", func() bool {
		if shares := s.allowed(); shares.Overlaps(others) {
			t.Errorf("s runs on %s, and y on %s", shares, others)
		}
		p := d.pods()["x"]
		now := d.cpusOf(p)
		return !p.GetMoving() && now.Len() == 1 && now != own && x.allowed() == now && !s.allowed().Overlaps(now)
	})
	d.check()
	now := d.cpusOf(d.pods()["x"])
	if err := set("1"); err != nil {
		t.Fatal(err)
	}
	d.eventually("the CPU that is back is shared", func() bool {
		m, err := nodev1.NewNodeServiceClient(d.conn).GetMachine(d.ctx(), &nodev1.GetMachineRequest{})
		return err == nil && m.GetOfflineCpus().GetList() == "" && s.allowed().Overlaps(own) && x.allowed() == now
	})
	d.check()

	d.kill()
	lost, _ = now.Min()
	if err := set("0"); err != nil {
		t.Skipf("CPU %d cannot be taken offline: %v", lost, err)
	}
	d = n.start("--config", file)
	d.eventually("it has a CPU again", func() bool {
		p := d.pods()["x"]
		third := d.cpusOf(p)
		return !p.GetMoving() && third.Len() == 1 && third != now && x.allowed() == third && !s.allowed().Overlaps(third.Union(others)) &&
			y.allowed() == others
	})
	d.check()
}
