package policy

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/nri/abilities"
)

// TestReconcileCallsLittle: the comparison of the containers with the ledger costs calls for those
// that differ, and one for each at the first time.
func TestReconcileCallsLittle(t *testing.T) {
	t.Parallel()
	const n = 30
	d := startBerthd(t)
	kubelet := &knows{}
	c := Config{Client: d.Client, Kubelet: kubelet}
	e := newEngine(t, c)
	pods, containers, specs := crowd(e, n)
	kubelet.pods = specs
	if _, err := e.policy.Synchronize(t.Context(), pods, containers); err != nil {
		t.Fatal(err)
	}
	if got := len(d.uids()); got != n {
		t.Fatalf("berthd has %d pods", got)
	}
	calls := 0
	d.OnAnswer(func(proto.Message) { calls++ })
	e.policy.Recount()
	if _, _, err := e.policy.look(t.Context()); err != nil || e.policy.agenda.incomplete {
		t.Fatal(err, e.policy.agenda.incomplete)
	}
	const fixed = 10
	if calls > fixed {
		t.Errorf("a comparison without a difference has cost %d calls, expected at most %d", calls, fixed)
	}
	later := New(e.settings)
	calls = 0
	if _, err := later.Synchronize(t.Context(), pods, containers); err != nil || later.agenda.incomplete {
		t.Fatal(err, later.agenda.incomplete)
	}
	if calls > 2*n+fixed {
		t.Errorf("the first comparison of %d containers has cost %d calls", 2*n, calls)
	}
}

// TestReconcileGoesOn: a pass that runs out of time keeps what it has done. Containers that it has not
// come to stay where they are.
func TestReconcileGoesOn(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	trainer := pod("trainer", "guaranteed")
	own := e.run(trainer, container(trainer, "main", "trainer-1", 2000, gib))
	pods, containers, _ := crowd(e, 3)
	p := New(e.settings)
	p.node.synchronized = true
	for _, s := range append(pods, trainer) {
		p.sandbox(s)
	}
	tr := container(trainer, "main", "trainer-1", 2000, gib)
	tr.Pid, tr.State = 1, api.ContainerState_CONTAINER_RUNNING
	containers = append(containers, tr)
	for _, c := range containers {
		p.take(p.node.sandboxes[c.GetPodSandboxId()], c, nil)
	}
	p.agenda.incomplete = true
	passes := 0
	for ; p.agenda.incomplete && passes < 100; passes++ {
		if err := p.placer.complete(t.Context(), func() bool { return true }); err != nil {
			t.Fatal(err)
		}
		if err := p.placer.want(t.Context()); err != nil {
			t.Fatal(err)
		}
		m := p.node.members["trainer-1"]
		if c, _ := p.tracks.tracker.Get(m.at()); !c.WantedCPUs.IsEmpty() && c.WantedCPUs.String() != own {
			t.Fatalf("pass %d: the container with CPUs %s gets CPUs %s", passes, own, c.WantedCPUs)
		}
	}
	if passes < len(containers) || passes == 100 {
		t.Errorf("%d passes for %d containers", passes, len(containers))
	}
	for _, m := range p.node.live() {
		if c, _ := p.tracks.tracker.Get(m.at()); m.key == "" || m.match != compared || c.WantedCPUs.IsEmpty() {
			t.Errorf("container %s: key %q, match %d, CPUs %s", m.id, m.key, m.match, c.WantedCPUs)
		}
	}
}

// TestKubeletAwayAtSynchronize: the specification of a running pod is found when the kubelet answers
// again, so the pod can be resized. Without it, a container that berthd has lost waits for it.
func TestKubeletAwayAtSynchronize(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{pods: specsOf("job")}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
	job := pod("job", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	c := container(job, "main", "job-1", 1000, gib)
	own := e.run(job, c)
	c.Linux.Resources.Cpu.Cpus, c.Linux.Resources.Cpu.Quota = own, api.Int64(int64(-1)) // as adjusted
	kubelet.err = errors.New("away")
	synchronize := func() {
		t.Helper()
		updates, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{c})
		if err != nil || len(updates) > 0 {
			t.Fatal(updates, err)
		}
	}
	synchronize()
	if _, err := e.resize(job, c, size(2000, 2000, gib)); err == nil {
		t.Error("a pod of which nothing is known was resized")
	}
	kubelet.err = nil
	if _, err := e.resize(job, c, size(2000, 2000, gib)); err != nil {
		t.Error(err)
	}
	if err := e.policy.push(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	own = e.on("job-1")
	c.Linux.Resources.Cpu.Cpus = own

	kubelet.err = errors.New("away")
	if _, err := d.Admission().RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "job-uid"}); err != nil {
		t.Fatal(err)
	}
	synchronize()
	if m := e.policy.node.members["job-1"]; m.match != unplaced || len(d.uids()) > 0 {
		t.Errorf("match %d, berthd has %v", m.match, d.uids())
	}
	if e.on("job-1") != own {
		t.Errorf("the container is on %s, was on %s", e.on("job-1"), own)
	}
	kubelet.err = nil
	e.policy.placer.finder.at = e.policy.now()
	if err := e.policy.push(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if got := d.uids(); !slices.Equal(got, []string{"job-uid"}) {
		t.Errorf("berthd has %v, want the pod as a whole", got)
	}
}

// failing is a kubelet whose devices cannot be read.
type failing struct{ err error }

func (f *failing) Devices(context.Context, string, string) (map[string][]*typesv1.ExternalDevice, error) {
	return nil, f.err
}

// pushes lets a policy compare some times.
func (e *engine) pushes(n int) {
	e.t.Helper()
	for range n {
		if err := e.policy.push(e.t.Context(), e); err != nil {
			e.t.Fatal(err)
		}
	}
}

// runs has a container run on all CPUs, as before berth was installed.
func (e *engine) runs(c *api.Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next++
	c.Pid, c.State = uint32(e.next), api.ContainerState_CONTAINER_RUNNING
	e.cpus[c.Id], e.pids[e.next], e.pods[c.Id] = "0-7", c.Id, c.PodSandboxId
}

// TestTemporaryFailureAtConnection: a running container whose devices cannot be read for a moment stays where it
// is, and gets its CPUs when they can be read. One line of the log says so, and others do not wait for it.
func TestTemporaryFailureAtConnection(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	devices := &failing{errors.New("context deadline exceeded")}
	var log strings.Builder
	e := newEngine(t, Config{Client: d.Client, Devices: devices, Log: slog.New(slog.NewTextHandler(&log, nil))})
	p := pod("own", "guaranteed")
	c := container(p, "main", "own-1", 2000, gib)
	e.runs(c)
	updates, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{p}, []*api.Container{c})
	if err != nil {
		t.Fatal(err)
	}
	e.apply(updates)
	e.pushes(3)
	if got := e.on("own-1"); got != "0-7" {
		t.Errorf("a container without a place is moved to CPUs %s", got)
	}
	if n := strings.Count(log.String(), "has no allocation yet"); n != 1 {
		t.Errorf("%d lines for one failure:\n%s", n, log.String())
	}
	devices.err = nil
	e.pushes(2)
	if got := e.on("own-1"); set(t, got).Len() != 2 {
		t.Errorf("the container is on CPUs %s, and berthd has %v", got, d.uids())
	}
}

// TestTemporaryFailureAfterLedgerLoss: a container with exclusive CPUs keeps them while its devices cannot be read,
// after berthd has lost its ledger.
func TestTemporaryFailureAfterLedgerLoss(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	devices := &failing{}
	e := newEngine(t, Config{Client: d.Client, Devices: devices})
	p := pod("own", "guaranteed")
	before := e.run(p, container(p, "main", "own-1", 2000, gib))
	d.stop()
	if err := os.RemoveAll(d.config.StateDir); err != nil {
		t.Fatal(err)
	}
	d.again()
	devices.err = errors.New("context deadline exceeded")
	for i := range 8 {
		if i == 3 {
			devices.err = nil
		}
		_ = e.policy.push(t.Context(), e)
		if got := e.on("own-1"); got != before {
			t.Fatalf("pass %d: the container was on CPUs %s and is on %s", i, before, got)
		}
	}
	if got := d.uids(); !slices.Equal(got, []string{"own-uid.main"}) {
		t.Errorf("berthd has %v", got)
	}
}

// TestRefusedAtConnection: two containers ran before berth was installed, and only one fits. The other gets its CPUs
// when the first has ended.
func TestRefusedAtConnection(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	var pods []*api.PodSandbox
	var containers []*api.Container
	for _, name := range []string{"a", "b"} {
		p := pod(name, "guaranteed")
		c := container(p, "main", name+"-1", 4000, gib)
		e.runs(c)
		pods, containers = append(pods, p), append(containers, c)
	}
	updates, err := e.policy.Synchronize(t.Context(), pods, containers)
	if err != nil {
		t.Fatal(err)
	}
	e.apply(updates)
	e.follow()
	first := d.uids()
	if len(first) != 1 {
		t.Fatalf("berthd has %v", first)
	}
	other := ""
	for i, p := range pods {
		if p.Uid+".main" == first[0] {
			e.stop(p, containers[i])
			e.end(p)
		} else {
			other = containers[i].Id
		}
	}
	eventually(t, "the other container has CPUs of its own", func() bool {
		uids := d.uids()
		return len(uids) == 1 && uids[0] != first[0] && set(t, e.on(other)).Len() == 4
	})
}

// TestResizedWhileAway: a container grew while berth-nri was away, and its CPUs are free only later.
func TestResizedWhileAway(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	filler, p, other := pod("filler", "guaranteed"), pod("own", "guaranteed"), pod("other", "guaranteed")
	f, c, o := container(filler, "main", "filler-1", 3000, gib), container(p, "main", "own-1", 2000, gib),
		container(other, "main", "other-1", 2000, gib)
	if got := []string{e.run(filler, f), e.run(p, c), e.run(other, o)}; !slices.Equal(got, []string{"1-3", "4-5", "6-7"}) {
		t.Fatalf("the containers are on CPUs %v", got)
	}
	c.Linux.Resources = container(p, "main", "own-1", 4000, gib).Linux.Resources // the kubelet, meanwhile
	e.policy = New(e.settings)
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{filler, p, other}, []*api.Container{f, c, o}); err != nil {
		t.Fatal(err)
	}
	e.pushes(2)
	if got := e.on("own-1"); got != "4-5" {
		t.Errorf("without free CPUs the container is on CPUs %s", got)
	}
	e.stop(other, o)
	e.end(other)
	e.pushes(3)
	if got := e.on("own-1"); got != "4-7" {
		t.Errorf("a container with 4 CPUs is on CPUs %s", got)
	}
}

// TestPassedIsTriedAgain: a container that was let pass, because berthd refused it, gets its place when there is one.
func TestPassedIsTriedAgain(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, Pass: true})
	big, p := pod("big", "guaranteed"), pod("own", "guaranteed")
	b := container(big, "main", "big-1", 6000, gib)
	e.run(big, b)
	if got := e.run(p, container(p, "main", "own-1", 2000, gib)); set(t, got).Overlaps(set(t, e.on("big-1"))) {
		t.Fatalf("the container without a place is on CPUs %s", got)
	}
	e.stop(big, b)
	e.end(big)
	e.pushes(2)
	if got := d.uids(); !slices.Equal(got, []string{"own-uid.main"}) || set(t, e.on("own-1")).Len() != 2 {
		t.Errorf("berthd has %v, and the container is on CPUs %s", got, e.on("own-1"))
	}
}

// TestUnplacedContainerGetsNoQuota: berthd does not answer when the runtime connects again, and a resize of a container with exclusive
// CPUs fails. The answers to other events do not give it a quota: whether it is to have one is not known.
func TestUnplacedContainerGetsNoQuota(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, Unsolicited: abilities.UnsolicitedNever,
		Timeout: func() time.Duration { return time.Second }})
	job, web := pod("job", "guaranteed"), pod("web", "burstable")
	c, w := container(job, "main", "job-1", 2000, gib), container(web, "main", "web-1", 100, 0)
	c.Linux.Resources.Cpu.Cpus = e.run(job, c)
	e.run(web, w)
	c.Linux.Resources.Cpu.Quota = api.Int64(-1) // as the runtime has it
	d.stop()
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job, web}, []*api.Container{c, w}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.policy.UpdateContainer(t.Context(), job, c, size(3000, 3000, 0)); err == nil {
		t.Fatal("the resize was not refused")
	}
	updates, err := e.policy.StopContainer(t.Context(), web, w)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range updates {
		if quota := u.GetLinux().GetResources().GetCpu().GetQuota().GetValue(); quota > 0 {
			t.Errorf("container %s gets the quota %d", u.GetContainerId(), quota)
		}
	}
	d.again()
}
