package policy

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// memsOf returns the memory nodes of a container at the runtime, and at where its memory is.
func (e *engine) memsOf(id string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mems[id]
}

func (e *engine) at(id string) numa.Mask {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.where[id]
}

// release lets the memory that is pinned move, as when a device gives it free.
func (e *engine) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pins = false
	for id := range e.mems {
		e.migrate(id)
	}
}

// moving starts a berthd, and a container with 2 CPUs and 2 GiB on node 0 whose pod allows moves of memory by a resize.
// change may change the configuration of the policy.
func moving(t *testing.T, change func(*Config, *engine)) (*daemon, *engine, *api.PodSandbox, *api.Container) {
	t.Helper()
	d := startBerthdWith(t, pinned)
	e := newEngineOf(t, Config{Client: d.Client})
	e.settings.Memory = e.memoryOf
	change(&e.settings, e)
	e.renew(e.settings)
	if _, err := e.policy.Synchronize(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	p := pod("trainer", "guaranteed")
	p.Annotations = map[string]string{movesAnnotation: "move-memory"}
	c := container(p, "main", "trainer-1", 2000, 2*gib)
	e.run(p, c)
	if mems := e.memsOf("trainer-1"); mems != "0" {
		t.Fatalf("the container has memory nodes %q", mems)
	}
	return d, e, p, c
}

// moves returns whether a pod of berthd is moving.
func (d *daemon) moves(uid string) bool {
	d.t.Helper()
	got, err := d.Allocation().Get(d.t.Context(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
	if err != nil {
		d.t.Fatal(err)
	}
	return got.GetPod().GetMoving()
}

// takes returns whether a pod with 3 GiB would be admitted beside the others.
func (d *daemon) takes() bool {
	d.t.Helper()
	amounts := map[string]string{"cpu": "1", "memory": "3Gi"}
	spec := &typesv1.Pod{Metadata: &typesv1.PodMetadata{Name: "big", Uid: "big"}, Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
		Name: "main", Resources: &typesv1.ResourceRequirements{Requests: amounts, Limits: amounts},
	}}}}
	answer, err := d.Admit(d.t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: spec}, DryRun: true})
	if err != nil {
		d.t.Fatal(err)
	}
	return answer.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED
}

// A kubelet's resize moves a running container with its memory. No other pod gets the memory of its old node before the kernel
// shows that the memory has left.
func TestMemoryMoves(t *testing.T) {
	t.Parallel()
	d, e, p, c := moving(t, func(*Config, *engine) {})
	e.follow()
	e.mu.Lock()
	e.pins = true
	e.mu.Unlock()
	eventually(t, "berthd allows the move", func() bool {
		_, err := e.resize(p, c, size(4000, 4000, 0))
		return err == nil
	})
	eventually(t, "the container may only use memory of node 1", func() bool { return e.memsOf("trainer-1") == "1" })
	if !d.moves("trainer-uid.main") || d.takes() {
		t.Error("the move has ended, and the memory is on node 0")
	}
	e.release()
	eventually(t, "the move ends", func() bool { return !d.moves("trainer-uid.main") })
	eventually(t, "the container is on CPUs 4-7 only", func() bool { return e.on("trainer-1") == "4-7" })
	if e.at("trainer-1") != numa.Of(1) || e.memsOf("trainer-1") != "1" || !d.takes() {
		t.Errorf("memory on nodes %s of %s", e.at("trainer-1"), e.memsOf("trainer-1"))
	}
}

// Memory that does not move, or that is not seen to move, stays where it is: the resize is refused with the reason.
func TestMemoryThatCannotMove(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(*Config, *engine)
		reason string
	}{
		"no cgroups": {func(c *Config, _ *engine) { c.Memory = nil }, "--cgroups is empty"},
		"cgroup v1": {func(c *Config, _ *engine) {
			c.Memory = func(string, int) (Memory, error) {
				return Memory{}, errdefs.Unsupportedf("with cgroup v1, nothing moves\x1b")
			}
		}, "nothing moves"},
		"no report": {func(c *Config, e *engine) {}, "has not reported where its memory is"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, e, p, c := moving(t, row.change)
			if name != "no report" {
				if err := e.policy.push(t.Context(), e); err != nil {
					t.Fatal(err)
				}
			}
			_, err := e.resize(p, c, size(4000, 4000, 0))
			if err == nil || !strings.Contains(err.Error(), row.reason) || !strings.Contains(err.Error(), "Infeasible") {
				t.Errorf("the resize: %v", err)
			}
			d.expect("refused", "trainer-uid.main", "main", 2000, 2*gib)
			if mems := e.memsOf("trainer-1"); mems != "0" {
				t.Errorf("memory nodes %s", mems)
			}
		})
	}
}

// berthd or berth-nri is killed after each pass of a move. The move ends, and meanwhile no other pod gets the memory of the old node.
func TestKillsDuringAMoveOfMemory(t *testing.T) {
	t.Parallel()
	for kill := range 5 {
		for _, what := range []string{"berthd", "berth-nri", "both"} {
			t.Run(fmt.Sprintf("%s after %d", what, kill), func(t *testing.T) {
				t.Parallel()
				d, e, p, c := moving(t, func(*Config, *engine) {})
				if err := e.policy.push(t.Context(), e); err != nil {
					t.Fatal(err)
				}
				if _, err := e.resize(p, c, size(4000, 4000, 0)); err != nil {
					t.Fatal(err)
				}
				pass := 0
				eventually(t, "the move ends", func() bool {
					if pass == kill {
						if what != "berth-nri" {
							d.stop()
							d.again()
							e.policy.lost()
						}
						if what != "berthd" {
							e.restart(p, c)
						}
					}
					pass++
					if err := e.policy.push(t.Context(), e); err != nil {
						t.Logf("pass %d: %v", pass, err)
					}
					if e.at("trainer-1") != numa.Of(1) && d.takes() {
						t.Error("another pod would get the memory of node 0")
					}
					return !d.moves("trainer-uid.main") && e.on("trainer-1") == "4-7"
				})
				if e.at("trainer-1") != numa.Of(1) || e.memsOf("trainer-1") != "1" || !d.takes() {
					t.Errorf("memory on nodes %s of %s", e.at("trainer-1"), e.memsOf("trainer-1"))
				}
			})
		}
	}
}

// lost is what Follow does when the connection to berthd was lost.
func (p *Policy) lost() {
	p.mu.Lock()
	p.agenda.unreconciled = true
	p.mu.Unlock()
	p.reporter.reportAgain()
}

// restart replaces the policy by one that knows nothing, and lists a pod with a container to it.
func (e *engine) restart(p *api.PodSandbox, c *api.Container) {
	e.t.Helper()
	e.policy = New(e.settings)
	e.mu.Lock()
	c.Linux.Resources.Cpu.Cpus, c.Linux.Resources.Cpu.Mems = e.cpus[c.GetId()], e.mems[c.GetId()]
	c.Linux.Resources.Cpu.Quota, c.Linux.Resources.Cpu.Shares = api.Int64(int64(-1)), api.UInt64(uint64(4096))
	e.mu.Unlock()
	updates, err := e.policy.Synchronize(e.t.Context(), []*api.PodSandbox{p}, []*api.Container{c})
	if err != nil {
		e.t.Fatal(err)
	}
	e.apply(updates)
}

// Containers without a process, or whose process has just ended, are not read again without a pause, however many there are.
func TestNothingToReport(t *testing.T) {
	t.Parallel()
	for name, pid := range map[string]int{"not started": 0, "ended": 1} {
		gone := func(string, int) (Memory, error) { return Memory{}, fs.ErrNotExist }
		p := newEngineOf(t, Config{Client: startBerthdWith(t, pinned).Client, Host: Host{Memory: gone}}).policy
		for i := range 2 * mostReports {
			id := fmt.Sprintf("id-%d", i)
			p.node.members[id] = &member{id: id, pod: &sandbox{}, mems: "0", process: process{pid: pid},
				allocated: allocated{key: "uid", bound: true}}
		}
		for passes := range 3 {
			p.reporter.reportMemory(t.Context())
			select {
			case <-p.agenda.kicked:
				if passes > 1 {
					t.Errorf("%s: another pass follows pass %d at once", name, passes)
				}
			default:
			}
		}
	}
}
