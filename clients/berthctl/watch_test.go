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
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/managers/errdefs"
)

// watched is one stream that the fake serves: the revision that the request must have,
// its messages, and its error; without one it continues until the end.
type watched struct {
	from    uint64
	commits []*allocationv1.WatchResponse
	end     error
}

// streams are what the fake serves to Watch, one after the other.
type streams struct {
	mu   sync.Mutex
	left []watched
	// asked is the last request.
	asked *allocationv1.WatchRequest
}

func (s *streams) next(req *allocationv1.WatchRequest) (watched, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = req
	from := req.GetFromRevision()
	if len(s.left) == 0 || s.left[0].from != from {
		return watched{}, errdefs.Internalf("a stream from revision %d is not expected", from)
	}
	next := s.left[0]
	s.left = s.left[1:]
	return next, nil
}

func (f fakeAllocation) Watch(req *allocationv1.WatchRequest, stream grpc.ServerStreamingServer[allocationv1.WatchResponse]) error {
	w, err := f.streams.next(req)
	if err != nil {
		return err
	}
	for _, c := range w.commits {
		if err := stream.Send(c); err != nil {
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
	return followed(t, &fake{streams: s}, lines, append([]string{"watch"}, args...)...)
}

// followed runs a verb until it has printed a number of lines.
func followed(t *testing.T, f *fake, lines int, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	path := f.start(t)
	out, errs := &until{lines: lines, end: cancel}, &bytes.Buffer{}
	code := run(ctx, command.Env{
		In: strings.NewReader(""), Out: out, Err: errs,
		Dial: func(ctx context.Context, _ string) (*berth.Client, error) {
			return berth.Dial(ctx, path, berth.Options{})
		},
		Now: func() time.Time { return testNow },
	}, args)
	return result{out.String(), errs.String(), code}
}

// life is all kinds of events, commit by commit.
func life() []*allocationv1.WatchResponse {
	web := (&fake{}).pods()[0]
	commit := func(revision uint64, events ...*allocationv1.Event) *allocationv1.WatchResponse {
		for _, e := range events {
			e.Revision = revision
		}
		return &allocationv1.WatchResponse{Revision: revision, Events: events}
	}
	added := &allocationv1.Event{Event: &allocationv1.Event_Added{Added: web}}
	shared := &allocationv1.Event{Event: &allocationv1.Event_SharedCpus{SharedCpus: &typesv1.CPUSet{List: "0,3-7"}}}
	policy := &allocationv1.Event{Event: &allocationv1.Event_Policy{
		Policy: &allocationv1.PolicyState{ReservedCpus: &typesv1.CPUSet{List: "0"}}}}
	machine := &allocationv1.Event{Event: &allocationv1.Event_Machine{
		Machine: &allocationv1.MachineState{Cpus: &typesv1.CPUSet{List: "0-7"}}}}
	resource := &allocationv1.Event{Event: &allocationv1.Event_DeviceResource{DeviceResource: &allocationv1.DeviceResource{
		Name: "example.com/gpu", PluginState: typesv1.PluginState_PLUGIN_STATE_CONNECTED, Capacity: 2, Allocatable: 1,
		UnhealthyDevices: []string{"gpu-1"},
	}}}
	begin := commit(7, added, shared, policy, machine, resource)
	begin.Initial = true
	container := &allocationv1.ContainerBinding{ContainerId: "c0ffee", PodUid: webUID, ContainerName: "app"}
	bound := &allocationv1.Event{Event: &allocationv1.Event_Bound{Bound: container}}
	unbound := &allocationv1.Event{Event: &allocationv1.Event_Unbound{Unbound: container}}
	device := &allocationv1.Event{Event: &allocationv1.Event_DeviceHealth{DeviceHealth: &allocationv1.DeviceHealth{
		Resource: "example.com/gpu", Device: &typesv1.Device{Id: "gpu-0", Health: typesv1.Health_HEALTH_UNHEALTHY},
		Holders: []*typesv1.ContainerRef{{PodUid: webUID, ContainerName: "app"}},
	}}}
	missing := &allocationv1.Event{Event: &allocationv1.Event_DeviceHealth{DeviceHealth: &allocationv1.DeviceHealth{
		Resource: "example.com/gpu", Device: &typesv1.Device{Id: "gpu-1"},
	}}}
	moving := (&fake{}).pods()[2]
	moving.Moving, moving.MoveReason = true, "CPUs 5 are offline or gone"
	changed := &allocationv1.Event{Event: &allocationv1.Event_Changed{Changed: moving}}
	removed := &allocationv1.Event{Event: &allocationv1.Event_Removed{Removed: web}}
	set := &allocationv1.Event{Event: &allocationv1.Event_Policy{Policy: &allocationv1.PolicyState{Overridden: true,
		SetTime: timestamppb.New(testNow)}}}
	offline := &allocationv1.Event{Event: &allocationv1.Event_Machine{Machine: &allocationv1.MachineState{
		Cpus: &typesv1.CPUSet{List: "0-7"}, OfflineCpus: &typesv1.CPUSet{List: "7"},
	}}}
	together := commit(10, unbound, removed)
	together.Events, together.Revision = append(together.Events, commit(11, set).GetEvents()...), 11
	return []*allocationv1.WatchResponse{
		begin, commit(7), commit(8, bound), commit(8, device, missing), commit(9, changed), together, commit(12, offline),
	}
}

const lifeText = `12:00:00  7       added     default/web on CPUs 1-2 of its own, memory=1Gi@0, example.com/gpu=1
12:00:00  7       shared    CPUs 0,3-7
12:00:00  7       policy    as configured, CPU 0 reserved
12:00:00  7       machine   CPUs 0-7
12:00:00  7       resource  example.com/gpu: plugin connected, 1 of 2 healthy, not gpu-1
12:00:00  8       bound     c0ffee is default/web/app
12:00:00  8       device    example.com/gpu gpu-0 is Unhealthy, held by default/web/app
12:00:00  8       device    example.com/gpu gpu-1 is missing
12:00:00  9       changed   test/twin on the shared CPUs, moving: CPUs 5 are offline or gone
12:00:00  10      unbound   c0ffee is default/web/app no more
12:00:00  10      removed   default/web
12:00:00  11      policy    set at 2026-11-20T12:00:00Z
12:00:00  12      machine   CPUs 0-7, of which 7 offline
`

func TestWatchShowsEverything(t *testing.T) {
	t.Parallel()
	got := follow(t, &streams{left: []watched{{commits: life()}}}, 13)
	if got != (result{lifeText, "", command.ExitDone}) {
		t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
	}
}

func TestWatchGoesOn(t *testing.T) {
	t.Parallel()
	all := life()
	s := &streams{left: []watched{
		{from: 6, commits: all[:2], end: errdefs.Unavailablef("berthd ends")},
		{from: 7, commits: all[2:5], end: errdefs.Gonef("events after revision 9 are not kept any more")},
		{from: 0, commits: all[5:]},
	}}
	got := follow(t, s, 13, "--from", "6")
	want := result{lifeText,
		"berthd has gone; waiting for it\nevents after revision 9 are not kept any more; starting with the current state\n",
		command.ExitDone}
	if got != want {
		t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
	}
}

func TestWatchForPrograms(t *testing.T) {
	t.Parallel()
	s := &streams{left: []watched{{commits: life()[1:3]}}}
	got := follow(t, s, 2, "-o", "json")
	want := result{`{"apiVersion":"berthctl.berthd.github.io/v1","kind":"Event","type":"bookmark","revision":7,"initial":false}
{"apiVersion":"berthctl.berthd.github.io/v1","kind":"Event","type":"bound","revision":8,"initial":false,"object":{"containerId":"c0ffee","podUid":"11111111-0000-4000-8000-000000000001","containerName":"app"}}
`, "", command.ExitDone}
	if got != want {
		t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
	}
}

func TestWatchFails(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]watched{
		"too old":   {from: 3, end: errdefs.Gonef("events after revision 3 are not kept any more")},
		"away":      {from: 3, end: errdefs.Unavailablef("berthd ends")},
		"no role":   {from: 3, commits: life()[:1], end: errdefs.PermissionDeniedf("no")},
		"something": {from: 3, end: errdefs.Internalf("broken")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := follow(t, &streams{left: []watched{s}}, 100, "--from", "3")
			if got.code != command.ExitError || !strings.Contains(got.err, s.end.Error()) {
				t.Errorf("exit %d: %s", got.code, got.err)
			}
		})
	}
}

func TestWatchFilters(t *testing.T) {
	t.Parallel()
	s := &streams{left: []watched{{commits: life()[4:5]}}}
	got := follow(t, s, 1, "--types", "changed,shared-cpus", "-n", "test", "--resource", "example.com/gpu")
	want := &allocationv1.WatchRequest{
		Types:     []allocationv1.EventType{allocationv1.EventType_EVENT_TYPE_CHANGED, allocationv1.EventType_EVENT_TYPE_SHARED_CPUS},
		Namespace: "test", Resource: "example.com/gpu",
	}
	if got.code != command.ExitDone || !proto.Equal(s.asked, want) {
		t.Errorf("exit %d, asked for %v: %s", got.code, s.asked, got.err)
	}
	for _, name := range []string{"created", "unspecified"} {
		got := follow(t, &streams{}, 1, "--types", name)
		if got.code != command.ExitUsage || !strings.Contains(got.err,
			"--types: no events are called \""+name+"\", only added, bound, changed") {
			t.Errorf("exit %d: %s", got.code, got.err)
		}
	}
}

// TestGetWatch: the list, then what changes, also what goes; the age alone is no change.
func TestGetWatch(t *testing.T) {
	t.Parallel()
	stream := func() *streams {
		return &streams{left: []watched{{from: 12, commits: []*allocationv1.WatchResponse{{Revision: 13}, {Revision: 14}}}}}
	}
	for args, row := range map[string]struct {
		lists int32
		lines int
		want  string
	}{
		"get po -w": {2, 5, `EVENT     NAMESPACE  NAME  QOS         CONTAINERS  CPUS    DEVICES            AGE
ADDED     default    web   Guaranteed  2           1-2     example.com/gpu=1  5m
ADDED     shop       twin  Burstable   1           shared  -                  3d
ADDED     test       twin  BestEffort  1           shared  -                  -
DELETED   default    web   Guaranteed  2           1-2     example.com/gpu=1  5m
`},
		"get pods default/web --watch --no-headers": {2, 2, `ADDED     default  web  Guaranteed  2  1-2  example.com/gpu=1  5m
DELETED   default  web  Guaranteed  2  1-2  example.com/gpu=1  5m
`},
		"get pods -o name -w": {2, 4, "pod/web\npod/shop/twin\npod/test/twin\npod/web\n"},
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			f := &fake{streams: stream()}
			f.leaves.Store(row.lists)
			got := followed(t, f, row.lines, strings.Fields(args)...)
			if got != (result{row.want, "", command.ExitDone}) {
				t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
			}
		})
	}
}
