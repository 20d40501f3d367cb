package overlap

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/managers/cpuset"
)

// Config selects what is watched.
type Config struct {
	// Container names the container of a cgroup, by its path below a hierarchy; empty for
	// a cgroup that is no container's.
	Container func(cgroup string) string
	// CPUs are those that may be held; others are not watched.
	CPUs cpuset.Set
	// FromBirth counts what a container's first process does before it is in a cgroup of
	// the container, from its execution on. Only Trace shows that.
	FromBirth bool
	// Method forces one; empty for Trace where tracefs has what it takes, else Sample.
	Method Method
}

// Method is a way to find overlaps.
type Method string

// The methods.
const (
	Trace  Method = "trace"
	Sample Method = "sample"
)

// Overlap is one occurrence. Slices of the same container with less than merged between
// them are one overlap.
type Overlap struct {
	Holder, Intruder string
	// Program is what the intruder executed in the end; empty if that was nothing but the
	// runtime's init process. Command is the name of the intruding task, PID its number.
	Program  string
	Command  string
	PID, CPU int
	// After is how long the holder had run when the overlap began.
	After, Length time.Duration
	// Running is how much of Length the intruder ran. Under Sample it is 0 for tasks that
	// were only seen to be allowed on the CPU.
	Running time.Duration
}

func (o Overlap) String() string {
	return fmt.Sprintf("%s (%q, task %q, process %d) ran on CPU %d of %s for %v within %v, from %v after its start on", o.Intruder,
		o.Program, o.Command, o.PID, o.CPU, o.Holder, o.Running, o.Length, o.After)
}

// merged is the longest break within one overlap.
const merged = 20 * time.Millisecond

// Report is the outcome of a run.
type Report struct {
	Method   Method
	Overlaps []Overlap
	// Holders counts the containers that held CPUs while their program ran, Held adds up
	// for how long.
	Holders int
	Held    time.Duration
	// P50 and P99 are the time between two looks: between two records of a watched CPU
	// under Trace, between two samples of all tasks under Sample.
	P50, P99 time.Duration
	// Lost counts events that the kernel could not keep.
	Lost int
	// Planted counts planted overlaps, Found those that were found.
	Planted, Found int
}

// leastPlanted is how many planted overlaps a run needs.
const leastPlanted = 10

// Valid reports why a run does not count; nil if it does.
func (r Report) Valid() error {
	var errs []error
	if r.Lost > 0 {
		errs = append(errs, fmt.Errorf("the kernel lost %d events", r.Lost))
	}
	if r.Planted < leastPlanted || r.Found < r.Planted {
		errs = append(errs, fmt.Errorf("found %d of %d planted overlaps; a run needs at least %d, all of them found", r.Found, r.Planted,
			leastPlanted))
	}
	return errors.Join(errs...)
}

func (r Report) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "overlaps: %d; method %s, period p50 %v p99 %v; %d holders for %v in all; planted overlaps found: %d of %d; events lost: %d",
		len(r.Overlaps), r.Method, r.P50, r.P99, r.Holders, r.Held.Round(time.Millisecond), r.Found, r.Planted, r.Lost)
	for _, o := range r.Overlaps {
		out.WriteString("\n  " + o.String())
	}
	return out.String()
}

// quantiles sorts durations and gives the median and the 99th percentile.
func quantiles(d []time.Duration) (p50, p99 time.Duration) {
	if len(d) == 0 {
		return 0, 0
	}
	slices.Sort(d)
	return d[len(d)/2], d[min(len(d)-1, len(d)*99/100)]
}

// slice is a task's time on a CPU, or the time between two samples.
type slice struct {
	cpu       int
	from, to  time.Duration
	container string
	pid       int
	command   string
	ran       bool
}

// life is a container's.
type life struct {
	cpus cpuset.Set
	// from is the execution of its program, to the exit of the last task; ended says that
	// there was one.
	from, to     time.Duration
	began, ended bool
	program      string
	tasks        int
}

// The names of planted containers: planted, a number of their overlap, and one of the ends.
const (
	planted     = "planted "
	holderEnd   = "-holder"
	intruderEnd = "-intruder"
)

// intrudes reports whether a container on a holder's CPU is an overlap. Planted ones only
// concern each other.
func intrudes(container, holder string) bool {
	if id, mine := strings.CutSuffix(holder, holderEnd); mine && strings.HasPrefix(holder, planted) {
		return container == id+intruderEnd
	}
	return container != holder && !strings.HasPrefix(container, planted)
}

// find gives the overlaps of slices with the lives of holders, until now.
func find(slicesOf []slice, lives map[string]*life, now time.Duration) (r Report) {
	byCPU := map[int][]slice{}
	for _, s := range slicesOf {
		byCPU[s.cpu] = append(byCPU[s.cpu], s)
	}
	longest := map[int]time.Duration{}
	for cpu, of := range byCPU {
		slices.SortFunc(of, func(a, b slice) int { return cmp.Compare(a.from, b.from) })
		for _, s := range of {
			longest[cpu] = max(longest[cpu], s.to-s.from)
		}
	}
	for holder, l := range lives {
		if l.cpus.IsEmpty() || !l.began {
			continue
		}
		to := now
		if l.ended {
			to = l.to
		}
		mine := strings.HasPrefix(holder, planted)
		if !mine {
			r.Holders++
			r.Held += to - l.from
		}
		open := map[string]*Overlap{}
		var found []*Overlap
		for cpu := range l.cpus.All() {
			of := byCPU[cpu]
			first, _ := slices.BinarySearchFunc(of, l.from-longest[cpu],
				func(s slice, at time.Duration) int { return cmp.Compare(s.from, at) })
			for _, s := range of[first:] {
				if s.from >= to {
					break
				}
				from, until := max(s.from, l.from), min(s.to, to)
				if from >= until || !intrudes(s.container, holder) {
					continue
				}
				var ran time.Duration
				if s.ran {
					ran = until - from
				}
				o := open[s.container]
				if o == nil || from-l.from-o.After-o.Length > merged {
					o = &Overlap{Holder: holder, Intruder: s.container, Program: lifeOf(lives, s.container).program, Command: s.command,
						PID: s.pid, CPU: cpu, After: from - l.from}
					open[s.container], found = o, append(found, o)
				}
				o.Length, o.Running = max(o.Length, until-l.from-o.After), o.Running+ran
			}
		}
		for _, o := range found {
			if mine {
				r.Found++
				break
			}
			r.Overlaps = append(r.Overlaps, *o)
		}
	}
	slices.SortFunc(r.Overlaps, func(a, b Overlap) int {
		return cmp.Or(cmp.Compare(a.Holder, b.Holder), cmp.Compare(a.After, b.After), cmp.Compare(a.Intruder, b.Intruder))
	})
	return r
}
