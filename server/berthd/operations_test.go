package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/berthd/berth/clients/berth"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/server/internal/store"
)

// operation is something that commits, with what has to be there before and what
// is true after it.
type operation struct {
	prepare func(d *daemon) *daemon
	do      func(d *daemon) error
	// done reports whether the operation has happened.
	done func(d *daemon) bool
}

// kubeletState is what a kubelet leaves whose pod p has CPU 1.
const kubeletState = `{"policyName":"static","defaultCpuSet":"0","entries":{"p":{"main":"1"}}}`

// operations are all that an agent commits besides admissions, which have a test of
// their own.
func operations() map[string]operation {
	admitted := func(uids ...string) func(d *daemon) *daemon {
		return func(d *daemon) *daemon {
			d.admitted(guaranteed(uids[0], 1, 0))
			for _, uid := range uids[1:] {
				d.admitted(burstable(uid))
			}
			return d
		}
	}
	bind := func(d *daemon) error {
		_, err := d.lifecycle.PreStartContainer(d.ctx(), &lifecyclev1.PreStartContainerRequest{PodUid: "p", ContainerName: "main",
			ContainerId: "id"})
		return err
	}
	bound := func(d *daemon) bool {
		dump, err := d.inspect.Dump(d.ctx(), &inspectv1.DumpRequest{})
		return err == nil && slices.ContainsFunc(dump.GetEntries(), func(e *inspectv1.Entry) bool {
			return e.GetBucket() == "containers" && e.GetKey() == "id"
		})
	}
	size := func(d *daemon) bool {
		got, err := d.allocation.Allocate(d.ctx(),
			&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "p"}, ContainerName: "main"})
		return err == nil && got.GetResources().GetCpuShares() == 204
	}
	keep := func(uid string) func(d *daemon) error {
		return func(d *daemon) error {
			now, err := d.allocation.GetRevision(d.ctx(), &allocationv1.GetRevisionRequest{})
			if err != nil {
				return err
			}
			_, err = d.admission.SyncPods(d.ctx(), &admissionv1.SyncPodsRequest{ActivePodUids: []string{uid},
				KnownRevision: now.GetRevision()})
			return err
		}
	}
	return map[string]operation{
		"Remove": {
			prepare: admitted("p", "q"),
			do: func(d *daemon) error {
				_, err := d.admission.RemovePod(d.ctx(), &admissionv1.RemovePodRequest{PodUid: "p"})
				return err
			},
			done: func(d *daemon) bool { return d.pods()["p"] == nil && d.pods()["q"] != nil },
		},
		"Sync": {
			prepare: admitted("p", "q"),
			do:      keep("q"),
			done:    func(d *daemon) bool { return d.pods()["p"] == nil && d.pods()["q"] != nil },
		},
		"PreStartContainer": {prepare: admitted("p"), do: bind, done: bound},
		"PostStopContainer": {
			prepare: func(d *daemon) *daemon {
				d.admitted(guaranteed("p", 1, 0))
				if err := bind(d); err != nil {
					d.t.Fatal(err)
				}
				return d
			},
			do: func(d *daemon) error {
				_, err := d.lifecycle.PostStopContainer(d.ctx(), &lifecyclev1.PostStopContainerRequest{ContainerId: "id"})
				return err
			},
			done: func(d *daemon) bool { return !bound(d) },
		},
		"Resize": {
			prepare: func(d *daemon) *daemon { d.admitted(limited("p", "100m", "64Mi")); return d },
			do: func(d *daemon) error {
				_, err := d.admission.Resize(d.ctx(), berth.ResizeTo(limited("p", "200m", "64Mi")))
				return err
			},
			done: size,
		},
		"Import": {
			prepare: func(d *daemon) *daemon { return d },
			do: func(d *daemon) error {
				_, err := d.inspect.Import(d.ctx(), &inspectv1.ImportRequest{
					Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: []byte(kubeletState),
					Pods: []*typesv1.Pod{guaranteed("p", 1, 0)},
				})
				return err
			},
			done: func(d *daemon) bool {
				p := d.pods()["p"]
				return p != nil && p.GetContainers()[0].GetCpus().GetList() == "1"
			},
		},
		"Sync after the ledger was lost": {
			prepare: func(d *daemon) *daemon {
				d.needKernel() // the tree in memory goes with berthd
				d.admitted(burstable("living"))
				d.admitted(burstable("dead"))
				d.kill()
				if err := os.RemoveAll(filepath.Join(d.root, "state")); err != nil {
					d.t.Fatal(err)
				}
				return d.start()
			},
			do: keep("living"),
			// Done or not, the pod is not known and lives.
			done: func(d *daemon) bool { return len(d.pods()) == 0 && d.podCgroups()["living"] },
		},
	}
}

// diesOf makes a call of which the daemon dies. While it lives it may answer that systemd
// does not answer yet, which on a slow machine takes its time.
func (d *daemon) diesOf(call func() error) {
	d.t.Helper()
	d.eventually("berthd dies", func() bool {
		err := call()
		select {
		case <-d.Ended:
			return true
		default:
		}
		if status.Code(err) != codes.Unavailable {
			d.t.Fatalf("berthd lives on: %v", err)
		}
		return false
	})
}

// TestCrashInEveryOperation kills the daemon before and after the commit of every
// operation. The next daemon has it whole or not at all, and a repeated call succeeds.
func TestCrashInEveryOperation(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	for name, op := range operations() {
		for _, point := range []string{store.BeforeCommit, store.AfterCommit} {
			t.Run(name+" "+point, func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				d := op.prepare(n.start())
				d.kill()
				d = n.start("--failpoint", point+":kill:1")
				d.diesOf(func() error { return op.do(d) })
				d = n.start()
				if done := op.done(d); name != "Sync after the ledger was lost" {
					d.check()
					if done != (point == store.AfterCommit) {
						t.Errorf("done: %v", done)
					}
				} else if !done {
					t.Error("the living pod is gone")
				}
				if err := op.do(d); err != nil {
					t.Fatalf("again: %v", err)
				}
				if !op.done(d) {
					t.Error("not done, though it was said so")
				}
			})
		}
	}
}

// TestManyClients: pods come and go by many hands at once; in the end the ledger is
// sound and holds who was not removed.
func TestManyClients(t *testing.T) {
	t.Parallel()
	const clients, rounds = 20, 6
	n := newNode(t, "--machine", "2s4n32c2t,mem=64Gi")
	n.kernel = false
	d := n.start()
	var mu sync.Mutex
	left := map[string]bool{}
	var begun []string
	var work sync.WaitGroup
	for c := range clients {
		conn := d.as(os.Getuid())
		agent := admissionv1.NewAdmissionServiceClient(conn)
		lifecycle := lifecyclev1.NewLifecycleServiceClient(conn)
		work.Go(func() {
			for round := range rounds {
				uid := fmt.Sprintf("c%d-%d", c, round)
				p := guaranteed(uid, 1+c%3, 0)
				if c%4 == 3 {
					p = burstable(uid)
				}
				// A pod is on the list before it is admitted, so no pod is missing that
				// was admitted before the revision was read.
				mu.Lock()
				begun = append(begun, uid)
				mu.Unlock()
				v, err := agent.Admit(n.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: p}})
				if err != nil {
					t.Errorf("%s: %v", uid, err)
					return
				}
				if c == 0 {
					known, err := d.allocation.GetRevision(n.ctx(), &allocationv1.GetRevisionRequest{})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					living := slices.Clone(begun)
					mu.Unlock()
					removed, err := agent.SyncPods(n.ctx(), &admissionv1.SyncPodsRequest{ActivePodUids: living,
						KnownRevision: known.GetRevision()})
					if err != nil || len(removed.GetRemovedPodUids()) > 0 {
						t.Errorf("Sync: %v, %v", removed, err)
					}
				}
				if v.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
					continue
				}
				if _, err := lifecycle.PreStartContainer(n.ctx(), &lifecyclev1.PreStartContainerRequest{
					PodUid: uid, ContainerName: "main", ContainerId: "id-" + uid,
				}); err != nil {
					t.Errorf("%s: %v", uid, err)
				}
				if round%2 == 0 {
					if _, err := agent.RemovePod(n.ctx(), &admissionv1.RemovePodRequest{PodUid: uid}); err != nil {
						t.Errorf("%s: %v", uid, err)
					}
					continue
				}
				mu.Lock()
				left[uid] = true
				mu.Unlock()
			}
		})
	}
	work.Wait()
	d.check()
	pods := d.pods()
	for uid := range left {
		if pods[uid] == nil {
			t.Errorf("pod %s is gone", uid)
		}
		delete(pods, uid)
	}
	if len(pods) > 0 {
		t.Errorf("pods that were removed are here: %d", len(pods))
	}
}

// TestEndUnderLoad ends berthd while many clients call: a client with an answer
// finds it true with the next daemon, a client without one finds all or nothing.
func TestEndUnderLoad(t *testing.T) {
	t.Parallel()
	const clients = 12
	n := newNode(t, "--machine", "2s4n32c2t,mem=64Gi")
	n.kernel = false
	d := n.start()
	var mu sync.Mutex
	said := map[string]bool{}   // whether the pod is here, by the last answer
	unsaid := map[string]bool{} // no answer came
	begun := make(chan struct{}, 1<<10)
	var work sync.WaitGroup
	for c := range clients {
		agent := admissionv1.NewAdmissionServiceClient(d.as(os.Getuid()))
		work.Go(func() {
			for round := 0; ; round++ {
				uid := fmt.Sprintf("c%d-%d", c, round)
				v, err := agent.Admit(n.ctx(),
					&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: guaranteed(uid, 1, 0)}})
				here := v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED
				if err == nil && round%3 != 0 {
					_, err = agent.RemovePod(n.ctx(), &admissionv1.RemovePodRequest{PodUid: uid})
					here = false
				}
				mu.Lock()
				if said[uid] = here; err != nil {
					unsaid[uid] = true
				}
				mu.Unlock()
				if err != nil {
					if code := status.Code(err); code != codes.Unavailable {
						t.Errorf("%s: %v", uid, err)
					}
					return
				}
				select {
				case begun <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 3 * clients {
		<-begun
	}
	d.stop()
	work.Wait()
	d = n.start()
	d.check()
	pods := d.pods()
	for uid, here := range said {
		if got := pods[uid] != nil; got != here && !unsaid[uid] {
			t.Errorf("pod %s is here: %v, and was said to be: %v", uid, got, here)
		}
		delete(pods, uid)
	}
	if len(pods) > 0 {
		t.Errorf("pods that nobody asked for: %d", len(pods))
	}
}
