package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/server/internal/store"
)

// TestRandomLife admits and removes at random, starts and ends containers, restarts
// the plugin and ends the daemon at any moment, also in the middle of calls and
// together with its ledger. After every step the daemon must know everything that was
// acknowledged, and nothing half.
func TestRandomLife(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	const steps = 200
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	n := newNode(t)
	d := n.start()
	plugin := d.plugin("g0@0 g1@0 g2@0")
	acked := map[string]*typesv1.Pod{} // what the daemon has admitted
	next := 0

	for range steps {
		switch op := rnd.IntN(25); {
		case op < 9: // admit something
			next++
			p := randomPod(rnd, "p"+strconv.Itoa(next))
			if d.admit(p).GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
				acked[p.GetMetadata().GetUid()] = p
			}
		case op < 15: // remove something
			for uid := range acked {
				d.remove(uid)
				delete(acked, uid)
				break
			}
		case op < 16: // the plugin dies and comes back
			plugin.Die()
			plugin = d.plugin("g0@0 g1@0 g2@0")
		case op < 18: // crash while nothing happens
			d.kill()
			d = n.start()
		case op < 21: // a container starts or ends
			for uid := range acked {
				d.restart(uid)
				break
			}
		case op < 22: // the agent sends the living pods; one has ended
			var dead string
			for dead = range acked {
				break
			}
			delete(acked, dead)
			d.sync(acked, dead)
		case op < 23: // an orderly end
			d.stop()
			d = n.start()
		case op < 24 && next%4 == 0: // the ledger is lost
			had := d.allocations()
			d.kill()
			if err := os.RemoveAll(filepath.Join(n.root, "state")); err != nil {
				t.Fatal(err)
			}
			d = n.start()
			d.expectDevices(3)
			d.recover(acked, had)
		default: // crash in the middle of an admission and a removal
			next++
			p := randomPod(rnd, "p"+strconv.Itoa(next))
			var victim string
			for victim = range acked {
				break
			}
			d = crashDuring(d, p, victim, acked)
		}
		for uid := range acked {
			if d.pods()[uid] == nil {
				t.Fatalf("pod %s was acknowledged and is gone", uid)
			}
		}
		if d.check(); t.Failed() {
			t.FailNow()
		}
	}
	before := texts(d.pods())
	d.kill()
	d = n.start()
	d.kill()
	d = n.start("--log-level", "debug")
	if after := texts(d.pods()); !reflect.DeepEqual(before, after) {
		t.Errorf("a crash changed the allocations:\n%v\n%v", before, after)
	}
	d.check()
	// The first pass of a daemon compares every value in the kernel with the
	// ledger. The one before has had its pass, so this one had nothing to write
	// if the tree was equal to the ledger.
	if n.kernel && strings.Contains(d.log.String(), "msg=cgroup ") {
		t.Error("the cgroup tree was not equal to the ledger")
	}
	if _, err := d.admission.SyncPods(n.ctx(), &admissionv1.SyncPodsRequest{AllowEmpty: true, KnownRevision: d.revision()}); err != nil {
		t.Fatal(err)
	}
	d.check()
	if len(d.pods()) != 0 || n.kernel && len(n.podCgroups()) != 0 {
		t.Errorf("left after all pods were removed: %v, %v", d.pods(), n.podCgroups())
	}
}

// restart gives the container of a pod a new id, and takes the one before from it.
func (d *daemon) restart(uid string) {
	d.t.Helper()
	resp, err := d.allocation.GetRevision(d.ctx(), &allocationv1.GetRevisionRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	id := fmt.Sprint(uid, "-", resp.GetRevision())
	for range 2 { // the call is repeated, as after a lost answer
		if _, err := d.lifecycle.PreStartContainer(d.ctx(), &lifecyclev1.PreStartContainerRequest{
			PodUid: uid, ContainerName: "main", ContainerId: id,
		}); err != nil {
			d.t.Fatalf("start a container of %s: %v", uid, err)
		}
	}
	if resp.GetRevision()%2 == 0 {
		return
	}
	for range 2 {
		if _, err := d.lifecycle.PostStopContainer(d.ctx(), &lifecyclev1.PostStopContainerRequest{ContainerId: id}); err != nil {
			d.t.Fatalf("end a container of %s: %v", uid, err)
		}
	}
}

// sync sends the pods as the only living ones.
func (d *daemon) sync(living map[string]*typesv1.Pod, dead string) {
	d.t.Helper()
	known, err := d.allocation.GetRevision(d.ctx(), &allocationv1.GetRevisionRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	resp, err := d.admission.SyncPods(d.ctx(), &admissionv1.SyncPodsRequest{
		ActivePodUids: slices.Collect(maps.Keys(living)), KnownRevision: known.GetRevision(), AllowEmpty: len(living) == 0,
	})
	if err != nil {
		d.t.Fatal(err)
	}
	if got := strings.Join(resp.GetRemovedPodUids(), ","); got != dead {
		d.t.Fatalf("Sync removed %q, dead is %q", got, dead)
	}
}

// recover admits the pods again after the ledger was lost. Each gets what it had,
// whatever other calls come in between.
func (d *daemon) recover(living map[string]*typesv1.Pod, had map[string]string) {
	d.t.Helper()
	d.sync(living, "")
	for uid, p := range living {
		if d.kernel && !d.podCgroups()[uid] {
			d.t.Fatalf("the cgroup of pod %s is gone", uid)
		}
		newcomer := d.admit(guaranteed("newcomer", 1, 1)).GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED
		d.admitted(p)
		if newcomer {
			d.remove("newcomer")
		}
	}
	if has := d.allocations(); !maps.Equal(has, had) {
		d.t.Fatalf("after the ledger was lost the pods hold\n%v, before\n%v", has, had)
	}
}

// allocations returns what each pod has of its own.
func (d *daemon) allocations() map[string]string {
	d.t.Helper()
	out := map[string]string{}
	for uid, p := range d.pods() {
		for _, c := range p.GetContainers()[0].GetClaims() {
			out[uid] += fmt.Sprintf("%s %s ", c.GetResource(), c.GetCpu().GetCpus().GetList())
			for _, dev := range c.GetDevice().GetDevices() {
				out[uid] += dev.GetId() + " "
			}
		}
	}
	return out
}

// randomPod wants a CPU of its own, a device, both, or neither.
func randomPod(rnd *rand.Rand, uid string) *typesv1.Pod {
	if rnd.IntN(2) == 0 {
		return burstable(uid)
	}
	return guaranteed(uid, 1, rnd.IntN(3))
}

// crashDuring kills the daemon while it admits p and removes victim, and starts
// the next one. What is acknowledged then is the next daemon's answer, as long as it
// is no more and no less than the request.
func crashDuring(d *daemon, p *typesv1.Pod, victim string, acked map[string]*typesv1.Pod) *daemon {
	d.t.Helper()
	calls := make(chan bool, 2)
	go func() {
		resp, err := d.admission.Admit(d.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: p}})
		calls <- err == nil && resp.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED
	}()
	go func() {
		if victim != "" {
			_, _ = d.admission.RemovePod(d.ctx(), &admissionv1.RemovePodRequest{PodUid: victim})
		}
		calls <- false
	}()
	d.kill()
	admitted := <-calls
	admitted = <-calls || admitted
	d = d.node.start()
	uid := p.GetMetadata().GetUid()
	now := d.pods()
	if admitted && now[uid] == nil {
		d.t.Fatalf("pod %s was acknowledged and is gone", uid)
	}
	if now[uid] != nil {
		acked[uid] = p
	}
	if now[victim] == nil {
		delete(acked, victim)
	}
	return d
}

// TestCrashAtEveryDurableStep kills the daemon at each of the store's points
// during an admission. The next daemon knows the pod whole or not at all, its
// cgroup follows the ledger, and a repeated call succeeds.
func TestCrashAtEveryDurableStep(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	for _, point := range store.Failpoints() {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.start().stop() // an established ledger: the crash is not the first start's
			crashed := false
			for hit := 1; hit <= 3; hit++ {
				d := n.launch("--failpoint", point+":kill:"+strconv.Itoa(hit))
				if !d.readyOrDead() {
					crashed = true
					continue // it died before it was ready
				}
				resp, err := d.admission.Admit(n.ctx(),
					&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: guaranteed("p", 1, 0)}})
				if err == nil {
					d.tryRemove()
					d.kill()
					continue // the point was not passed that often
				}
				if status.Code(err) != codes.Unavailable {
					t.Fatalf("%v, %v", resp, err)
				}
				d.diesOf(func() error {
					_, err := d.admission.Admit(n.ctx(),
						&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: guaranteed("p", 1, 0)}})
					return err
				})
				crashed = true
				d = n.start()
				d.check()
				if have := d.pods(); len(have) > 1 || len(have) == 1 && have["p"] == nil {
					t.Errorf("pods %v", have)
				}
				d.admitted(guaranteed("p", 1, 0))
				d.remove("p")
				d.check()
				d.kill()
			}
			if !crashed {
				t.Skipf("an admission does not pass %s: it belongs to damaged files, which package store tests", point)
			}
		})
	}
}

// tryRemove removes the pod of the crash test; the daemon may die on the way.
func (d *daemon) tryRemove() {
	d.t.Helper()
	_, err := d.admission.RemovePod(context.Background(), &admissionv1.RemovePodRequest{PodUid: "p"})
	if err != nil && status.Code(err) != codes.Unavailable {
		d.t.Fatal(err)
	}
}
