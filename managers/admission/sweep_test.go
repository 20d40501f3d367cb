package admission_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/topology"
)

// observedCgroups are cgroups with a function that is called before each list of unknown pods, one after it, and one for each removal.
type observedCgroups struct {
	*cgroups
	looks    int
	looking  func(look int) error
	looked   func(look int)
	removing func(uid string)
}

func (o *observedCgroups) UnknownPods(ctx context.Context, view *ledger.View) ([]string, error) {
	o.looks++
	if o.looking != nil {
		if err := o.looking(o.looks); err != nil {
			return nil, err
		}
	}
	uids, err := o.cgroups.UnknownPods(ctx, view)
	if o.looked != nil {
		o.looked(o.looks)
	}
	return uids, err
}

func (o *observedCgroups) RemoveUnknown(ctx context.Context, view *ledger.View, uid string) error {
	err := o.cgroups.RemoveUnknown(ctx, view, uid)
	if o.removing != nil {
		o.removing(uid)
	}
	return err
}

// observe lets a test see the calls of a Sync.
func (h *fixture) observe() *observedCgroups {
	o := &observedCgroups{cgroups: h.cgroups}
	h.Engine.CgroupManager = o
	return o
}

// busy makes an operation on a pod, which ends with the function that it returns.
func (h *fixture) busy(t *testing.T, uid string) (end func()) {
	t.Helper()
	done, began := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		must(t, h.Alone(t.Context(), uid, func(context.Context, *ledger.View) error { close(began); <-done; return nil }))
	})
	<-began
	return func() { close(done); wg.Wait() }
}

// notSynced fails unless a Sync has answered that it is not complete, and nothing that it did not see is given out.
func (h *fixture) notSynced(t *testing.T, err error, unknown, uncertain string) {
	t.Helper()
	if err == nil || errdefs.ClassOf(err) != errdefs.Unavailable || h.Synced() {
		t.Errorf("Sync: %v, synced %t", err, h.Synced())
	}
	if got := h.unknownLivePods(); got != unknown || h.ledger.View().Uncertain() != uncertain {
		t.Errorf("unknown live pods %q, want %q; uncertain %q, want %q", got, unknown, h.ledger.View().Uncertain(), uncertain)
	}
}

// TestSyncBesideARemoval: the processes of an unknown living pod do not end. A Sync without the pod, or the same Sync
// again, does not forget the pod, and its CPUs are given to no other pod.
func TestSyncBesideARemoval(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(ctx context.Context, h *fixture) error{
		"Remove": func(ctx context.Context, h *fixture) error {
			_, _, err := h.Remove(ctx, "u", admission.Scope{})
			return err
		},
		"Sync": func(ctx context.Context, h *fixture) error { _, err := h.Sync(ctx, h.listed(nil)); return err },
	} {
		for _, uncertain := range []string{"", "lost"} {
			t.Run(name+" "+uncertain, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					h := newFixture(t, topology.BestEffort)
					h.WithTimeout = context.WithTimeout
					h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromClaimRecord, Digest: "d", Claims: owned("main", "1-3")})
					if uncertain != "" {
						h.makeUncertain(t)
					}
					h.cgroups.stuck = map[string]bool{"u": true}
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					var wg sync.WaitGroup
					wg.Go(func() {
						if err := remove(ctx, h); class(t, err) != errdefs.Deadline {
							t.Errorf("the removal: %v", err)
						}
					})
					synctest.Wait()
					_, err := h.Sync(t.Context(), h.listed(nil))
					h.notSynced(t, err, "u", uncertain)
					v := h.admit(t, guaranteed("other", 3, 0))
					if uncertain == "" && h.cpus("other") != "4-6" || uncertain != "" && v.Outcome != admission.Deferred {
						t.Errorf("%v on CPUs %s, while a pod runs on 1-3", v.Outcome, h.cpus("other"))
					}
					wg.Wait()
					h.cgroups.stuck = nil
					if _, err := h.Sync(t.Context(), h.listed([]string{"other"})); err != nil || h.unknownLivePods() != "" ||
						!h.Synced() || h.ledger.View().Uncertain() != "" {
						t.Errorf("with the processes gone: %v, unknown live pods %q, synced %t", err, h.unknownLivePods(), h.Synced())
					}
				})
			})
		}
	}
}

// TestSyncWithoutASecondLook: if the cgroups cannot be listed again, what was noted stays noted, whether or not the pod
// is listed, busy or removed, and so does the uncertainty.
func TestSyncWithoutASecondLook(t *testing.T) {
	t.Parallel()
	for name, list := range map[string][]string{"all": {"u", "w"}, "the busy one": {"u"}, "the other one": {"w"}, "none": nil} {
		for _, busy := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				h := newFixture(t, topology.BestEffort)
				h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromClaimRecord, Digest: "d", Claims: owned("main", "1-3")})
				h.found(t, ledger.UnknownLivePod{UID: "w", Source: ledger.FromKernel})
				h.makeUncertain(t)
				if busy {
					defer h.busy(t, "u")()
				}
				h.observe().looking = func(look int) error {
					if look == 2 {
						return errdefs.Unavailablef("observe the cgroup tree: too many open files")
					}
					return nil
				}
				_, err := h.Sync(t.Context(), h.listed(list))
				h.notSynced(t, err, "u,w", "lost")
			})
		}
	}
}

// TestSyncWaitsForShortOperations: a pod that is being admitted while the agent calls SyncPods does not make the Sync fail.
func TestSyncWaitsForShortOperations(t *testing.T) {
	t.Parallel()
	for _, uncertain := range []bool{false, true} {
		for _, list := range [][]string{nil, {"a"}} {
			synctest.Test(t, func(t *testing.T) {
				h := newFixture(t, topology.BestEffort)
				h.Now, h.WithTimeout = time.Now, context.WithTimeout
				if uncertain {
					h.makeUncertain(t)
				}
				h.cgroups.recording = func() { time.Sleep(100 * time.Millisecond) }
				var wg sync.WaitGroup
				wg.Go(func() { h.admit(t, guaranteed("a", 0, 0)) })
				synctest.Wait()
				if _, err := h.Sync(t.Context(), h.listed(list)); err != nil || !h.Synced() || h.ledger.View().Uncertain() != "" {
					t.Errorf("uncertain before %t, list %q: %v, synced %t, uncertain %q", uncertain, list, err, h.Synced(),
						h.ledger.View().Uncertain())
				}
				wg.Wait()
				if _, here := h.ledger.View().Pod("a"); !here || h.unknownLivePods() != "" || !h.cgroups.pods["a"] {
					t.Errorf("the pod is not admitted: %v, unknown live pods %q, cgroups %v", here, h.unknownLivePods(), h.cgroups.pods)
				}
			})
		}
	}
}

// TestSyncBesideAnAdmission: the cgroup of a pod whose admission takes long is that of the admission, if the state is
// certain. Else it may be older, and the state stays uncertain.
func TestSyncBesideAnAdmission(t *testing.T) {
	t.Parallel()
	for _, uncertain := range []string{"", "lost"} {
		synctest.Test(t, func(t *testing.T) {
			h := newFixture(t, topology.BestEffort)
			h.Now, h.WithTimeout = time.Now, context.WithTimeout
			if uncertain != "" {
				h.makeUncertain(t)
			}
			h.cgroups.recording = func() { time.Sleep(time.Hour) }
			var wg sync.WaitGroup
			wg.Go(func() { h.admit(t, guaranteed("a", 0, 0)) })
			synctest.Wait()
			if _, err := h.Sync(t.Context(), h.listed(nil)); uncertain == "" && (err != nil || !h.Synced()) {
				t.Errorf("%v, synced %t", err, h.Synced())
			} else if uncertain != "" {
				h.notSynced(t, err, "", uncertain)
			}
			wg.Wait()
			if _, here := h.ledger.View().Pod("a"); !here || !h.cgroups.pods["a"] {
				t.Errorf("the pod is not admitted: %v, cgroups %v", here, h.cgroups.pods)
			}
		})
	}
}

// TestSyncBesideAShortLife: a pod is admitted and removed, or rejected, within the time of a Sync that has seen its cgroup.
// Nothing of it is left, and the Sync does not complain about it.
func TestSyncBesideAShortLife(t *testing.T) {
	t.Parallel()
	for _, rejected := range []bool{false, true} {
		for _, list := range [][]string{nil, {"a"}, {"a", "u"}} {
			t.Run(fmt.Sprint(rejected, list), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { syncBesideAShortLife(t, rejected, list) })
			})
		}
	}
}

func syncBesideAShortLife(t *testing.T, rejected bool, list []string) {
	h := newFixture(t, topology.BestEffort)
	h.Now, h.WithTimeout = time.Now, context.WithTimeout
	h.cgroups.pods["u"] = true
	proceed, end := make(chan struct{}), make(chan struct{})
	h.cgroups.recording = func() { <-proceed }
	if rejected {
		h.cgroups.fail["record"] = errdefs.Unavailablef("no such attribute")
	}
	var life sync.WaitGroup
	o := h.observe()
	o.looking = func(look int) error {
		if look > 1 {
			return nil
		}
		life.Go(func() {
			if _, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("a", 1, 0)}); (err != nil) != rejected {
				t.Errorf("admit: %v", err)
			}
			_, _, err := h.Remove(t.Context(), "a", admission.Scope{})
			must(t, err)
			// Another operation on the pod follows, and changes nothing.
			must(t, h.Alone(t.Context(), "a", func(context.Context, *ledger.View) error { <-end; return nil }))
		})
		synctest.Wait()
		return nil
	}
	o.looked = func(look int) {
		if look == 2 {
			close(proceed)
			synctest.Wait()
		}
	}
	_, err := h.Sync(t.Context(), h.listed(list))
	if noted := h.unknownLivePods(); err != nil || !h.Synced() || strings.Contains(noted, "a") {
		t.Errorf("%v, synced %t, unknown live pods %q", err, h.Synced(), noted)
	}
	close(end)
	life.Wait()
}

// TestSyncOfABusyPod: a listed pod that is not in the ledger has an operation in progress that is no admission. It is not
// known to be new, and the Sync says that it is not noted.
func TestSyncOfABusyPod(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.cgroups.pods["u"] = true
	end := h.busy(t, "u")
	_, err := h.Sync(t.Context(), h.listed([]string{"u"}))
	h.notSynced(t, err, "", "")
	_, err = h.Sync(t.Context(), h.listed(nil))
	h.notSynced(t, err, "", "")
	if end(); !h.cgroups.pods["u"] {
		t.Error("it was removed during an operation on it")
	}
	if _, err := h.Sync(t.Context(), h.listed([]string{"u"})); err != nil || h.unknownLivePods() != "u" {
		t.Errorf("after the operation: %v, unknown live pods %q", err, h.unknownLivePods())
	}
}

// TestSyncKeepsWhatAnotherNoted: what a Sync has noted while another one was under way stays noted.
func TestSyncKeepsWhatAnotherNoted(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.cgroups.pods["dead"] = true
	h.observe().removing = func(uid string) {
		if uid == "dead" {
			h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromClaimRecord, Digest: "d", Claims: owned("main", "1-3")})
		}
	}
	if _, err := h.Sync(t.Context(), h.listed(nil)); err != nil || h.unknownLivePods() != "u" {
		t.Errorf("%v, unknown live pods %q", err, h.unknownLivePods())
	}
}

// TestSyncSeesACgroupThatReturns: a pod whose cgroup a runtime makes again right after its removal is not forgotten.
func TestSyncSeesACgroupThatReturns(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromClaimRecord, Digest: "d", Claims: owned("main", "1-3")})
	o := h.observe()
	o.removing = func(uid string) { h.cgroups.pods[uid] = true }
	_, err := h.Sync(t.Context(), h.listed(nil))
	h.notSynced(t, err, "u", "")
	o.removing = nil
	if _, err := h.Sync(t.Context(), h.listed(nil)); err != nil || h.unknownLivePods() != "" {
		t.Errorf("%v, unknown live pods %q", err, h.unknownLivePods())
	}
}

// TestSyncForgetsTheRemoved: a pod whose removal fails keeps only itself noted.
func TestSyncForgetsTheRemoved(t *testing.T) {
	t.Parallel()
	h := build(t, topology.BestEffort, ledgertest.NewJournal())
	h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromClaimRecord, Digest: "d", Claims: owned("main", "1-3")})
	h.found(t, ledger.UnknownLivePod{UID: "w", Source: ledger.FromKernel})
	defer h.busy(t, "w")()
	_, err := h.Sync(t.Context(), h.listed(nil))
	h.notSynced(t, err, "w", "")
	if v := h.admit(t, guaranteed("next", 3, 0)); v.Outcome != admission.Admitted || h.cpus("next") != "1-3" {
		t.Errorf("the next pod: %v on CPUs %s", v.Outcome, h.cpus("next"))
	}
}
