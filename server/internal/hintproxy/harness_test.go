package hintproxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/berthd/berth/clients/hintprovider/hintserver"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// timeout bounds everything that a test waits for; no test takes that long unless
// it fails. It is counted in ticks: a machine that stands still has none, and those
// whom a test waits for have had no time either.
const (
	timeout  = 2 * time.Minute
	tickTime = time.Millisecond
)

// patient makes a context that ends at the deadline, or with the test.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		tick := time.NewTicker(tickTime)
		defer tick.Stop()
		for range timeout / tickTime {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx
}

// deadline is the longest that a provider may have for a call.
const deadline = maxDeadline

// clock is a clock that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_000_000, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// endpoints is where providers listen: connections in memory, by path.
type endpoints struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	dialed    map[string]int // connections that were made
}

func (e *endpoints) dial(ctx context.Context, path string, _ uint32) (net.Conn, error) {
	e.mu.Lock()
	l := e.listeners[path]
	if e.dialed == nil {
		e.dialed = map[string]int{}
	}
	e.dialed[path]++
	e.mu.Unlock()
	if l == nil {
		return nil, errors.New("nobody listens there")
	}
	return l.DialContext(ctx)
}

// serve serves something at a path until it is stopped.
func (e *endpoints) serve(path string, register func(grpc.ServiceRegistrar)) (stop func()) {
	l := bufconn.Listen(1 << 20)
	e.mu.Lock()
	e.listeners[path] = l
	e.mu.Unlock()
	g := grpc.NewServer(grpc.MaxRecvMsgSize(64<<20), grpc.MaxSendMsgSize(64<<20))
	register(g)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	return sync.OnceFunc(func() {
		e.mu.Lock()
		delete(e.listeners, path)
		e.mu.Unlock()
		g.Stop()
		<-done
	})
}

// stage is a registry beside a ledger, with a bus and providers that listen in
// memory.
type stage struct {
	t         *testing.T
	clock     *clock
	endpoints *endpoints
	ledger    *ledger.Ledger
	journal   *ledgertest.Journal
	registry  *Registry
	config    Config
	builtIn   []hint.Entry
	plugins   sync.Map // resources that a device plugin serves
	revoked   sync.Map // users without the role provider
	end       func()

	log syncBuffer

	mu    sync.Mutex
	bus   *hint.Bus
	fails error                      // of publish
	calls map[int]context.CancelFunc // under way
	next  int
}

// servedBy is who has registered a resource.
func (s *stage) servedBy(resource workload.Resource) (string, bool) {
	return s.config.ServedBy(s.ledger.View(), string(resource))
}

// withTimeout makes contexts that timeUp ends: no test waits for a
// clock.
func (s *stage) withTimeout(ctx context.Context, _ time.Duration) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.next
	s.next++
	s.calls[id] = cancel
	return limited, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.calls, id)
	}
}

// timeUp lets every call that is under way run out of time.
func (s *stage) timeUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cancel := range s.calls {
		cancel()
	}
}

const shape = "2s2n4c"

// newStage makes a stage with two sockets of two nodes and runs its registry.
func newStage(t *testing.T, cfg Config) *stage {
	t.Helper()
	cfg.Connect = cmp.Or(cfg.Connect, time.Hour) // register is patient
	s := &stage{
		t: t, clock: newClock(), endpoints: &endpoints{listeners: map[string]*bufconn.Listener{}},
		journal: ledgertest.NewJournal(), config: cfg, calls: map[int]context.CancelFunc{},
	}
	s.start()
	return s
}

// start opens the ledger and runs a registry on it.
func (s *stage) start() {
	s.t.Helper()
	s.ledger, _ = ledgertest.Open(s.t, journal.Options{
		Journal: s.journal, Rules: ledger.Rules{Machine: machinetest.Build(shape)},
	})
	var err error
	s.registry, err = New(s.config, Parts{
		MayProvide: func(uid uint32, _ *uint32) bool { _, ok := s.revoked.Load(uid); return !ok },
		Plugin:     func(resource string) bool { _, ok := s.plugins.Load(resource); return ok },
		Ledger:     s.ledger, Publish: s.publish, Bus: func() []hint.Entry { return s.theBus().Entries() }, Now: s.clock.Now,
		Dial: s.endpoints.dial, WithTimeout: s.withTimeout,
		Log: slog.New(slog.NewTextHandler(io.MultiWriter(testWriter{s.t}, &s.log), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.ledger.Follow(func(_, _ *ledger.View) { s.registry.Wake() })
	r, ended := s.registry, make(chan struct{})
	go func() { defer close(ended); _ = r.Run(s.t.Context()) }()
	s.end = sync.OnceFunc(func() { _ = r.Stop(s.t.Context()); <-ended })
	s.t.Cleanup(s.end)
}

// restart is a berthd that ends and the next one on the same ledger.
func (s *stage) restart() {
	s.t.Helper()
	s.end()
	s.journal = s.journal.Reopen()
	s.start()
}

func (s *stage) publish(external []hint.Entry) error {
	s.mu.Lock()
	fails := s.fails
	s.mu.Unlock()
	if fails != nil {
		return fails
	}
	bus, err := hint.NewBus(nil, append(external, s.builtIn...), context.WithTimeout)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bus = bus
	return nil
}

func (s *stage) theBus() *hint.Bus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bus
}

// eventually waits for what others bring about.
func (s *stage) eventually(what string, done func() bool) {
	s.t.Helper()
	tick := time.NewTicker(tickTime)
	defer tick.Stop()
	for range timeout / tickTime {
		if done() {
			return
		}
		<-tick.C
	}
	s.t.Fatalf("waited in vain: %s", what)
}

// require has the configuration require a provider.
func (s *stage) require(name string) {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if !slices.Contains(s.config.Required, name) {
		s.config.Required = append(slices.Clone(s.config.Required), name)
		s.registry.config.Required = s.config.Required
	}
}

// self registers providers as root does.
var self = Caller{Trusted: true}

// register registers a provider of slots that listens at /name.
func (s *stage) register(name string, change ...func(*ledger.ExternalProvider)) {
	s.t.Helper()
	o := ledger.ExternalProvider{Name: name, Endpoint: "/" + name, Required: true, Deadline: deadline, Resources: []string{string(slot)}}
	for _, c := range change {
		c(&o)
	}
	if o.Required {
		s.require(name)
	}
	if err := s.registry.Register(patient(s.t), o, self); err != nil {
		s.t.Fatal(err)
	}
}

// status is the registry's status of a provider.
func (s *stage) status(name string) Status {
	s.t.Helper()
	for _, st := range s.registry.List() {
		if st.Name == name {
			return st
		}
	}
	s.t.Fatalf("no provider %s", name)
	return Status{}
}

// alone is how many calls to a provider continue without their callers.
func (s *stage) alone(name string) int {
	s.t.Helper()
	for _, e := range s.theBus().Entries() {
		if p := external(e.Provider); p != nil && p.Name() == name {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.alone
		}
	}
	s.t.Fatalf("no provider %s", name)
	return 0
}

// serveProvider serves a provider of the SDK at /name.
func (s *stage) serveProvider(p hint.Provider) (server *hintserver.Server, stop func()) {
	server = hintserver.NewServer(p, s.clock.Now)
	stop = s.endpoints.serve("/"+p.Name(), server.Register)
	s.t.Cleanup(stop)
	return server, stop
}

// wantingSlots is a pod whose container wants slots.
func wantingSlots(uid string, slots int64, resource workload.Resource) *workload.Pod {
	q := workload.Quantities{resource: slots}
	return &workload.Pod{UID: uid, Containers: []workload.Container{{Name: "c", Requests: q, Limits: q}}}
}

// admit walks a pod through an admission as the engine does and commits it.
func (s *stage) admit(id string, pod *workload.Pod) (*ledger.Trace, error) {
	trace := &ledger.Trace{AdmissionID: id}
	err := s.tryAdmit(id, pod, trace)
	if err != nil {
		s.theBus().Abort(context.Background(), id)
	}
	return trace, err
}

func (s *stage) tryAdmit(id string, pod *workload.Pod, trace *ledger.Trace) error {
	ctx, bus := s.t.Context(), s.theBus()
	m := s.ledger.View().Machine()
	merger, err := topology.New(topology.Config{Policy: topology.Restricted, Scope: hint.ContainerScope}, m.NodeMask(), m.Distances())
	if err != nil {
		return err
	}
	for {
		draft := ledger.NewDraft(s.ledger.View())
		draft.PutPod(&ledger.Pod{Pod: *pod, AdmissionID: id})
		for i := range pod.Containers {
			req := hint.Request{Pod: pod, Container: i}
			replies, err := bus.Hints(ctx, draft.View(), req, trace)
			if err != nil {
				return err
			}
			merged := merger.Merge(replies)
			if !merged.Admit {
				return errNotAdmitted
			}
			if err := bus.Plan(ctx, draft, req, merged.Affinity, trace); err != nil {
				return err
			}
		}
		for i := range pod.Containers {
			if err := bus.Prepare(ctx, id, draft, hint.Request{Pod: pod, Container: i}, trace); err != nil {
				return err
			}
		}
		_, err := s.ledger.Commit(ctx, draft)
		if !errors.Is(err, ledger.ErrStale) {
			return err
		}
	}
}

var errNotAdmitted = errors.New("the merge does not admit")

// remove takes a pod out of the ledger.
func (s *stage) remove(uid string) {
	s.t.Helper()
	if _, err := s.ledger.Update(s.t.Context(), func(d *ledger.Draft) error { d.RemovePod(uid); return nil }); err != nil {
		s.t.Fatal(err)
	}
}

// testWriter sends a log to the test's, while it runs.
// syncBuffer is a log that can be read while it is written.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Log(string(bytes.TrimSpace(p)))
	}
	return len(p), nil
}
