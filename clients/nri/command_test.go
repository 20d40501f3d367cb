package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/grpc"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/nri/policy"
)

func TestRefusals(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"--log-level":     {"--log-level", "loud"},
		"--on-failure":    {"--on-failure", "hope"},
		"endpoint":        {"--endpoint", "tcp:1.2.3.4"},
		"unknown command": {"dance"},
		"index":           {"--endpoint", "/nowhere", "--index", "first"},
	} {
		var out bytes.Buffer
		cmd := command(&out, &out)
		cmd.SetArgs(args)
		// One that is not refused serves until the context ends, and then has no error.
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		if err := cmd.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %s; want %q", args, err, &out, want)
		}
	}
}

// withRuntime is a berthd that has a container runtime's containers itself.
type withRuntime struct {
	nodev1.UnimplementedNodeServiceServer
}

func (withRuntime) GetConfig(context.Context, *nodev1.GetConfigRequest) (*nodev1.GetConfigResponse, error) {
	return &nodev1.GetConfigResponse{RuntimeEndpoint: "unix:///run/containerd/containerd.sock"}, nil
}

// TestBesideRuntime is refused before anything is said to a runtime.
func TestBesideRuntime(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "nri") // a test's own may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "b"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	nodev1.RegisterNodeServiceServer(s, withRuntime{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-served })
	var out bytes.Buffer
	cmd := command(&out, &out)
	cmd.SetArgs([]string{"--endpoint", filepath.Join(dir, "b"), "--nri-socket", filepath.Join(dir, "n")})
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := cmd.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(),
		"--runtime-endpoint unix:///run/containerd/containerd.sock") {
		t.Errorf("%v, %s", err, &out)
	}
}

// TestNotConnected has no runtime yet.
func TestNotConnected(t *testing.T) {
	t.Parallel()
	c := &connection{}
	if _, err := c.UpdateContainers(nil); err == nil {
		t.Error("an update without a connection succeeded")
	}
	if got := c.timeout(); got != stub.DefaultRequestTimeout {
		t.Errorf("deadline is %v", got)
	}
}

// requestedStub counts requested updates.
type requestedStub struct {
	stub.Stub
	updates int
}

// UpdateContainers implements stub.Stub.
func (s *requestedStub) UpdateContainers([]*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	s.updates++
	return nil, nil
}

// TestRuntimeBecomesOlder: a runtime is replaced, by one that does not survive updates at any time, while updates for the former one are
// still under way, as at the end of berth-nri. They do not reach it.
func TestRuntimeBecomesOlder(t *testing.T) {
	t.Parallel()
	version := ""
	p := policy.New(policy.Config{Log: slog.New(slog.DiscardHandler), Client: unconnected(t), NRIVersion: func() string { return version }})
	o := &outage{Policy: p, log: slog.New(slog.DiscardHandler), runtime: &connection{}}
	for _, row := range []struct {
		version string
		reached bool
	}{{"v0.12.1", true}, {"v0.12.0", false}, {"v0.13.0", true}, {"v0.12.1-rc.1", false}} {
		version = row.version
		s := &requestedStub{}
		var current stub.Stub = s
		o.runtime.stub.Store(&current)
		if _, err := o.Configure(t.Context(), "", "containerd", "v2.3.0"); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Synchronize(t.Context(), nil, nil); err != nil {
			t.Fatal(err)
		}
		_, err := o.runtime.UpdateContainers(nil)
		if reached := s.updates > 0; reached != row.reached || (err == nil) != row.reached {
			t.Errorf("NRI %s: an update reaches the runtime: %v, %v", row.version, reached, err)
		}
		o.begin()
	}
}

func TestCPUsOf(t *testing.T) {
	t.Parallel()
	if cpus, err := cpusOf(os.Getpid()); err != nil || cpus.IsEmpty() {
		t.Errorf("CPUs %s, %v", cpus, err)
	}
	if cpus, err := cpusOf(1 << 30); err == nil {
		t.Errorf("a process that is not there has CPUs %s", cpus)
	}
}

// TestBornAt: two processes have other beginnings, and one has the same each time.
func TestBornAt(t *testing.T) {
	t.Parallel()
	first, err := bornAt(1)
	own, errOwn := bornAt(os.Getpid())
	again, errAgain := bornAt(os.Getpid())
	if err = errors.Join(err, errOwn, errAgain); err != nil || own <= first || own != again {
		t.Errorf("the first process began at %d, this one at %d and %d: %v", first, own, again, err)
	}
	if at, err := bornAt(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that is not there began at %d: %v", at, err)
	}
}

// TestOutage: the log has one line for the time without a runtime, whatever the stub says
// meanwhile, and one for its end.
func TestOutage(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	p := policy.New(policy.Config{Log: slog.New(slog.DiscardHandler), Client: unconnected(t)})
	o := &outage{Policy: p, log: log, runtime: &connection{}}
	l := logger{log, o}
	if !o.begin() || o.begin() {
		t.Error("the outage does not begin once")
	}
	if o.runtime.ready() == nil {
		t.Error("berth-nri is ready without a runtime")
	}
	l.Errorf(t.Context(), "failed to %s", "dial")
	l.Warnf(t.Context(), "closed")
	if text.Len() > 0 {
		t.Errorf("during the outage the log has %s", text.String())
	}
	if _, err := o.Synchronize(t.Context(), nil, nil); err != nil {
		t.Error(err)
	}
	if err := o.runtime.ready(); err != nil {
		t.Errorf("after the outage: %v", err)
	}
	if p.Ready() == nil {
		t.Error("berth-nri is ready without berthd")
	}
	l.Errorf(t.Context(), "failed to %s", "update")
	if got := text.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "connected to the runtime again") ||
		!strings.Contains(got, "failed to update") {
		t.Errorf("after the outage the log has %s", got)
	}
}

// TestRegistersAgain: berth-nri connects to the runtime again when berthd becomes ready for the first time, if what the
// runtime does after a late answer is other then.
func TestRegistersAgain(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, failure           string
		ready, refuses, started bool // berthd at first, and what is registered
		again                   bool
	}{
		{"berthd was never ready", refuse, false, false, false, true},
		{"berthd was ready before", refuse, true, true, false, false},
		{"berthd has become ready since", refuse, true, false, false, true},
		{"containers start without berthd", pass, false, false, false, false},
		{"the runtime has started the plugin", refuse, false, false, true, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var ready atomic.Bool
				ready.Store(row.ready)
				p := policy.New(policy.Config{Log: slog.New(slog.DiscardHandler), Established: ready.Load})
				o, away := &options{failure: row.failure}, &outage{Policy: p}
				ctx, end := context.WithTimeout(t.Context(), time.Hour)
				defer end()
				time.AfterFunc(time.Minute, func() { ready.Store(true) })
				began := time.Now()
				run := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
				again, err := o.connected(ctx, run, away, row.refuses, row.started)
				if took := time.Since(began); again != row.again || again && took > 2*time.Minute || !again &&
					(took != time.Hour || err == nil) {
					t.Errorf("again %v after %s: %v", again, took, err)
				}
			})
		})
	}
	closed := errors.New("closed")
	p := policy.New(policy.Config{Log: slog.New(slog.DiscardHandler), Established: func() bool { return false }})
	if again, err := (&options{failure: refuse}).connected(t.Context(), func(context.Context) error { return closed }, &outage{Policy: p},
		false, false); again || !errors.Is(err, closed) {
		t.Errorf("the runtime has ended the connection: %v, %v", again, err)
	}
}

// unconnected is a client of no berthd.
func unconnected(t *testing.T) *berth.Client {
	t.Helper()
	c, err := berth.Dial(t.Context(), filepath.Join(t.TempDir(), "none.sock"), berth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
