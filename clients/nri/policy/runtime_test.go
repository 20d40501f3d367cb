package policy

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/berthd/berth/clients/nri/abilities"
	"github.com/berthd/berth/managers/errdefs"
)

// TestRuntimeVersions: the runtime's version of NRI decides about events, and whether updates may be requested. The runtime reports
// the version since NRI 0.12. Before, its name and version decide. What a version lacks is in the log once.
func TestRuntimeVersions(t *testing.T) {
	t.Parallel()
	const podUpdates, updates = "PostUpdatePodSandbox", "updates at any time: "
	for _, test := range []struct {
		runtime, version, reported string
		unsolicited                abilities.Unsolicited
		nri                        string
		lacks                      []string
	}{
		{"containerd", "v1.7.35", "", "", "0.8.0", []string{podUpdates, updates}},
		{"containerd", "1.7.24~ds1", "0.0.0-unknown", "", "0.6.1", []string{podUpdates, updates}},
		{"containerd", "v2.0.14", "", "", "0.8.0", []string{podUpdates, updates}},
		{"containerd", "v2.1.4-k3s1", "", "", "0.8.0", []string{podUpdates, updates}},
		{"containerd", "2.1.9+unknown", "(devel)", "", "0.8.0", []string{podUpdates, updates}},
		{"containerd", "v2.2.0", "v0.10.0", "", "0.10.0", []string{updates}},
		{"containerd", "2.2.9-1.fc43", "", "", "0.11.0", []string{updates}},
		{"containerd", "v2.3.7", "v0.12.0", "", "0.12.0", []string{updates}},
		{"containerd", "v2.3.7", "v0.12.0", abilities.UnsolicitedAlways, "0.12.0", nil},
		{"containerd", "v2.4.2", "v0.12.3", "", "0.12.3", nil},
		{"containerd", "v2.4.2", "v0.12.3", abilities.UnsolicitedNever, "0.12.3", []string{updates}},
		{"containerd", "v2.5.0", "v0.12.1-0.20260701000000-abcdef012345", "", "before 0.12.1", []string{updates}},
		{"containerd", "v3.0.0", "v1.0.0", "", "1.0.0", nil},
		{"cri-o", "1.33.4-1.rhaos4.20.git1234567", "", "", "before 0.9.1", []string{podUpdates, updates}},
		{"cri-o", "1.37.0", "v0.12.3", "", "0.12.3", nil},
		{"cri-o", "1.37.0", "", "", "0.11.0", []string{updates}},
		{"fake", "0", "", "", "of an unknown version", []string{podUpdates, updates}},
		{"fake", "", "v99999999999999999999.1", "", "of an unknown version", []string{podUpdates, updates}},
	} {
		t.Run(strings.Join([]string{test.runtime, test.version, test.reported, string(test.unsolicited)}, " "), func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			p := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Unsolicited: test.unsolicited,
				NRIVersion: func() string { return test.reported }})
			var events api.EventMask
			for range 2 {
				var err error
				if events, err = p.Configure(t.Context(), "", test.runtime, test.version); err != nil {
					t.Fatal(err)
				}
			}
			lacks := map[string]bool{}
			for _, what := range test.lacks {
				lacks[what] = true
				if n := strings.Count(log.String(), what); n != 1 {
					t.Errorf("%q is in the log %d times:\n%s", what, n, log.String())
				}
			}
			want := handled(p)
			if lacks[podUpdates] {
				want &^= 1 << (api.Event_POST_UPDATE_POD_SANDBOX - 1)
			}
			if events != want {
				t.Errorf("events are %s, want %s", events.PrettyString(), want.PrettyString())
			}
			if p.Requests() == lacks[updates] || p.runtime.NRI.String() != test.nri {
				t.Errorf("updates are requested: %t; NRI is %s", p.Requests(), p.runtime.NRI)
			}
		})
	}
}

// handled are the events that a policy has methods for.
func handled(p any) (events api.EventMask) {
	for event, has := range map[api.Event]func(any) bool{
		api.Event_RUN_POD_SANDBOX:               implements[stub.RunPodInterface],
		api.Event_STOP_POD_SANDBOX:              implements[stub.StopPodInterface],
		api.Event_REMOVE_POD_SANDBOX:            implements[stub.RemovePodInterface],
		api.Event_UPDATE_POD_SANDBOX:            implements[stub.UpdatePodInterface],
		api.Event_POST_UPDATE_POD_SANDBOX:       implements[stub.PostUpdatePodInterface],
		api.Event_CREATE_CONTAINER:              implements[stub.CreateContainerInterface],
		api.Event_POST_CREATE_CONTAINER:         implements[stub.PostCreateContainerInterface],
		api.Event_START_CONTAINER:               implements[stub.StartContainerInterface],
		api.Event_POST_START_CONTAINER:          implements[stub.PostStartContainerInterface],
		api.Event_UPDATE_CONTAINER:              implements[stub.UpdateContainerInterface],
		api.Event_POST_UPDATE_CONTAINER:         implements[stub.PostUpdateContainerInterface],
		api.Event_STOP_CONTAINER:                implements[stub.StopContainerInterface],
		api.Event_REMOVE_CONTAINER:              implements[stub.RemoveContainerInterface],
		api.Event_VALIDATE_CONTAINER_ADJUSTMENT: implements[stub.ValidateContainerAdjustmentInterface],
	} {
		if has(p) {
			events.Set(event)
		}
	}
	return events
}

func implements[T any](p any) bool { _, ok := p.(T); return ok }

// TestUnsafeRuntimes: a runtime that a registration of a plugin can stop is refused by its name.
func TestUnsafeRuntimes(t *testing.T) {
	t.Parallel()
	for version, nri := range map[string]string{"v1.7.0": "0.3.0", "v1.7.15": "0.6.0"} {
		p := New(Config{Log: slog.New(slog.DiscardHandler)})
		_, err := p.Configure(t.Context(), "", "containerd", version)
		if want := "containerd " + version + " has NRI " + nri; errdefs.ClassOf(err) != errdefs.Unsupported ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// newSilentEngine makes a runtime that no update may be requested from.
func newSilentEngine(t *testing.T, c Config) *engine {
	t.Helper()
	c.Unsolicited = abilities.UnsolicitedNever
	e := newEngine(t, c)
	e.before = func(updates []*api.ContainerUpdate) { t.Errorf("updates without an event: %v", updates) }
	e.follow()
	return e
}

// nextEvent is an event of another container whose answer can carry updates. It is repeated until Follow has compared.
func (e *engine) nextEvent(what string, done func() bool) {
	e.t.Helper()
	p := pod("other", "besteffort")
	other := container(p, "main", "other-1", 2, 0)
	if _, err := e.create(p, other); err != nil {
		e.t.Fatal(err)
	}
	eventually(e.t, what, func() bool {
		if _, err := e.resize(p, other, size(0, 0, 0)); err != nil {
			e.t.Fatal(err)
		}
		return done()
	})
	e.stop(p, other)
	e.end(p)
}

// TestOnlyAnswers: with a runtime from which no update may be requested, containers leave exclusive CPUs in the answer to the creation of
// their owner, and everything else waits for the next event.
func TestOnlyAnswers(t *testing.T) {
	t.Parallel()
	e := newSilentEngine(t, Config{Client: startBerthd(t).Client})
	web, job := pod("web", "burstable"), pod("job", "guaranteed")
	w := container(web, "main", "web-1", 100, 0)
	if got := e.run(web, w); got != "0-7" {
		t.Fatalf("the shared container runs on %s", got)
	}
	j := container(job, "main", "job-1", 2000, gib)
	if got := e.run(job, j); got != "1-2" || e.on("web-1") != "0,3-7" {
		t.Errorf("the exclusive container runs on %s, the shared one on %s", got, e.on("web-1"))
	}

	// A resize that shrinks is in its own answer. The container grows with a later one, when others have left its CPUs.
	if u, err := e.resize(job, j, size(1000, 1000, gib)); err != nil || u.GetLinux().GetResources().GetCpu().GetCpus() != "1" {
		t.Errorf("smaller: %v, %v", u, err)
	}
	e.nextEvent("the shared container gets the CPU", func() bool { return e.on("web-1") == "0,2-7" })
	if _, err := e.resize(job, j, size(3000, 3000, gib)); err != nil {
		t.Fatal(err)
	}
	e.nextEvent("the exclusive container grows", func() bool { return set(t, e.on("job-1")).Len() == 3 })
	if s, own := set(t, e.on("web-1")), set(t, e.on("job-1")); s.Overlaps(own) {
		t.Errorf("the shared container is on %s, the exclusive one on %s", s, own)
	}

	// The answer to the end of the owner comes before its CPUs are free.
	e.stop(job, j)
	e.end(job)
	e.nextEvent("the shared container gets all CPUs back", func() bool { return e.on("web-1") == "0-7" })
}

// TestOwnerWaitsForAnswers: a container that was being created when the owner of CPUs was created could not be updated. The owner is
// refused until a later answer has moved the container.
func TestOwnerWaitsForAnswers(t *testing.T) {
	t.Parallel()
	e := newSilentEngine(t, Config{Client: startBerthd(t).Client})
	web, job := pod("web", "burstable"), pod("job", "guaranteed")
	w, j := container(web, "main", "web-1", 100, 0), container(job, "main", "job-1", 2000, gib)
	adjust, _, err := e.policy.CreateContainer(t.Context(), web, w)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.create(job, j); err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	e.cpus["web-1"] = adjust.GetLinux().GetResources().GetCpu().GetCpus()
	e.mu.Unlock()
	if err := e.policy.PostCreateContainer(t.Context(), web, w); err != nil {
		t.Fatal(err)
	}
	if err := e.start(web, w); err != nil {
		t.Fatal(err)
	}
	if err := e.start(job, j); err == nil || !strings.Contains(err.Error(), "container main of default/web") {
		t.Errorf("the owner starts beside a container on its CPUs: %v", err)
	}
	again := container(job, "main", "job-2", 2000, gib) // as a kubelet does
	if got := e.run(job, again); got != "1-2" || e.on("web-1") != "0,3-7" {
		t.Errorf("the owner is on %s, the shared container on %s", got, e.on("web-1"))
	}
}

// TestContainersNobodyToldOf: a container that is created while the plugin synchronizes is in no list and has no event of its creation.
// It is found by its next event. As long as it may run anywhere, no container with exclusive CPUs starts.
func TestContainersNobodyToldOf(t *testing.T) {
	t.Parallel()
	for name, event := range map[string]func(*engine, *api.PodSandbox, *api.Container) error{
		"PostCreateContainer": func(e *engine, p *api.PodSandbox, c *api.Container) error {
			return e.policy.PostCreateContainer(t.Context(), p, c)
		},
		"PostStartContainer": func(e *engine, p *api.PodSandbox, c *api.Container) error {
			e.began(c)
			return e.policy.PostStartContainer(t.Context(), p, c)
		},
		"UpdateContainer": func(e *engine, p *api.PodSandbox, c *api.Container) error {
			e.began(c)
			_, err := e.policy.UpdateContainer(t.Context(), p, c, size(200, 0, 0))
			return err
		},
		"StartContainer": func(e *engine, p *api.PodSandbox, c *api.Container) error { return e.start(p, c) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newSilentEngine(t, Config{Client: startBerthd(t).Client})
			web, job := pod("web", "burstable"), pod("job", "guaranteed")
			w, j := container(web, "main", "web-1", 100, 0), container(job, "main", "job-1", 2000, gib)
			e.mu.Lock()
			e.cpus["web-1"] = "0-7"
			e.mu.Unlock()
			if err := event(e, web, w); err != nil {
				t.Fatal(err)
			}
			e.stuck = true // updates take a while
			if _, err := e.create(job, j); err != nil {
				t.Fatal(err)
			}
			if err := e.start(job, j); err == nil || !strings.Contains(err.Error(), "container main of default/web") {
				t.Errorf("the owner starts beside a container on its CPUs: %v", err)
			}
			e.stuck = false
			if w.GetPid() == 0 {
				if err := e.start(web, w); err != nil {
					t.Fatal(err)
				}
			}
			e.nextEvent("the container leaves the exclusive CPUs", func() bool { return e.on("web-1") == "0,3-7" })
			if err := e.start(job, j); err != nil {
				t.Error(err)
			}
		})
	}
}

// began gives a container a process without an event.
func (e *engine) began(c *api.Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next++
	c.Pid, c.State = uint32(e.next), api.ContainerState_CONTAINER_RUNNING
	e.pids[e.next] = c.GetId()
}
