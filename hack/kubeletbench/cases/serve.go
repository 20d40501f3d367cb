package cases

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"syscall"
	"time"
)

// Request asks for one sample of a case.
type Request struct {
	Case string
	For  time.Duration
}

// Sample is the mean of the runs of a case in one turn, in processor time of the program.
type Sample struct {
	Error     string
	Result    Result
	NS        float64
	AsideNS   float64 // part of NS, see Op.Aside
	Allocs    uint64
	Toolchain string
}

// Result is what was decided. Node sets are bits; no bits mean any node.
type Result struct {
	Nodes            uint64
	Preferred, Admit bool
	// What the pod of a decision gets: CPUs as a list, memory and each resource as nodes.
	CPUs    string
	Memory  uint64
	Devices [2]uint64
}

// Op is a case that a program is ready to run.
type Op struct {
	Do func() error
	// Result is what the last Do decided, and is not measured.
	Result func() Result
	// Undo brings back the state from before Do, and is not measured; nil if Do changes nothing.
	Undo func() error
	// Aside is the part of Do's processor time that is also reported by itself; nil if there is none.
	Aside *time.Duration
}

// Serve measures cases as requested, until the requests end. build makes a case ready.
func Serve(in io.Reader, out io.Writer, build func(Case) (Op, error)) error {
	var ready string
	var op Op
	requests, samples := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var r Request
		if err := requests.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		s, err := Sample{}, error(nil)
		if ready != r.Case {
			ready = r.Case
			op, err = find(r.Case, build)
		}
		if err == nil {
			s, err = op.sample(r.For)
		}
		if err != nil {
			s.Error = err.Error()
		}
		s.Toolchain = runtime.Version()
		if err := samples.Encode(s); err != nil {
			return err
		}
	}
}

func find(name string, build func(Case) (Op, error)) (Op, error) {
	for _, c := range All() {
		if c.Name() == name {
			return build(c)
		}
	}
	return Op{}, fmt.Errorf("no case is called %q", name)
}

// sample runs an operation until it has taken the time, and once if it takes longer. In other cases the first run, which allocates
// what stays, does not count.
func (op Op) sample(length time.Duration) (s Sample, err error) {
	runtime.GC()
	total, err := op.once(&s)
	n := 1
	if err == nil && total.cpu < length {
		total, n = span{}, 0
		for batch := 1; total.cpu < length; batch *= 2 {
			took, err := op.batch(batch)
			if err != nil {
				return s, err
			}
			total, n = total.plus(took), n+batch
		}
		_, err = op.once(&s)
	}
	s.NS, s.AsideNS = float64(total.cpu)/float64(n), float64(total.aside)/float64(n)
	return s, err
}

// once runs an operation and counts what it allocates.
func (op Op) once(s *Sample) (span, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := op.now()
	err := op.Do()
	took := op.now().minus(start)
	runtime.ReadMemStats(&after)
	if err != nil {
		return took, err
	}
	s.Result, s.Allocs = op.Result(), after.Mallocs-before.Mallocs
	if op.Undo != nil {
		err = op.Undo()
	}
	return took, err
}

// batch runs an operation a number of times.
func (op Op) batch(n int) (span, error) {
	var total span
	start := op.now()
	for range n {
		if err := op.Do(); err != nil {
			return total, err
		}
		if op.Undo == nil {
			continue
		}
		total = total.plus(op.now().minus(start))
		if err := op.Undo(); err != nil {
			return total, err
		}
		start = op.now()
	}
	return total.plus(op.now().minus(start)), nil
}

// span is a length of processor time, or a point.
type span struct{ cpu, aside time.Duration }

func (s span) plus(o span) span  { return span{s.cpu + o.cpu, s.aside + o.aside} }
func (s span) minus(o span) span { return span{s.cpu - o.cpu, s.aside - o.aside} }

func (op Op) now() span {
	p := span{cpu: ProcessorTime()}
	if op.Aside != nil {
		p.aside = *op.Aside
	}
	return p
}

// ProcessorTime is what this process has used of all processors, the garbage collector included.
func ProcessorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it has no reason to fail
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
