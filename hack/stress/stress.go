// Package stress drives a node with containers that come, go and are resized beside pods
// with CPUs of their own, kills the node's programs meanwhile, and reports whether anybody
// ran on CPUs that another container held exclusively (package overlap).
//
// Words:
//
//   - unit: a container that the test runs, alone or with others in a pod. A unit
//     is exclusive or shares CPUs.
//   - round: an exclusive unit comes within the same 200 ms as several others, stays a
//     moment in which others are resized, end and start, and is followed at once by the
//     next one.
//   - component: a program of the node that can be killed.
//
// Not here: how a node starts a container, and what its components are.
package stress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/hack/overlap"
	"github.com/berthd/berth/managers/cpuset"
)

// Unit is a container.
type Unit struct {
	Name      string
	Exclusive bool
}

// Node is what runs the units. Its methods are called side by side for different units.
type Node interface {
	// Start has a unit run, however often that has to be tried.
	Start(ctx context.Context, u Unit) error
	// Held returns the detector's name of a running unit, and its CPUs.
	Held(ctx context.Context, u Unit) (container string, cpus cpuset.Set, err error)
	// Resize gives a unit another CPU request. A refusal is no error.
	Resize(ctx context.Context, u Unit, milli int64) error
	// Stop ends a unit at once.
	Stop(ctx context.Context, u Unit) error
	// Components are what Kill ends, and starts again.
	Components() []string
	Kill(ctx context.Context, component string) error
}

// Options are the size of a run.
type Options struct {
	// Units is how many there are in all, Alive how many at most at a time. With Time, a run lasts at least so
	// long.
	Units, Alive int
	Time         time.Duration
	// Seed decides who comes, goes and is killed when.
	Seed uint64
	// Probe is the program hack/probe, CPU one that may be held.
	Probe string
	CPU   int
	// Sandbox reports whether the runtime has made a container, by the detector's name, as a sandbox, whose
	// processes may begin on all CPUs: the runtime starts them before any event, in a cgroup that is not
	// berth's. Nil if no process may.
	Sandbox func(container string) bool
}

const (
	// within is the time in which the units of a round come.
	within = 200 * time.Millisecond
	// stay is how long an exclusive unit stays.
	stay = 700 * time.Millisecond
)

// run is a run under way.
type run struct {
	Node
	Options
	detector *overlap.Detector

	mu     sync.Mutex // guards what is below
	random *rand.Rand
	alive  []Unit
	made   int
}

// Run drives a node until all units have been there, and fails the test for every overlap
// and for a detector that would not have seen one. It returns what the detector has found.
func Run(ctx context.Context, t *testing.T, n Node, d *overlap.Detector, o Options) overlap.Report {
	t.Helper()
	t.Logf("seed %d", o.Seed)
	r := &run{Node: n, Options: o, detector: d, random: rand.New(rand.NewPCG(o.Seed, 0))}
	var err error
	rounds, started := 0, time.Now()
	for err == nil && (r.made < o.Units || time.Since(started) < o.Time) {
		rounds++
		err = r.round(ctx, rounds)
	}
	for _, u := range r.alive {
		err = errors.Join(err, n.Stop(ctx, u))
	}
	report, stopErr := d.Stop()
	if err = errors.Join(err, stopErr, report.Valid()); err != nil {
		t.Error(err)
	}
	sandboxes := 0
	kept := report.Overlaps[:0]
	for _, found := range report.Overlaps {
		if o.Sandbox != nil && o.Sandbox(found.Intruder) {
			sandboxes++
			continue
		}
		kept = append(kept, found)
	}
	report.Overlaps = kept
	t.Logf("%d units in %d rounds and %v; %v; overlaps of sandboxes: %d", r.made, rounds, time.Since(started).Round(time.Second), report,
		sandboxes)
	if len(kept) > 0 {
		t.Errorf("%d overlaps", len(kept))
	}
	if report.Holders < rounds {
		t.Errorf("%d rounds had an exclusive unit, and %d held CPUs", rounds, report.Holders)
	}
	return report
}

// draw gives a number below n.
func (r *run) draw(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.random.IntN(n)
}

// next names a unit.
func (r *run) next(exclusive bool) Unit {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made++
	return Unit{fmt.Sprintf("u%d", r.made), exclusive}
}

// take removes a unit that shares CPUs from those that are alive.
func (r *run) take() (Unit, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.alive) == 0 {
		return Unit{}, false
	}
	i := r.random.IntN(len(r.alive))
	u := r.alive[i]
	r.alive = append(r.alive[:i], r.alive[i+1:]...)
	return u, true
}

func (r *run) put(u Unit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.alive = append(r.alive, u)
}

// sharer starts a unit that shares CPUs after a moment.
func (r *run) sharer(ctx context.Context, after time.Duration) error {
	if err := wait(ctx, after); err != nil {
		return err
	}
	u := r.next(false)
	if err := r.Start(ctx, u); err != nil {
		return fmt.Errorf("start %s: %w", u.Name, err)
	}
	r.put(u)
	return nil
}

// exclusive has an exclusive unit come, stay and go.
func (r *run) exclusive(ctx context.Context, after time.Duration) error {
	if err := wait(ctx, after); err != nil {
		return err
	}
	u := r.next(true)
	if err := r.Start(ctx, u); err != nil {
		return fmt.Errorf("start %s, which is exclusive: %w", u.Name, err)
	}
	name, cpus, err := r.Held(ctx, u)
	if err != nil {
		return fmt.Errorf("CPUs of %s: %w", u.Name, err)
	}
	r.detector.Hold(name, cpus)
	if err := errors.Join(r.detector.Plant(ctx, r.Probe, r.CPU), wait(ctx, stay)); err != nil {
		return err
	}
	if err := r.Stop(ctx, u); err != nil {
		return fmt.Errorf("stop %s, which is exclusive: %w", u.Name, err)
	}
	return nil
}

// disturb resizes a unit that shares CPUs, or ends it.
func (r *run) disturb(ctx context.Context, after time.Duration, stop bool) error {
	if err := wait(ctx, after); err != nil {
		return err
	}
	u, ok := r.take()
	if !ok {
		return nil
	}
	if stop {
		if err := r.Stop(ctx, u); err != nil {
			return fmt.Errorf("stop %s: %w", u.Name, err)
		}
		return nil
	}
	defer r.put(u)
	if err := r.Resize(ctx, u, int64(10+r.draw(50))); err != nil {
		return fmt.Errorf("resize %s: %w", u.Name, err)
	}
	return nil
}

// round is described in the package comment. A component is killed in every other one.
func (r *run) round(ctx context.Context, number int) error {
	var all []func() error
	moment := func(n time.Duration) time.Duration { return time.Duration(r.draw(int(n))) }
	come := 4 + r.draw(4)
	r.mu.Lock()
	room := r.Alive - len(r.alive) - 1
	r.mu.Unlock()
	for room < come {
		if err := r.disturb(ctx, 0, true); err != nil {
			return err
		}
		room++
	}
	first := moment(within)
	all = append(all, func() error { return r.exclusive(ctx, first) })
	for range come {
		after := moment(within)
		all = append(all, func() error { return r.sharer(ctx, after) })
	}
	for i := range 4 {
		after := moment(within + stay)
		all = append(all, func() error { return r.disturb(ctx, after, i == 0) })
	}
	if parts := r.Components(); number%2 == 0 && len(parts) > 0 {
		part, after := parts[number/2%len(parts)], moment(within+stay)
		all = append(all, func() error {
			if err := wait(ctx, after); err != nil {
				return err
			}
			if err := r.Kill(ctx, part); err != nil {
				return fmt.Errorf("kill %s: %w", part, err)
			}
			return nil
		})
	}
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i, f := range all {
		group.Go(func() { errs[i] = f() })
	}
	group.Wait()
	return errors.Join(errs...)
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Variable is the environment variable that requests a run, with the number of units, or with how long it lasts.
const Variable = "BERTH_STRESS"

// SeedVariable is the environment variable that repeats a run's choices.
const SeedVariable = "BERTH_STRESS_SEED"

// Configured gives the options of a run that was requested. The test is skipped where none
// was, or where there is no CPU to hold beside the first one.
func Configured(t *testing.T) Options {
	t.Helper()
	text := os.Getenv(Variable)
	units, err := strconv.Atoi(text)
	var length time.Duration
	if err != nil {
		length, err = time.ParseDuration(text)
	}
	if err != nil {
		t.Skipf("needs several minutes: %s is the number of containers, as in 200, or a duration, as in 10m; make test-all sets it",
			Variable)
	}
	if runtime.NumCPU() < 2 {
		t.Skipf("needs 2 CPUs, one of them for the system; here are %d", runtime.NumCPU())
	}
	o := Options{Units: units, Time: length, Alive: 40, Seed: uint64(time.Now().UnixNano()), CPU: 1}
	if text := os.Getenv(SeedVariable); text != "" {
		if o.Seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", SeedVariable, err)
		}
	}
	return o
}
