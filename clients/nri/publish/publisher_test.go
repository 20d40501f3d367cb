package publish

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
)

// server is an API server, and berthd behind it. A test has the lock except while time passes.
type server struct {
	sync.Mutex
	object *Object
	free   *fitv1.FreeResources
	// away is returned by every call; lost by writes that succeed.
	away, lost error
	reads      int
	// calls are those of berthd; it refuses the next ones.
	calls, refuses int
	writes         []time.Time
	log            strings.Builder
	changed        chan struct{}
}

func (s *server) Get(context.Context) (*Object, error) {
	s.Lock()
	defer s.Unlock()
	s.reads++
	return s.object, s.away
}

func (s *server) Apply(_ context.Context, o *Object) error {
	s.Lock()
	defer s.Unlock()
	s.writes = append(s.writes, time.Now())
	if s.away != nil {
		return s.away
	}
	s.object = o
	return s.lost
}

func (s *server) want(context.Context) (*Object, error) {
	s.Lock()
	defer s.Unlock()
	s.calls++
	if s.refuses > 0 {
		s.refuses--
		return nil, errors.New("no such file")
	}
	return New("n", nil, s.free, nil), nil
}

func (s *server) take(cpus uint64) {
	s.free.Nodes[0].Resources[0].Available = cpus
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *server) right() bool { return Compare(s.object, New("n", nil, s.free, nil)) == Same }

// run runs a test with a publisher in a bubble with a clock of its own.
func run(t *testing.T, test func(t *testing.T, s *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{free: twoNodes(), changed: make(chan struct{}, 1)}
		p := NewPublisher(Config{
			Store: s, Changed: s.changed, Spread: DefaultSpread, Wrote: func(error) {}, Log: slog.New(slog.NewTextHandler(&s.log, nil)),
			Want: s.want,
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); p.Run(ctx) }()
		s.Lock()
		test(t, s)
		s.Unlock()
		cancel()
		<-ended
	})
}

// pass lets time pass.
func (s *server) pass(d time.Duration) {
	s.Unlock()
	time.Sleep(d)
	synctest.Wait()
	s.Lock()
}

func TestPublisher(t *testing.T) {
	run(t, func(t *testing.T, s *server) {
		s.pass(DefaultSpread + 2*Interval)
		if !s.right() || len(s.writes) != 1 {
			t.Fatalf("after the spread: %d writes, %+v", len(s.writes), s.object)
		}
		// A pod comes: within a second. Nothing changes: nothing is written.
		s.take(1)
		s.pass(2 * Interval)
		if !s.right() || len(s.writes) != 2 {
			t.Errorf("after a pod: %d writes, %+v", len(s.writes), s.object)
		}
		s.take(1)
		s.pass(checkedEvery - time.Minute)
		if len(s.writes) != 2 {
			t.Errorf("without a change: %d writes", len(s.writes))
		}
		// Pods come and go all the time: one write in a second. No amount returns, so that each comparison finds a difference.
		for i := range uint64(100) {
			s.take(2 + i)
			s.pass(100 * time.Millisecond)
		}
		s.pass(2 * Interval)
		if n := len(s.writes) - 2; n < 2 || n > 11 || !s.right() {
			t.Errorf("%d writes for 100 changes in 10 s", n)
		}
		for i := range s.writes[1:] {
			if gap := s.writes[i+1].Sub(s.writes[i]); gap < Interval {
				t.Errorf("two writes within %s", gap)
			}
		}
		// Another policy, as on all nodes.
		before := len(s.writes)
		s.free.TopologyPolicy = "restricted"
		s.take(2)
		s.pass(DefaultSpread + 2*Interval)
		if !s.right() || len(s.writes) != before+1 {
			t.Errorf("after another policy: %d writes", len(s.writes)-before)
		}
	})
}

// TestRestart: a publisher that finds the object as it should be writes nothing.
func TestRestart(t *testing.T) {
	run(t, func(t *testing.T, s *server) {
		s.object = New("n", nil, s.free, nil)
		s.object.check(time.Now())
		s.pass(time.Minute)
		if len(s.writes) != 0 || s.reads != 1 {
			t.Errorf("%d writes, %d reads", len(s.writes), s.reads)
		}
	})
}

// TestAge: an object that does not change is written again every ten minutes, at a moment of the spread, with the time of
// its last comparison. An object with a time that lies in the future, with none, or with another text has no known age,
// and is written soon.
func TestAge(t *testing.T) {
	run(t, func(t *testing.T, s *server) {
		s.pass(DefaultSpread + 2*Interval)
		for range 6 {
			s.pass(checkedEvery + lookEvery + DefaultSpread + 2*Interval)
			if age := time.Since(s.object.checked()); age > checkedEvery+lookEvery+DefaultSpread {
				t.Errorf("the object says that it was compared %s ago", age)
			}
		}
		for i := range s.writes[1:] {
			if gap := s.writes[i+1].Sub(s.writes[i]); gap < checkedEvery-time.Second {
				t.Errorf("two writes without a change within %s", gap)
			}
		}
		for name, spoil := range map[string]func(o *Object){
			"the future": func(o *Object) { o.check(time.Now().Add(time.Hour)) },
			"no time":    func(o *Object) { o.Metadata.Annotations = nil },
			"another":    func(o *Object) { o.Metadata.Annotations = map[string]string{CheckedAnnotation: "yesterday"} },
		} {
			other := *s.object
			spoil(&other)
			s.object = &other
			s.pass(verifyEvery + lookEvery + DefaultSpread + 2*Interval)
			if age := time.Since(s.object.checked()); age < 0 || age > verifyEvery {
				t.Errorf("%s: the object says that it was compared %s ago", name, age)
			}
		}
	})
}

// TestOthersWrite: an object that another program has deleted or changed is restored at the next reading.
func TestOthersWrite(t *testing.T) {
	run(t, func(t *testing.T, s *server) {
		s.pass(DefaultSpread + 2*Interval)
		s.object = nil
		s.pass(verifyEvery + DefaultSpread + 2*Interval)
		if !s.right() {
			t.Error("the object is not there again")
		}
		if s.reads > 4 {
			t.Errorf("%d reads", s.reads)
		}
	})
}

// TestServerAway: without an API server the calls become rare; when it is back, the object is
// right within the spread. The log has a line for each outage.
func TestServerAway(t *testing.T) {
	run(t, func(t *testing.T, s *server) {
		s.pass(DefaultSpread + 2*Interval)
		s.away = errors.New("connection refused")
		writes, reads := len(s.writes), s.reads
		s.take(1)
		s.pass(time.Hour)
		if n := len(s.writes) - writes + s.reads - reads; n < 30 || n > 250 {
			t.Errorf("%d calls in an hour", n)
		}
		s.away = nil
		s.pass(DefaultSpread + 2*Interval)
		if !s.right() {
			t.Error("the object is not right after the outage")
		}
		for _, text := range []string{"cannot write", "cannot read", "again possible: read", "again possible: write"} {
			if n := strings.Count(s.log.String(), text); n != 1 {
				t.Errorf("the log says %q %d times:\n%s", text, n, &s.log)
			}
		}
	})
}

// TestAnswerLost: a write that succeeded and was not answered is not repeated.
func TestAnswerLost(t *testing.T) {
	run(t, func(t *testing.T, s *server) {
		s.lost = context.DeadlineExceeded
		s.pass(10 * time.Minute)
		if len(s.writes) != 1 || !s.right() {
			t.Errorf("%d writes", len(s.writes))
		}
	})
}

// TestBerthdAway: while berthd does not answer, nothing is written.
func TestBerthdAway(t *testing.T) {
	run(t, func(t *testing.T, s *server) {
		s.refuses = 100
		s.pass(50 * time.Second)
		if s.calls > 51 || len(s.writes) > 0 || s.reads != 1 {
			t.Errorf("%d calls of berthd, %d writes, %d reads", s.calls, len(s.writes), s.reads)
		}
		s.pass(time.Minute + DefaultSpread)
		if !s.right() {
			t.Errorf("the object is not right after the outage\n%s", &s.log)
		}
	})
}
