package policy

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
)

// pairOf is a pod of two containers with a CPU each.
func pairOf(name string) *typesv1.Pod {
	spec := duoOf(name)
	for _, c := range spec.Spec.Containers {
		c.Resources.Limits["cpu"] = "1"
	}
	return spec
}

// hears gives the policy another kubelet.
func (e *engine) hears(kubelet Source) {
	e.settings.Kubelet, e.policy.awaited.kubelet, e.policy.placer.finder.kubelet = kubelet, kubelet, kubelet
}

// renew replaces the policy by a new one, as after a restart of berth-nri.
func (e *engine) renew(c Config) {
	c.CPUsOf, c.Log, c.Unsolicited = e.cpusOf, e.settings.Log, e.settings.Unsolicited
	e.policy, e.settings = New(c), c
	e.policy.runtime.Processes = true
}

// connectWithoutBerthd connects the runtime while berthd is away.
func (d *daemon) connectWithoutBerthd(e *engine, pods []*api.PodSandbox, containers ...*api.Container) {
	d.t.Helper()
	d.stop()
	ctx, cancel := context.WithCancel(d.t.Context())
	cancel()
	if _, err := e.policy.Synchronize(ctx, pods, containers); err != nil {
		d.t.Fatal(err)
	}
	d.again()
}

// TestFormOutlivesConnections: a pod whose first container was admitted by itself, or that was admitted as a whole, stays so
// when the runtime connects again: its second container is created before the first comparison with the ledger has come to it, or after
// that, and the sources of specifications say something else. Each container has one allocation, and the first one keeps its CPUs.
func TestFormOutlivesConnections(t *testing.T) {
	t.Parallel()
	for _, form := range []form{whole, apart} {
		for _, renewed := range []bool{false, true} {
			for _, when := range []string{"berthd was away", "the first pass was short", "all is compared"} {
				t.Run(fmt.Sprintf("form %d, new policy %v, %s", form, renewed, when), func(t *testing.T) {
					t.Parallel()
					d := startBerthd(t)
					job := pod("job", "guaranteed")
					pair := map[string]*typesv1.Pod{"job-uid": pairOf("job")}
					before, after := &knows{pods: pair, active: []string{"job-uid"}}, &knows{active: []string{"job-uid"}}
					want := []string{"job-uid"}
					if form == apart {
						before.pods, after.pods, want = nil, pair, []string{"job-uid.main", "job-uid.second"}
					}
					e := newEngine(t, Config{Client: d.Client, Kubelet: before})
					if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
						t.Fatal(err)
					}
					first := container(job, "main", "job-1", 1000, gib)
					had := e.run(job, first)
					first.Linux.Resources.Cpu.Cpus, first.Linux.Resources.Cpu.Quota = had, api.Int64(-1) // as adjusted
					if renewed {
						e.renew(Config{Client: d.Client, Kubelet: after})
					} else {
						e.hears(after)
					}
					pods, containers := []*api.PodSandbox{job}, []*api.Container{first}
					switch when {
					case "berthd was away":
						d.connectWithoutBerthd(e, pods, containers...)
					case "the first pass was short":
						more, others, _ := crowd(e, 1)
						ctx, cancel := context.WithCancel(t.Context())
						d.OnAnswer(func(m proto.Message) {
							if _, ok := m.(*admissionv1.SyncPodsResponse); ok {
								cancel()
							}
						})
						if _, err := e.policy.Synchronize(ctx, append(more, job), append(others, first)); err != nil {
							t.Fatal(err)
						}
						d.OnAnswer(nil)
					default:
						if _, err := e.policy.Synchronize(t.Context(), pods, containers); err != nil {
							t.Fatal(err)
						}
					}
					second := container(job, "second", "job-2", 1000, gib)
					e.made(job, second)
					for i := 0; e.start(job, second) != nil && i < 5; i++ {
						e.pushes(1)
					}
					e.policy.Recount()
					e.pushes(2)
					got := slices.DeleteFunc(d.uids(), func(uid string) bool { return podOf(uid) != "job-uid" })
					if !slices.Equal(got, want) {
						t.Errorf("berthd has %v, want %v", got, want)
					}
					if e.on("job-1") != had || set(t, e.on("job-2")).Len() != 1 || e.on("job-2") == had {
						t.Errorf("the first container was on CPUs %s; now the CPUs are %v", had, e.all())
					}
				})
			}
		}
	}
}

// TestPlacedTwice: berthd has a container twice, as a part of its pod and by itself. It keeps the CPUs that it runs on, and the other
// allocation is released.
func TestPlacedTwice(t *testing.T) {
	t.Parallel()
	for _, form := range []form{whole, apart} {
		t.Run(fmt.Sprint("form ", form), func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			kubelet := &knows{active: []string{"job-uid"}}
			want, twin := []string{"job-uid.main"}, specOf("job", "2")
			if form == whole {
				kubelet.pods = map[string]*typesv1.Pod{"job-uid": specOf("job", "2")}
				want, twin.Metadata.Uid, twin.Metadata.Name = []string{"job-uid"}, "job-uid.main", "job.main"
			}
			e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
			job := pod("job", "guaranteed")
			if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			c := container(job, "main", "job-1", 2000, gib)
			had := e.run(job, c)
			if _, err := d.Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: twin}}); err != nil {
				t.Fatal(err)
			}
			kubelet.pods = map[string]*typesv1.Pod{"job-uid": specOf("job", "2")}
			e.renew(Config{Client: d.Client, Kubelet: kubelet})
			if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{c}); err != nil {
				t.Fatal(err)
			}
			e.pushes(2)
			if got := d.uids(); !slices.Equal(got, want) || e.on("job-1") != had {
				t.Errorf("berthd has %v, want %v; the container was on CPUs %s and is on %s", got, want, had, e.on("job-1"))
			}
		})
	}
}

// TestCrashedContainerKeepsItsCPUs: the runtime connects again while a container waits for its restart. It gets the CPUs that it had,
// also if it was admitted by itself. So does a pod that has no sandbox, as after a boot, and that the kubelet is going to start.
func TestCrashedContainerKeepsItsCPUs(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ whole, renewed, away, boot bool }{
		"by itself":                  {},
		"by itself, new policy":      {renewed: true},
		"by itself, berthd was away": {renewed: true, away: true},
		"by itself, after a boot":    {renewed: true, boot: true},
		"as a whole":                 {whole: true},
		"as a whole, new policy":     {whole: true, renewed: true, away: true},
		"as a whole, after a boot":   {whole: true, renewed: true, boot: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			kubelet := &knows{active: []string{"job-uid"}}
			if row.whole {
				kubelet.pods = map[string]*typesv1.Pod{"job-uid": specOf("job", "4")}
			}
			e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
			job := pod("job", "guaranteed")
			if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			c := container(job, "main", "job-1", 4000, gib)
			had := e.run(job, c)
			e.stop(job, c)
			if row.renewed {
				e.renew(e.settings)
			}
			pods := []*api.PodSandbox{job}
			if row.boot {
				pods = []*api.PodSandbox{dead("job")}
			}
			if row.away {
				d.connectWithoutBerthd(e, pods, c)
			} else if _, err := e.policy.Synchronize(t.Context(), pods, []*api.Container{c}); err != nil {
				t.Fatal(err)
			}
			e.pushes(2)
			small := pod("small", "guaranteed")
			if on := set(t, e.run(small, container(small, "main", "small-1", 1000, gib))); on.Overlaps(set(t, had)) {
				t.Errorf("another container gets CPUs %s of %s", on, had)
			}
			rival := pod("rival", "guaranteed")
			if _, err := e.create(rival, container(rival, "main", "rival-1", 4000, gib)); err == nil {
				t.Error("another container gets the CPUs")
			}
			if row.boot {
				job.Id = "job-again"
			}
			if err := e.policy.RunPodSandbox(t.Context(), job); err != nil && row.boot {
				t.Error(err)
			}
			if again := e.run(job, container(job, "main", "job-2", 4000, gib)); again != had {
				t.Errorf("the container was on CPUs %s, and starts again on %s", had, again)
			}
			e.pushes(2)
			e.end(job)
			e.end(small)
			e.pushes(3)
			if got := d.uids(); len(got) > 0 {
				t.Errorf("all pods have ended, and berthd has %v", got)
			}
		})
	}
}

// TestNeverStartedContainerTakesNothing: berth-nri starts while a container waits for its restart. The runtime still has another one of the
// pod, which was created before and never started. It costs the first one no CPUs.
func TestNeverStartedContainerTakesNothing(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, Kubelet: &knows{active: []string{"job-uid", "small-uid"}}})
	job, small := pod("job", "guaranteed"), pod("small", "guaranteed")
	never := e.made(job, container(job, "prepare", "job-1", 1000, gib))
	e.run(job, container(job, "prepare", "job-2", 1000, gib))
	e.stop(job, container(job, "prepare", "job-2", 1000, gib))
	c := container(job, "main", "job-3", 1000, gib)
	had := e.run(job, c)
	e.stop(job, c)
	e.renew(e.settings)
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{never, c}); err != nil {
		t.Fatal(err)
	}
	e.pushes(2)
	if on := e.made(small, container(small, "main", "small-1", 1000, gib)); e.on(on.Id) == had {
		t.Errorf("another container gets CPUs %s", had)
	}
	if _, err := e.create(job, container(job, "main", "job-4", 1000, gib)); err != nil || e.on("job-4") != had {
		t.Errorf("the container was on CPUs %s, and is made again on %s: %v", had, e.on("job-4"), err)
	}
}

// TestSpecificationOutlivesConnections: a container of a pod that was admitted as a whole is created although the kubelet does not give
// the specification again since the runtime has connected.
func TestSpecificationOutlivesConnections(t *testing.T) {
	t.Parallel()
	for _, forgotten := range []bool{false, true} { // by berth-nri
		d := startBerthd(t)
		kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": pairOf("job")}, active: []string{"job-uid"}}
		e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
		job := pod("job", "guaranteed")
		if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		first := container(job, "main", "job-1", 1000, gib)
		e.run(job, first)
		kubelet.err = errors.New("away")
		if forgotten {
			e.renew(e.settings)
		}
		if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{first}); err != nil {
			t.Fatal(err)
		}
		if cpus := set(t, e.run(job, container(job, "second", "job-2", 1000, gib))); cpus.Len() != 1 ||
			cpus.Overlaps(set(t, e.on("job-1"))) {
			t.Errorf("the containers are on CPUs %v", e.all())
		}
		if got := d.uids(); !slices.Equal(got, []string{"job-uid"}) {
			t.Errorf("berthd has %v", got)
		}
	}
}

// lossy is a connection that loses the answers of a method.
type lossy struct {
	grpc.ClientConnInterface
	method string
}

func (l *lossy) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	err := l.ClientConnInterface.Invoke(ctx, method, req, reply, opts...)
	if path.Base(method) == l.method {
		return status.Error(codes.Unavailable, "the answer is lost")
	}
	return err
}

// TestLostAdmissionIsNotSplit: the answer to the admission of a pod as a whole is lost, and the kubelet makes another sandbox, for which
// no source has the specification. Its container is not admitted by itself as well.
func TestLostAdmissionIsNotSplit(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	conn, err := grpc.NewClient("unix://"+d.config.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	link := &lossy{conn, "Admit"}
	kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "2")}, active: []string{"job-uid"}}
	e := newEngine(t, Config{Client: berth.Over(link, berth.Options{Attempts: 1}), Kubelet: kubelet})
	job, later := pod("job", "guaranteed"), pod("job", "guaranteed")
	later.Id = "job-sandbox-2"
	if err := e.policy.RunPodSandbox(t.Context(), job); err == nil {
		t.Fatal("the answer was not lost")
	}
	link.method, kubelet.pods = "", nil
	if err := e.policy.RunPodSandbox(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	e.run(later, container(later, "main", "job-1", 2000, gib))
	if got := d.uids(); !slices.Equal(got, []string{"job-uid"}) {
		t.Errorf("berthd has %v", got)
	}
}

// TestForgottenPodIsNotSplit: berthd has lost the ledger, and the specification of a pod that was admitted as a whole is not known. A
// container of the pod is not admitted by itself meanwhile: berthd would have it twice later.
func TestForgottenPodIsNotSplit(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": duoOf("job")}}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
	job := pod("job", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	main, second := container(job, "main", "job-1", 3000, gib), container(job, "second", "job-2", 2000, gib)
	e.run(job, main)
	e.run(job, second)
	kubelet.err = errors.New("away")
	e.renew(e.settings)
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{main, second}); err != nil {
		t.Fatal(err)
	}
	d.forget()
	e.stop(job, main)
	again := container(job, "main", "job-3", 3000, gib)
	if _, err := e.create(job, again); err == nil {
		t.Errorf("the container is created with the pods %v of berthd: %v", d.uids(), err)
	}
	kubelet.err = nil
	e.run(job, again)
	e.pushes(2)
	if got := d.uids(); !slices.Equal(got, []string{"job-uid"}) {
		t.Errorf("berthd has %v", got)
	}
}

// TestLaterSandboxHasItsSize: berthd has lost a pod with two sandboxes, and admits it again for the container of the first one. The
// kubelet has resized the pod meanwhile. The container of the second sandbox does not get the size of the first one.
func TestLaterSandboxHasItsSize(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "3")}, active: []string{"job-uid"}}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
	job, later := pod("job", "guaranteed"), pod("job", "guaranteed")
	later.Id = "job-sandbox-2"
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	first := container(job, "main", "job-1", 3000, gib)
	e.run(job, first)
	if _, err := d.Admission().RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "job-uid"}); err != nil {
		t.Fatal(err)
	}
	kubelet.pods["job-uid"] = specOf("job", "1")
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job, later}, []*api.Container{first}); err != nil {
		t.Fatal(err)
	}
	d.expect("the pod is admitted again", "job-uid", "main", 3000, gib)
	e.stop(job, first)
	if got := set(t, e.run(later, container(later, "main", "job-2", 1000, gib))); got.Len() != 1 {
		t.Errorf("the container runs on CPUs %s, want one", got)
	}
	d.expect("the container has its size", "job-uid", "main", 1000, gib)
}

// TestEarlierSandboxHasNoSize: berthd has lost a pod, and refuses its resize. A container is created in a later sandbox of the pod, with
// the new size, while the process of the one in the first sandbox still runs. Berthd counts the size of the later one, also before it has
// a process.
func TestEarlierSandboxHasNoSize(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "1")}, active: []string{"job-uid"}}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
	job, later := pod("job", "guaranteed"), pod("job", "guaranteed")
	later.Id = "job-sandbox-2"
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	first := container(job, "main", "job-1", 1000, gib)
	e.run(job, first)
	d.forget()
	if _, err := e.resize(job, first, size(3000, 3000, gib)); err == nil {
		t.Error("a pod was resized that berthd does not have")
	}
	kubelet.pods["job-uid"] = specOf("job", "3")
	if err := e.policy.RunPodSandbox(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	second := container(later, "main", "job-2", 3000, gib)
	e.made(later, second)
	e.pushes(2)
	d.expect("the later container is created", "job-uid", "main", 3000, gib)
	e.stop(job, first)
	e.pushes(2)
	if err := e.start(later, second); err != nil {
		t.Fatal(err)
	}
	if got := set(t, e.on("job-2")); got.Len() != 3 {
		t.Errorf("the container runs on CPUs %s, want three", got)
	}
}

// TestUnspecifiedPodHasItsSize: berth-nri knows that a pod was admitted as a whole, and no source gives its specification. A container
// is made again with another size than berthd has. It does not get the CPUs of the other size, and is made when the specification is known.
func TestUnspecifiedPodHasItsSize(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "3")}, active: []string{"job-uid"}}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
	job := pod("job", "guaranteed")
	if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	first := container(job, "main", "job-1", 3000, gib)
	e.run(job, first)
	kubelet.err, kubelet.pods["job-uid"] = errors.New("away"), specOf("job", "1")
	e.renew(e.settings)
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{first}); err != nil {
		t.Fatal(err)
	}
	e.stop(job, first)
	again := container(job, "main", "job-2", 1000, gib)
	if _, err := e.create(job, again); err == nil || !strings.Contains(err.Error(), "from the kubelet: away") {
		t.Errorf("the container is made on CPUs %q: %v", e.on("job-2"), err)
	}
	d.expect("the specification is not known", "job-uid", "main", 3000, gib)
	kubelet.err = nil
	if got := set(t, e.run(job, again)); got.Len() != 1 {
		t.Errorf("the container runs on CPUs %s, want one", got)
	}
	d.expect("the specification is known", "job-uid", "main", 1000, gib)
}

// TestAnotherSizeReleasesNothing: berthd has another pod with another size than its next container. That costs a crashed container
// no CPUs: the node is not full.
func TestAnotherSizeReleasesNothing(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	job, other := pod("job", "guaranteed"), pod("other", "guaranteed")
	c, o := container(job, "main", "job-1", 2000, gib), container(other, "main", "other-1", 1000, gib)
	had := e.run(job, c)
	e.run(other, o)
	e.stop(job, c)
	e.stop(other, o)
	e.run(other, container(other, "main", "other-2", 2000, gib))
	if got := e.run(job, container(job, "main", "job-2", 2000, gib)); got != had {
		t.Errorf("the container returns to CPUs %s, it had %s", got, had)
	}
}

// TestLostPodWithoutSpecification: berthd has lost a pod that was admitted as a whole, and no source has its specification any more. Its
// containers are admitted one by one, also when the specification is known again: berthd has none of them twice.
func TestLostPodWithoutSpecification(t *testing.T) {
	t.Parallel()
	d, e, job := lostWhole(t, pairOf("job"), (*daemon).forget)
	e.made(job, container(job, "main", "job-1", 1000, gib))
	e.hears(&knows{pods: map[string]*typesv1.Pod{"job-uid": pairOf("job")}, active: []string{"job-uid"}})
	e.run(job, container(job, "main", "job-2", 1000, gib))
	e.run(job, container(job, "second", "job-3", 1000, gib))
	if got := d.uids(); !slices.Equal(got, []string{"job-uid.main", "job-uid.second"}) {
		t.Errorf("berthd has %v", got)
	}
}

// TestSweepMakesRoomFirst: a process that hung after the end of its pod has ended without an event. Its CPUs are enough for a new pod,
// so a container that has crashed in another pod keeps its own for its restart.
func TestSweepMakesRoomFirst(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	crashed, hung, fresh := pod("crashed", "guaranteed"), pod("hung", "guaranteed"), pod("fresh", "guaranteed")
	c := container(crashed, "main", "crashed-1", 2000, gib)
	had := e.run(crashed, c)
	e.stop(crashed, c)
	e.run(hung, container(hung, "main", "hung-1", 3000, gib))
	if err := e.policy.StopPodSandbox(t.Context(), hung); err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	delete(e.cpus, "hung-1")
	e.mu.Unlock()
	e.run(fresh, container(fresh, "main", "fresh-1", 3000, gib))
	if again := e.run(crashed, container(crashed, "main", "crashed-2", 2000, gib)); again != had {
		t.Errorf("the container was on CPUs %s, and starts again on %s", had, again)
	}
}

// TestEarlierSandboxReleasesNothing: an ended sandbox of a pod has a process that hangs. A new pod, for which there is not enough room,
// does not get the CPUs of the container that runs in the pod's next sandbox.
func TestEarlierSandboxReleasesNothing(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	duo, big := pod("duo", "guaranteed"), pod("big", "guaranteed")
	first, second := container(duo, "main", "duo-1", 2000, gib), container(duo, "second", "duo-2", 2000, gib)
	e.run(duo, first)
	e.run(duo, second)
	e.stop(duo, first)
	if err := e.policy.StopPodSandbox(t.Context(), duo); err != nil { // the process of the second one hangs
		t.Fatal(err)
	}
	next := pod("duo", "guaranteed")
	next.Id = "duo-next"
	if err := e.policy.RunPodSandbox(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	had := set(t, e.run(next, container(next, "main", "duo-3", 2000, gib)))
	if _, err := e.create(big, container(big, "main", "big-1", 4000, gib)); err == nil && set(t, e.on("big-1")).Overlaps(had) {
		t.Errorf("another pod gets CPUs %s, and the container runs on CPUs %s", e.on("big-1"), had)
	}
	if got := d.uids(); !slices.Contains(got, "duo-uid.main") {
		t.Errorf("berthd has %v, and duo-uid.main runs", got)
	}
}
