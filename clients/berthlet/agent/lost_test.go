package agent_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berthd/berth/clients/berth"
)

// This file has tests of answers that get lost: the call has had its effect, and the agent does not know.

var (
	errLost   = &berth.Error{Code: codes.Unavailable, Message: "the answer is lost"}
	errBroken = errors.New("the connection is broken")
)

// loss loses some of the answers.
type loss struct {
	mu    sync.Mutex // guards the fields below
	calls map[string]int
	lost  []string
	// choose reports whether the nth answer of a call is lost.
	choose func(call string, n int) bool
	// then is called after each loss.
	then func()
}

func (l *loss) of(call string, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[call]++
	if !l.choose(call, l.calls[call]) {
		return nil
	}
	l.lost = append(l.lost, call)
	if l.then != nil {
		l.then()
	}
	return err
}

// begin has all calls counted from the beginning.
func (l *loss) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = map[string]int{}
}

// loses has a fixture lose answers.
func (h *fixture) loses(l *loss) {
	l.begin()
	h.node.mu.Lock()
	h.node.lose = func(call string) error {
		method, _, _ := strings.Cut(call, " ")
		return l.of(method, errLost)
	}
	h.node.mu.Unlock()
	h.runtime.LoseWith(func(call, _ string) error { return l.of(call, errBroken) })
}

// answersOf are the calls whose answers can be lost.
var answersOf = []string{
	"Sync", "Admit", "Remove", "Allocate", "PreStart", "PostStop",
	"Open", "Close", "Create", "Start", "Signal terminated", "Signal killed",
}

// TestLostAnswers: whatever answer is lost, the agent finds out what has happened, also if it ends at that moment. A pod lives and ends as
// without the loss.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	const spec = `
  terminationGracePeriodSeconds: 10
  containers:
  - {name: main, image: i, command: [/p, wait], volumeMounts: [{name: v, mountPath: /v, subPath: s}]}
  - {name: hard, image: i, command: [/p, stubborn]}
  volumes: [{name: v, emptyDir: {}}]
`
	for _, method := range answersOf {
		for _, crashes := range []bool{false, true} {
			name := method
			if crashes {
				name += ", and the agent ends"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				within(t, func(h *fixture) {
					l := &loss{choose: func(call string, n int) bool { return call == method && n <= 2 }}
					ending := make(chan struct{}, 10)
					if crashes {
						l.then = func() { ending <- struct{}{} }
					}
					// settle lets the agent do everything, and start again after each loss.
					settle := func(manifests ...string) {
						t.Helper()
						h.want(manifests...)
						for range 10 {
							select {
							case <-ending:
								h.stop()
								h.begin()
								h.want(manifests...)
							default:
							}
							h.pass(time.Minute)
						}
					}
					h.loses(l)
					settle(pod("a", spec))
					h.expect("a", "Running, main#0 running, hard#0 running")
					if held, _ := h.pins.Holders(); len(held) > 0 {
						t.Errorf("pins of running containers stay: %v", held)
					}
					l.begin()
					h.node.restart(true)
					settle(pod("a", spec))
					h.expect("a", "Running, main#0 running, hard#0 running")
					h.allBound()
					h.runtime.Exit(h.id("a", "main"), 1)
					settle(pod("a", spec))
					h.expect("a", "Running, main#1 running, hard#0 running")
					h.allBound()
					settle()
					h.empty()
					if len(l.lost) == 0 {
						t.Errorf("no answer of %s was lost: %v", method, slices.Sorted(maps.Keys(l.calls)))
					}
				})
			})
		}
	}
}

// allBound checks that berthd has the id of every container that runs, and no other one.
func (h *fixture) allBound() {
	h.t.Helper()
	statuses, err := h.runtime.List(h.t.Context(), "")
	if err != nil {
		h.t.Fatal(err)
	}
	var run []string
	for _, s := range statuses {
		run = append(run, s.ID)
	}
	h.node.mu.Lock()
	defer h.node.mu.Unlock()
	if bound := slices.Sorted(maps.Keys(h.node.bound)); !slices.Equal(bound, run) {
		h.t.Errorf("containers %v run, and berthd has %v", run, bound)
	}
}

// TestLostStartIsNoTrouble: the start of a container whose answer was lost has succeeded when the container has run, and
// its end is not that of a container that could not be created.
func TestLostStartIsNoTrouble(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.loses(&loss{choose: func(call string, n int) bool { return call == "Start" && n == 1 }})
		h.want(pod("a", "  restartPolicy: Never\n  containers: [{name: main, image: i, command: [/p, wait]}]\n"))
		h.expect("a", "Running, main#0 running")
		h.runtime.Exit(h.id("a", "main"), 0)
		synctest.Wait()
		h.expect("a", "Succeeded, main#0 Completed 0")
	})
}

// TestUnansweredTerminationEnds: a runtime that never answers SIGTERM does not keep a pod alive beyond its grace.
func TestUnansweredTerminationEnds(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.loses(&loss{choose: func(call string, _ int) bool { return call == "Signal terminated" }})
		h.want(pod("a", "  terminationGracePeriodSeconds: 30\n  containers: [{name: main, image: i, command: [/p, stubborn]}]\n"))
		h.want()
		h.pass(30*time.Second - time.Millisecond)
		h.expect("a", "Running, main#0 running")
		h.pass(2 * time.Second)
		h.empty()
	})
}

// TestUnknownPodsAreClosed: of a pod that the agent does not know nothing is left, whatever answer is lost at its removal.
func TestUnknownPodsAreClosed(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"PostStop", "Remove", "Close"} {
		for _, recordless := range []bool{false, true} {
			t.Run(method, func(t *testing.T) {
				t.Parallel()
				within(t, func(h *fixture) {
					h.want(web("a"))
					h.stop()
					record := filepath.Join(h.dir, "pods", "a-uid")
					if recordless { // its directory is left, so it ends when the manifests are read
						record = filepath.Join(record, "pod.json")
					}
					if err := os.RemoveAll(record); err != nil {
						t.Fatal(err)
					}
					h.loses(&loss{choose: func(call string, n int) bool { return call == method && n == 1 }})
					h.begin()
					h.want()
					h.pass(time.Minute)
					h.empty()
				})
			})
		}
	}
}
