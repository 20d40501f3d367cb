package readiness_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/server/internal/readiness"
)

// TestProblems: a probe's result is published after its time, is logged once, and concerns the services that need it.
func TestProblems(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var faults sync.Map // what probes return, by their names
		probe := func(name string) func(context.Context) error {
			return func(context.Context) error {
				if text, ok := faults.Load(name); ok {
					return errors.New(text.(string))
				}
				return nil
			}
		}
		changes := 0
		m := readiness.New(readiness.Config{
			Every: time.Second, Timeout: time.Second / 2, Log: slog.New(slog.NewTextHandler(&log, nil)),
			Changed: func(*readiness.Monitor) { changes++ },
		},
			readiness.Check{Name: "ledger", Probe: probe("disk"), Only: []string{"", "writes"}},
			readiness.Check{Name: "socket", Probe: probe("socket")},
			readiness.Check{Name: "plugins", Probe: func(context.Context) error { return errors.New("gone") }, Only: []string{"plugins"}},
		)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		expect := func(whole string, serving ...string) {
			t.Helper()
			time.Sleep(time.Second) // on synctest's clock
			synctest.Wait()
			lines, some := m.Lines()
			if got := strings.Join(lines, "|"); got != whole || len(some) != 1 || some[0] != "plugins: gone" {
				t.Errorf("problems are %q and %q, want %q", got, some, whole)
			}
			for _, s := range []string{"", "reads", "writes", "plugins"} {
				if got := m.Serves(s); got != slices.Contains(serving, s) {
					t.Errorf("service %q serves: %v", s, got)
				}
			}
		}
		expect("", "", "reads", "writes")
		faults.Store("disk", "read-only\nfile system")
		expect("ledger: read-only; file system", "reads")
		expect("ledger: read-only; file system", "reads")
		faults.Store("socket", "removed")
		expect("ledger: read-only; file system|socket: removed")
		faults.Clear()
		expect("", "", "reads", "writes")
		if got := strings.Count(log.String(), "read-only"); got != 1 || strings.Count(log.String(), "works again") != 2 || changes != 5 {
			t.Errorf("%d changes, logged %d times:\n%s", changes, got, &log)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestProbeThatHangs: it is a problem, is not started again while it hangs, and keeps no other check waiting.
func TestProbeThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		started, others := 0, 0
		m := readiness.New(readiness.Config{
			Every: time.Second, Timeout: time.Second, Log: slog.New(slog.DiscardHandler), Changed: func(*readiness.Monitor) {},
		},
			readiness.Check{Name: "disk", Probe: func(context.Context) error { started++; <-release; return nil }},
			readiness.Check{Name: "other", Probe: func(context.Context) error { others++; return nil }},
		)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if whole, _ := m.Lines(); len(whole) != 1 || whole[0] != "disk: it did not end within 1s" || started != 1 || others < 50 {
			t.Errorf("%q, started %d times, the other one %d", whole, started, others)
		}
		close(release)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !m.Serves("") || started < 2 {
			t.Errorf("serves: %v, started %d times", m.Serves(""), started)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
