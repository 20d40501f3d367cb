package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
)

// randomNode is a node whose kubelet makes random calls, while everything else is restarted.
type randomNode struct {
	*place
	*rand.Rand
	claims map[string]*randomClaim
	calls  []string // for the report of a failure
}

// randomClaim is what the kubelet has of a claim.
type randomClaim struct {
	*resourceapi.ResourceClaim
	// cpus are those on which containers of the claim run; empty if there are none.
	cpus cpuset.Set
	// ending is set if the kubelet has begun to unprepare the claim. It repeats this until it succeeds.
	ending bool
}

// cut is a context of a call that ends at any time, or not at all.
func (n *randomNode) cut() (context.Context, context.CancelFunc) {
	limit := time.Minute
	if n.IntN(3) == 0 {
		limit = time.Duration(n.IntN(3000)) * time.Microsecond
	}
	return context.WithTimeout(n.t.Context(), limit)
}

// prepare has a claim prepared, which may be prepared already. Its containers stay where they are.
func (n *randomNode) prepare(uid string) {
	c := n.claims[uid]
	if c == nil {
		c = &randomClaim{ResourceClaim: allocated(uid, n.IntN(2), 1+n.IntN(3), "1Gi")}
		if n.IntN(3) == 0 {
			with(c.ResourceClaim, allocated(uid, n.IntN(2), 1, "1Gi"))
		}
		n.claims[uid] = c
		n.api.claims["default/"+c.Name] = c.ResourceClaim
	}
	ctx, cancel := n.cut()
	defer cancel()
	results, err := n.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{c.ResourceClaim})
	if err != nil || results[c.UID].Err != nil {
		return
	}
	file, err := n.files.read(uid)
	if err != nil {
		n.t.Fatalf("the CDI file of %s: %v after %v", uid, err, n.calls)
	}
	if now := file.cpus(); !c.cpus.IsEmpty() && c.cpus != now {
		n.t.Fatalf("claim %s has CPUs %s, and its containers run on %s, after %v", uid, now, c.cpus, n.calls)
	}
	c.cpus = file.cpus()
	n.compare()
}

// unprepare has a claim given back, whose containers have ended.
func (n *randomNode) unprepare(uid string) {
	c := n.claims[uid]
	if c == nil {
		c = &randomClaim{}
	}
	c.cpus, c.ending = cpuset.Set{}, true
	ctx, cancel := n.cut()
	defer cancel()
	errs, err := n.UnprepareResourceClaims(ctx, []kubeletplugin.NamespacedObject{{UID: types.UID(uid)}})
	if err == nil && errs[types.UID(uid)] == nil {
		delete(n.claims, uid)
	}
}

// compare compares the CPUs on which containers run with the ledger, in which no CPU is given twice.
func (n *randomNode) compare() {
	list, err := n.Client.Allocation().List(n.t.Context(), &allocationv1.ListRequest{Owner: Owner})
	if err != nil {
		n.t.Fatal(err)
	}
	var all cpuset.Set
	for _, p := range list.GetPods() {
		cpus := admitted(p).cpus()
		if all.Overlaps(cpus) {
			n.t.Fatalf("CPUs %s of claim %s are given twice after %v", cpus, p.GetUid(), n.calls)
		}
		all = all.Union(cpus)
		if c := n.claims[p.GetUid()]; c != nil && !c.cpus.IsEmpty() && c.cpus != cpus {
			n.t.Fatalf("claim %s has CPUs %s in the ledger, and runs on %s, after %v", p.GetUid(), cpus, c.cpus, n.calls)
		}
	}
	for uid, c := range n.claims {
		if !c.cpus.IsSubsetOf(all) {
			n.t.Fatalf("claim %s runs on CPUs %s, which are not in the ledger, after %v", uid, c.cpus, n.calls)
		}
	}
}

// loseFile removes the CDI file of a claim, which is written again by the driver, or by its successor from the API server's claim. That
// is possible only while berthd has the claim.
func (n *randomNode) loseFile(uid string) {
	before, err := n.files.read(uid)
	if err != nil {
		return
	}
	if err := n.files.remove(uid); err != nil {
		n.t.Fatal(err)
	}
	known, err := n.Client.Allocation().List(n.t.Context(), &allocationv1.ListRequest{Owner: Owner})
	if err != nil {
		n.t.Fatal(err)
	}
	if slices.ContainsFunc(known.GetPods(), func(p *typesv1.PodAllocation) bool { return p.GetUid() == uid }) && n.IntN(2) == 0 {
		n.startDriver()
	}
	if err := errors.Join(n.repair(n.t.Context()), n.prepareLost(n.t.Context())); err != nil {
		n.t.Fatalf("%v after %v", err, n.calls)
	}
	if after, err := n.files.read(uid); err != nil || string(after.file) != string(before.file) {
		n.t.Fatalf("the CDI file of %s was %s: %v after %v", uid, before.file, err, n.calls)
	}
}

// restartBerthd restarts berthd, also without its ledger.
func (n *randomNode) restartBerthd(lost bool) {
	if lost {
		n.lose()
	} else {
		n.stop()
		n.startBerthd("")
	}
	n.Driver.mu.Lock()
	n.unsure = true // as Follow finds
	n.Driver.mu.Unlock()
}

// boot ends all containers, and the directory of CDI files is empty afterwards.
func (n *randomNode) boot() {
	files, err := filepath.Glob(filepath.Join(n.root, "cdi", "*"))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, name := range files {
		if err := os.Remove(name); err != nil {
			n.t.Fatal(err)
		}
	}
	for _, c := range n.claims {
		c.cpus = cpuset.Set{}
	}
	n.startDriver()
}

// TestRandomCalls: the kubelet has claims prepared and given back in any order, also repeatedly, and ends calls at any time. The driver and
// berthd are restarted, the ledger or a CDI file is lost, and the node is booted. Containers never share a CPU with those
// of another claim, and in the end nothing is left.
func TestRandomCalls(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			n := &randomNode{place: newPlace(t, ""), Rand: rand.New(rand.NewPCG(seed, 0)), claims: map[string]*randomClaim{}}
			n.api.claims = map[string]*resourceapi.ResourceClaim{}
			steps := map[string]func(string){
				"prepare": n.prepare, "unprepare": n.unprepare, "driver": func(string) { n.startDriver() },
				"berthd": func(string) { n.restartBerthd(false) }, "lost": func(string) { n.restartBerthd(true) },
				"boot": func(string) { n.boot() },
				"file": n.loseFile,
			}
			choices := []string{"prepare", "prepare", "prepare", "prepare", "prepare", "prepare", "unprepare", "unprepare", "unprepare",
				"driver", "berthd", "lost", "boot", "file"}
			for range 100 {
				what, uid := choices[n.IntN(len(choices))], string(rune('a'+n.IntN(5)))
				if c := n.claims[uid]; c != nil && c.ending {
					what = "unprepare"
				}
				n.calls = append(n.calls, what+" "+uid)
				steps[what](uid)
			}
			for uid := range n.claims {
				n.place.unprepare(uid)
			}
			n.want("all are given back", "")
		})
	}
}
