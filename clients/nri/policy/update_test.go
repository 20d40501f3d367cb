package policy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
)

// silent is a runtime that answers no update of containers until it is released.
type silent struct {
	*engine
	called, released chan struct{}
}

func (h *silent) UpdateContainers(updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	select {
	case h.called <- struct{}{}:
	default:
	}
	<-h.released
	return h.engine.UpdateContainers(updates)
}

// TestHungRuntime: a runtime does not answer an update of containers. Ready says so, Follow ends with its context, and so does Release.
// When the runtime answers, the container is moved, and a restarted Follow works.
func TestHungRuntime(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	web, job := pod("web", "burstable"), pod("job", "guaranteed")
	e.run(web, container(web, "main", "web-1", 100, 0))
	e.made(job, container(job, "main", "job-1", 4000, gib))
	e.pushes(2)
	e.put("web-1", "0-7") // by another program
	h := &silent{e, make(chan struct{}, 1), make(chan struct{})}
	follow := func(ctx context.Context) chan struct{} {
		done := make(chan struct{})
		go func() { defer close(done); e.policy.Follow(ctx, h) }()
		return done
	}
	ctx, stop := context.WithCancel(t.Context())
	done := follow(ctx)
	<-h.called
	stop()
	<-done
	releasing, end := context.WithCancel(t.Context())
	go func() { <-h.called; end() }()
	e.policy.runtime.Timeout = func() time.Duration { return time.Millisecond }
	if _, err := e.policy.writer.request(releasing, h, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the context of a request has ended: %v", err)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if _, err := e.policy.writer.request(t.Context(), h, nil); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "the policy is not ready", func() bool {
		err := e.policy.Ready()
		return err != nil && strings.Contains(err.Error(), "the runtime has not answered an update")
	})
	close(h.released)
	<-answered
	e.policy.runtime.Timeout = nil
	ctx, stop = context.WithCancel(t.Context())
	done = follow(ctx)
	eventually(t, "the policy is ready, and the container is moved", func() bool {
		return e.policy.Ready() == nil && !set(t, e.on("web-1")).Overlaps(set(t, e.on("job-1")))
	})
	stop()
	<-done
}

// TestUnmovedSandboxIsLoggedOnce: a sandbox's process that cannot be moved is in the log once, however often it is tried, and once more
// when it is moved.
func TestUnmovedSandboxIsLoggedOnce(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	var log bytes.Buffer
	failure := errors.New("operation not permitted")
	e := newEngine(t, Config{Client: d.Client, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Host: Host{Move: func(int, string, string, cpuset.Set) error { return failure }}})
	for _, name := range []string{"a", "b", "c"} {
		p := pod(name, "burstable")
		if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		e.run(p, container(p, "main", name+"-1", 100, 0))
	}
	e.pushes(5)
	const unmoved, moved = "move a sandbox's process", "process is moved to the shared CPUs again"
	if got := strings.Count(log.String(), unmoved); got != 3 {
		t.Errorf("%d lines for 3 sandboxes:\n%s", got, log.String())
	}
	failure = errors.New("no such CPU")
	e.pushes(2)
	if got := strings.Count(log.String(), unmoved); got != 6 {
		t.Errorf("%d lines for 3 sandboxes and 2 reasons:\n%s", got, log.String())
	}
	failure = nil
	e.pushes(2)
	if got := strings.Count(log.String(), moved); got != 3 {
		t.Errorf("%d lines for the end of the failures of 3 sandboxes:\n%s", got, log.String())
	}
}

// deadlines is a kubelet that notes whether its calls have a deadline.
type deadlines struct {
	*knows
	with, without int
}

func (k *deadlines) Active(ctx context.Context) ([]string, error) {
	if _, has := ctx.Deadline(); has {
		k.with++
	} else {
		k.without++
	}
	return k.knows.Active(ctx)
}

// TestFollowCallsWithADeadline: a pass of Follow calls the kubelet with a deadline, although its own context has none.
func TestFollowCallsWithADeadline(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	pods := &knows{pods: map[string]*typesv1.Pod{"job-uid": specOf("job", "4")}, active: []string{"job-uid"}}
	if err := d.connect(t, Config{Kubelet: pods}).policy.RunPodSandbox(t.Context(), pod("job", "guaranteed")); err != nil {
		t.Fatal(err)
	}
	kubelet := &deadlines{knows: pods}
	e := d.connect(t, Config{Kubelet: kubelet})
	kubelet.with, kubelet.without = 0, 0 // a runtime limits the time of its calls
	e.pushes(2)
	if kubelet.with == 0 || kubelet.without > 0 {
		t.Errorf("the kubelet is called %d times with a deadline, and %d times without", kubelet.with, kubelet.without)
	}
}
