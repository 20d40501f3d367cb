package policy

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// claimNode is a node on which container a-1 uses claim-1, which has CPUs 1 and 5. claim-2, which has CPU 6, is prepared, and no container
// uses it yet.
type claimNode struct {
	*engine
	d       *daemon
	running map[*api.PodSandbox][]*api.Container
	other   *api.PodSandbox

	mu   sync.Mutex // guards away
	away bool       // the kubelet
}

// Devices implements DeviceSource.
func (n *claimNode) Devices(context.Context, string, string) (map[string][]*typesv1.ExternalDevice, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.away {
		return nil, errdefs.NotFoundf("it has no pods yet")
	}
	return nil, nil
}

// prepared is what the files of berth-dra say.
func prepared(known func(uid string) bool) (cpus cpuset.Set, err error) {
	for uid, set := range map[string]cpuset.Set{"claim-1": cpuset.Of(1, 5), "claim-2": cpuset.Of(6)} {
		if !known(uid) {
			cpus = cpus.Union(set)
		}
	}
	return cpus, nil
}

func newClaimNode(t *testing.T) *claimNode {
	t.Helper()
	n := &claimNode{d: startDivided(t), other: pod("b", "besteffort")}
	n.d.claims()
	n.engine = newEngine(t, Config{Client: n.d.Client, Devices: n, Prepared: prepared, Pass: true})
	a := pod("a", "besteffort")
	main, first := using(container(a, "main", "a-1", 2, 0), "claim-1:left", "claim-1:right"), container(n.other, "first", "b-1", 2, 0)
	n.running = map[*api.PodSandbox][]*api.Container{a: {main}, n.other: {first}}
	n.run(n.other, first)
	n.run(a, main)
	return n
}

// kubelet ends the kubelet or starts it.
func (n *claimNode) kubelet(away bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away = away
}

// restart restarts berth-nri, to which the runtime reports what runs.
func (n *claimNode) restart() {
	n.t.Helper()
	n.policy = New(n.settings)
	var pods []*api.PodSandbox
	var containers []*api.Container
	for p, list := range n.running {
		pods = append(pods, p)
		for _, c := range list {
			c.Linux.Resources.Cpu.Cpus = n.on(c.GetId())
			containers = append(containers, c)
		}
	}
	n.calls.Lock()
	defer n.calls.Unlock()
	updates, err := n.policy.Synchronize(n.t.Context(), pods, containers)
	if err != nil {
		n.t.Fatal(err)
	}
	n.apply(updates)
}

// lose restarts berthd without its ledger and its claim records.
func (n *claimNode) lose() {
	n.t.Helper()
	n.d.stop()
	for _, dir := range []string{n.d.config.StateDir, n.d.config.RootDir + "/claims"} {
		if err := os.RemoveAll(dir); err != nil {
			n.t.Fatal(err)
		}
	}
	n.d.again()
}

// check starts another container, and compares where all containers run.
func (n *claimNode) check(when string) {
	n.t.Helper()
	if err := n.policy.push(n.t.Context(), n); err != nil {
		n.t.Fatal(when, err)
	}
	c := container(n.other, "late", fmt.Sprint("b-", len(n.running[n.other])+1), 2, 0)
	n.run(n.other, c)
	n.running[n.other] = append(n.running[n.other], c)
	if err := n.policy.push(n.t.Context(), n); err != nil {
		n.t.Fatal(when, err)
	}
	for id, cpus := range n.all() {
		want := "0,2-4,7"
		if id == "a-1" {
			want = "1,5"
		}
		if cpus != want {
			n.t.Errorf("%s: container %s runs on %s, want %s", when, id, cpus, want)
		}
	}
}

// TestLostClaimsInAnyOrder: berthd loses its ledger, berth-nri is restarted, the kubelet goes and comes back, and berth-dra
// admits the claims again, in every order. No other container runs on the CPUs of a prepared claim, and the container that
// uses one stays there.
func TestLostClaimsInAnyOrder(t *testing.T) {
	t.Parallel()
	const lose, restart, away, back, restore = "berthd loses its ledger", "berth-nri is restarted", "the kubelet goes",
		"the kubelet comes", "berth-dra admits the claims"
	do := map[string]func(*claimNode){
		lose: (*claimNode).lose, restart: (*claimNode).restart, restore: func(n *claimNode) { n.d.claims() },
		away: func(n *claimNode) { n.kubelet(true) }, back: func(n *claimNode) { n.kubelet(false) },
	}
	for _, order := range orders([]string{lose, restart, away, back, restore}) {
		at := func(step string) int { return slices.Index(order, step) }
		if at(restore) < at(lose) || at(back) < at(away) {
			continue
		}
		t.Run(strings.Join(order, ", "), func(t *testing.T) {
			t.Parallel()
			n := newClaimNode(t)
			for _, step := range order {
				do[step](n)
				n.check(step)
			}
		})
	}
}

// orders returns the permutations of a list.
func orders(list []string) (out [][]string) {
	if len(list) == 0 {
		return [][]string{nil}
	}
	for i, first := range list {
		for _, rest := range orders(slices.Delete(slices.Clone(list), i, i+1)) {
			out = append(out, append([]string{first}, rest...))
		}
	}
	return out
}

// TestClaimsWithoutBerthd: berth-nri starts while berthd does not answer. A container that is let pass does not get the CPUs of
// prepared claims, whatever the sandboxes' processes run on.
func TestClaimsWithoutBerthd(t *testing.T) {
	t.Parallel()
	n := newClaimNode(t)
	n.d.stop()
	n.restart()
	late := container(n.other, "late", "b-2", 2, 0)
	if got := n.run(n.other, late); got != "0,2-4,7" {
		t.Errorf("it runs on %s", got)
	}
	n.d.again()
}
