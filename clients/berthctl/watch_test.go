package main

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/fault"
)

// watched is one stream that the fake serves: from where it has to be asked for,
// what it tells, and how it ends; without an error it goes on until the end.
type watched struct {
	from   uint64
	events []*allocationv1.WatchResponse
	end    error
}

// streams are what the fake serves to Watch, one after the other.
type streams struct {
	mu   sync.Mutex
	left []watched
}

func (s *streams) next(from uint64) (watched, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.left) == 0 || s.left[0].from != from {
		return watched{}, fault.Internalf("a stream from revision %d is not expected", from)
	}
	next := s.left[0]
	s.left = s.left[1:]
	return next, nil
}

func (f fakeAllocation) Watch(req *allocationv1.WatchRequest, stream grpc.ServerStreamingServer[allocationv1.WatchResponse]) error {
	w, err := f.streams.next(req.GetFromRevision())
	if err != nil {
		return err
	}
	for _, e := range w.events {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	if w.end == nil {
		<-stream.Context().Done()
	}
	return w.end
}

// fakeHealth serves at once.
type fakeHealth struct {
	healthv1.UnimplementedHealthServer
}

func (fakeHealth) Watch(_ *healthv1.HealthCheckRequest, stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	return stream.Send(&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING})
}

// until is an output that ends the program after a number of lines.
type until struct {
	bytes.Buffer
	lines int
	end   func()
}

func (u *until) Write(p []byte) (int, error) {
	n, err := u.Buffer.Write(p)
	if bytes.Count(u.Bytes(), []byte("\n")) >= u.lines {
		u.end()
	}
	return n, err
}

// follow runs watch until it has printed a number of lines.
func follow(t *testing.T, s *streams, lines int, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	path := (&fake{streams: s}).start(t)
	out, errs := &until{lines: lines, end: cancel}, &bytes.Buffer{}
	code := run(ctx, env{
		in: strings.NewReader(""), out: out, err: errs,
		dial: func(ctx context.Context, _ string) (*berth.Client, error) {
			return berth.Dial(ctx, path, berth.Options{})
		},
		now: func() time.Time { return testNow },
	}, append([]string{"watch"}, args...))
	return result{out.String(), errs.String(), code}
}

// life is all kinds of events.
func life() []*allocationv1.WatchResponse {
	web := (&fake{}).pods()[0]
	event := func(revision uint64, kind allocationv1.EventType) *allocationv1.WatchResponse {
		return &allocationv1.WatchResponse{Revision: revision, Type: kind}
	}
	added := event(7, allocationv1.EventType_EVENT_TYPE_ADDED)
	added.Pod = web
	shared := event(7, allocationv1.EventType_EVENT_TYPE_SHARED_CPUS)
	shared.SharedCpus = &typesv1.CPUSet{Cpus: "0,3-7"}
	resource := event(7, allocationv1.EventType_EVENT_TYPE_RESOURCE)
	resource.Resource = &allocationv1.DeviceResource{Name: "example.com/gpu", Plugin: "connected", Capacity: 2, Allocatable: 1, UnhealthyDevices: []string{"gpu-1"}}
	bound := event(8, allocationv1.EventType_EVENT_TYPE_BOUND)
	bound.Binding = &allocationv1.ContainerBinding{ContainerId: "c0ffee", PodUid: webUID, ContainerName: "app"}
	device := event(8, allocationv1.EventType_EVENT_TYPE_DEVICE_HEALTH)
	device.Device = &allocationv1.DeviceHealth{Resource: "example.com/gpu", Device: &typesv1.Device{Id: "gpu-0", Health: "Unhealthy"}, Holders: []string{webUID + "/app"}}
	missing := event(8, allocationv1.EventType_EVENT_TYPE_DEVICE_HEALTH)
	missing.Device = &allocationv1.DeviceHealth{Resource: "example.com/gpu", Device: &typesv1.Device{Id: "gpu-1"}}
	changed := event(9, allocationv1.EventType_EVENT_TYPE_CHANGED)
	changed.Pod = (&fake{}).pods()[2]
	unbound := event(10, allocationv1.EventType_EVENT_TYPE_UNBOUND)
	unbound.Binding = bound.GetBinding()
	removed := event(10, allocationv1.EventType_EVENT_TYPE_REMOVED)
	removed.Pod = web
	return []*allocationv1.WatchResponse{
		added, shared, resource, event(7, allocationv1.EventType_EVENT_TYPE_BOOKMARK), bound, device, missing, changed, unbound, removed,
	}
}

const lifeText = `7       added     default/web on CPUs 1-2 of its own, memory=1Gi@0, example.com/gpu=1
7       shared    CPUs 0,3-7
7       resource  example.com/gpu: plugin connected, 1 of 2 healthy, not gpu-1
8       bound     c0ffee is default/web/app
8       device    example.com/gpu gpu-0 is Unhealthy, held by default/web/app
8       device    example.com/gpu gpu-1 is missing
9       changed   test/twin on the shared CPUs
10      unbound   c0ffee is default/web/app no more
10      removed   default/web
`

func TestWatchShowsEverything(t *testing.T) {
	t.Parallel()
	got := follow(t, &streams{left: []watched{{events: life()}}}, 9)
	if got != (result{lifeText, "", exitDone}) {
		t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
	}
}

func TestWatchGoesOn(t *testing.T) {
	t.Parallel()
	all := life()
	s := &streams{left: []watched{
		{from: 6, events: all[:4], end: fault.Unavailablef("berthd ends")},
		{from: 7, events: all[4:8], end: fault.Gonef("events after revision 9 are not kept any more")},
		{from: 0, events: all[8:]},
	}}
	got := follow(t, s, 9, "--from", "6")
	want := result{lifeText, "berthd has gone; waiting for it\nevents after revision 9 are not kept any more; beginning with what is there\n", exitDone}
	if got != want {
		t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
	}
}

func TestWatchForPrograms(t *testing.T) {
	t.Parallel()
	s := &streams{left: []watched{{events: life()[3:5]}}}
	got := follow(t, s, 13, "-o", "json")
	for _, want := range []string{`"type": "EVENT_TYPE_BOOKMARK"`, `"type": "EVENT_TYPE_BOUND"`, `"containerId": "c0ffee"`} {
		if !strings.Contains(got.out, want) || got.code != exitDone {
			t.Errorf("exit %d, no %s in\n%s", got.code, want, got.out)
		}
	}
}

func TestWatchFails(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]watched{
		"too old":   {from: 3, end: fault.Gonef("events after revision 3 are not kept any more")},
		"away":      {from: 3, end: fault.Unavailablef("berthd ends")},
		"no role":   {from: 3, events: life()[:1], end: fault.PermissionDeniedf("no")},
		"something": {from: 3, end: fault.Internalf("broken")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := follow(t, &streams{left: []watched{s}}, 100, "--from", "3")
			if got.code != exitError || !strings.Contains(got.err, s.end.Error()) {
				t.Errorf("exit %d: %s", got.code, got.err)
			}
		})
	}
}
