package policy

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
)

// connect makes a policy that is new, as after a boot, and connects it to the runtime, which has some sandboxes.
func (d *daemon) connect(t *testing.T, c Config, sandboxes ...*api.PodSandbox) *engine {
	t.Helper()
	c.Client = d.Client
	e := newEngineOf(t, c)
	if _, err := e.policy.Synchronize(t.Context(), sandboxes, nil); err != nil {
		t.Fatal(err)
	}
	return e
}

// dead is a pod's sandbox of the boot before.
func dead(name string) *api.PodSandbox {
	p := pod(name, "guaranteed")
	p.Id, p.Pid = name+"-before", 0
	return p
}

// TestPodsAreKeptOverABoot: after a boot the kubelet has pods that the runtime does not run yet. They keep their CPUs
// against pods that are newer, and have them when they start.
func TestPodsAreKeptOverABoot(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "4"), "ended-uid": specOf("ended", "1"),
		"rival-uid": specOf("rival", "4")}, active: []string{"job-uid", "ended-uid"}}
	before := d.connect(t, Config{Kubelet: kubelet})
	for _, name := range []string{"job", "ended"} {
		if err := before.policy.RunPodSandbox(t.Context(), pod(name, "guaranteed")); err != nil {
			t.Fatal(err)
		}
	}
	p := pod("job", "guaranteed")
	had := before.run(p, container(p, "main", "job-1", 4000, gib))

	kubelet.active = []string{"job-uid", "rival-uid"} // the other one has ended
	after := d.connect(t, Config{Kubelet: kubelet}, dead("job"), dead("ended"))
	if got := d.uids(); !slices.Equal(got, []string{"job-uid"}) {
		t.Errorf("after the boot berthd has %v, want the pod that the kubelet starts again", got)
	}
	if err := after.policy.RunPodSandbox(t.Context(), pod("rival", "guaranteed")); err == nil {
		t.Error("another pod got the CPUs")
	}
	if err := after.policy.StopPodSandbox(t.Context(), dead("job")); err != nil { // the kubelet removes it
		t.Fatal(err)
	}
	if err := after.policy.RunPodSandbox(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got := after.run(p, container(p, "main", "job-2", 4000, gib)); got != had {
		t.Errorf("the pod runs on CPUs %s, before the boot on %s", got, had)
	}
}

// TestKeptPodHasNotChanged: a pod that the kubelet starts with other amounts than before the boot is admitted again.
func TestKeptPodHasNotChanged(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "4")}, active: []string{"job-uid"}}
	if err := d.connect(t, Config{Kubelet: kubelet}).policy.RunPodSandbox(t.Context(), pod("job", "guaranteed")); err != nil {
		t.Fatal(err)
	}
	kubelet.pods["job-uid"] = specOf("job", "5")
	after := d.connect(t, Config{Kubelet: kubelet})
	p := pod("job", "guaranteed")
	if err := after.policy.RunPodSandbox(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got := after.run(p, container(p, "main", "job-2", 5000, gib)); set(t, got).Len() != 5 {
		t.Errorf("the pod has CPUs %q, want five", got)
	}
}

// TestKeptPodIsReleased: a pod that the kubelet has no more is released, and so is every pod if the kubelet does not answer
// for long.
func TestKeptPodIsReleased(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]struct {
		kubelet  func(*knows)
		after    time.Duration
		kept     bool
		manifest bool // the kubelet is not the source of the specification
		from     string
	}{
		"the kubelet has it":         {kubelet: func(*knows) {}, after: time.Hour, kept: true},
		"the kubelet has it no more": {kubelet: func(k *knows) { k.active = nil }},
		"the kubelet does not answer": {kubelet: func(k *knows) { k.activeErr = errors.New("initializing") },
			after: unheardTime - time.Second, kept: true},
		"the kubelet does not answer again": {kubelet: func(k *knows) { k.activeErr = errors.New("initializing") }, after: unheardTime},
		// A kubelet that ends in an orderly way removes its socket.
		"the kubelet is not there":       {kubelet: func(k *knows) { k.activeErr = noAPI }, after: unheardTime - time.Second, kept: true},
		"the kubelet does not come":      {kubelet: func(k *knows) { k.activeErr = noAPI }, after: unheardTime},
		"the web server does not answer": {kubelet: func(k *knows) { k.activeErr = noAPI }, from: FromKubeletServer, kept: true},
		"it has not answered for long":   {kubelet: func(k *knows) { k.activeErr = noAPI }, from: FromKubeletServer, after: unheardTime},
		"the kubelet never had this API": {kubelet: func(k *knows) { k.activeErr = noAPI }, manifest: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "4")}, active: []string{"job-uid"}, from: change.from}
			c := Config{Kubelet: kubelet, Now: func() time.Time { return now }}
			if change.manifest {
				kubelet.pods, c.Manifests = nil, manifests(t, manifestOf("job", "{limits: {cpu: 4, memory: 1Gi}}"))
			}
			if err := d.connect(t, c).policy.RunPodSandbox(t.Context(), pod("job", "guaranteed")); err != nil {
				t.Fatal(err)
			}
			change.kubelet(kubelet)
			e := d.connect(t, c)
			now = now.Add(change.after)
			for range 2 { // the first comparison finds that a pod does not live any more, the second reports it
				if _, _, err := e.policy.look(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if kept := slices.Contains(d.uids(), "job-uid"); kept != change.kept {
				t.Errorf("the pod is kept: %v, want %v", kept, change.kept)
			}
		})
	}
}

// noAPI is the error of a kubelet without the Pods API.
var noAPI = errdefs.Unsupportedf("no Pods API")

// TestUnheardTimeBeginsAnew: the time for which pods are kept for a kubelet that does not answer begins again for each
// pod, also if the kubelet was not called in between.
func TestUnheardTimeBeginsAnew(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "4")}, active: []string{"job-uid"}}
	c := Config{Kubelet: kubelet, Now: func() time.Time { return now }}
	if err := d.connect(t, c).policy.RunPodSandbox(t.Context(), pod("job", "guaranteed")); err != nil {
		t.Fatal(err)
	}
	kubelet.activeErr = errors.New("initializing") // the boot
	e := d.connect(t, c)
	if err := e.policy.RunPodSandbox(t.Context(), pod("job", "guaranteed")); err != nil {
		t.Fatal(err)
	}
	kubelet.activeErr = nil
	e.pushes(3) // nothing is missing
	now = now.Add(6 * time.Hour)
	kubelet.activeErr = errors.New("initializing") // it is started again, and so is the runtime, which has lost its sandboxes
	if _, err := e.policy.Synchronize(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	e.pushes(2)
	if got := d.uids(); !slices.Equal(got, []string{"job-uid"}) {
		t.Errorf("berthd has %v", got)
	}
}

// hanging is a kubelet that accepts connections and does not answer. A call of it ends when the test lets it.
type hanging struct {
	knows
	calls  int
	policy **Policy
	t      *testing.T
}

func (h *hanging) Active(ctx context.Context) ([]string, error) {
	h.calls++
	if p := *h.policy; p != nil {
		if !p.mu.TryLock() {
			h.t.Error("the policy is locked while the kubelet is called")
		} else {
			p.mu.Unlock()
		}
	}
	return nil, context.DeadlineExceeded
}

// TestHangingKubelet: berthd is followed while a kubelet does not answer and a pod has not started yet. No event waits
// for the kubelet, which is not called any more when the pod's time is over.
func TestHangingKubelet(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	pods := map[string]*typesv1.Pod{"job-uid": specOf("job", "4")}
	if err := d.connect(t, Config{Kubelet: &knows{pods: pods, active: []string{"job-uid"}}}).policy.RunPodSandbox(t.Context(),
		pod("job", "guaranteed")); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var p *Policy
	kubelet := &hanging{knows: knows{pods: pods}, policy: &p, t: t}
	e := d.connect(t, Config{Kubelet: kubelet, Now: func() time.Time { return now }})
	p = e.policy
	for range 3 {
		e.pushes(2)
		now = now.Add(compareInterval)
	}
	if got := d.uids(); kubelet.calls != 4 || !slices.Equal(got, []string{"job-uid"}) {
		t.Errorf("the kubelet was called %d times, want once for each interval; berthd has %v", kubelet.calls, got)
	}
	web := pod("web", "burstable")
	e.run(web, container(web, "main", "web-1", 100, 0))
	if now = now.Add(unheardTime); kubelet.calls != 4 {
		t.Errorf("an event has called the kubelet")
	}
	e.pushes(2)
	if got := d.uids(); kubelet.calls != 4 || !slices.Equal(got, []string{"web-uid.main"}) {
		t.Errorf("when its time is over, the kubelet is called %d times; berthd has %v", kubelet.calls-4, got)
	}
}

// Active implements Source.
func (k *knows) Active(context.Context) ([]string, error) { return k.active, k.activeErr }
