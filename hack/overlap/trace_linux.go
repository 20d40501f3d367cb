package overlap

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthd/berth/managers/cpuset"
)

// Where the kernel shows its events.
const (
	tracefs  = "/sys/kernel/tracing"
	instance = "berth-overlap-"
	// bufferKB is what the kernel keeps for each CPU until it is read.
	bufferKB = "32768"
	// maxLag is how long an event of another CPU may come later than a younger one.
	maxLag = 100 * time.Millisecond
	// poll is how often the events are read.
	poll = 5 * time.Millisecond
)

// traced are the events, by their folders.
var traced = []string{"sched/sched_switch", "task/task_newtask", "sched/sched_process_exec", "sched/sched_process_exit",
	"cgroup/cgroup_attach_task"}

// recorder reads the events of an instance of its own.
type recorder struct {
	mountedAt string // where tracefs was mounted for this; empty if it was there
	dir       string
	pipe      int
	rest      []byte
	pending   []event
	newest    time.Duration
	lost      int
}

// openTrace makes an instance that records. An error means that this kernel, or this
// user, cannot.
func openTrace(cpus cpuset.Set) (r *recorder, err error) {
	r = &recorder{pipe: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	root := tracefs
	if _, err := os.Stat(root + "/instances"); err != nil {
		if r.mountedAt, err = os.MkdirTemp("", "tracefs"); err != nil {
			return r, err
		}
		root = r.mountedAt
		if err := syscall.Mount("tracefs", root, "tracefs", 0, ""); err != nil {
			return r, fmt.Errorf("mount tracefs: %w", err)
		}
	}
	removeStale(root)
	dir, err := os.MkdirTemp(root+"/instances", instance+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return r, err
	}
	r.dir = dir
	for _, set := range [][2]string{{"trace_clock", "mono"}, {"buffer_size_kb", bufferKB}} {
		if err := r.set(set[0], set[1]); err != nil {
			return r, err
		}
	}
	// Kernels before 6.6 cannot leave CPUs out; then there is more to read.
	_ = r.set("events/sched/sched_switch/filter", "CPU & CPUS{"+cpus.String()+"}")
	for _, name := range traced {
		if err := r.set("events/"+name+"/enable", "1"); err != nil {
			return r, err
		}
	}
	r.pipe, err = syscall.Open(dir+"/trace_pipe", syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	return r, err
}

// removeStale removes the instances of processes that were killed.
func removeStale(root string) {
	left, _ := filepath.Glob(root + "/instances/" + instance + "*")
	for _, dir := range left {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), instance), "-")
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, fs.ErrNotExist) {
			_ = syscall.Rmdir(dir)
		}
	}
}

func (r *recorder) set(file, value string) error {
	return os.WriteFile(filepath.Join(r.dir, file), []byte(value), 0)
}

// read takes in what the kernel has now.
func (r *recorder) read() error {
	buffer := make([]byte, 1<<16)
	for {
		n, err := syscall.Read(r.pipe, buffer)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN) || err == nil && n == 0:
			return nil
		case err != nil:
			return fmt.Errorf("read events: %w", err)
		}
		r.rest = append(r.rest, buffer[:n]...)
		for {
			line, rest, whole := bytes.Cut(r.rest, []byte("\n"))
			if !whole {
				break
			}
			r.rest = rest
			e, lost, ok := parse(string(line))
			r.lost += lost
			if ok {
				r.pending, r.newest = append(r.pending, e), max(r.newest, e.at)
			}
		}
	}
}

// take gives the events up to a time, in their order.
func (r *recorder) take(until time.Duration) []event {
	slices.SortStableFunc(r.pending, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	n, _ := slices.BinarySearchFunc(r.pending, until, func(e event, at time.Duration) int { return cmp.Compare(e.at, at) })
	out := slices.Clone(r.pending[:n])
	r.pending = slices.Delete(r.pending, 0, n)
	return out
}

// stop ends the recording; what is recorded can still be read.
func (r *recorder) stop() error { return r.set("tracing_on", "0") }

// close removes the instance.
func (r *recorder) close() error {
	var errs []error
	if r.pipe >= 0 {
		errs = append(errs, syscall.Close(r.pipe))
	}
	if r.dir != "" {
		for _, name := range traced {
			_ = r.set("events/"+name+"/enable", "0")
		}
		errs = append(errs, syscall.Rmdir(r.dir))
	}
	if r.mountedAt != "" {
		// A process that is being started may still have one of the files open.
		err := syscall.Unmount(r.mountedAt, syscall.MNT_DETACH)
		if errors.Is(err, syscall.EINVAL) {
			err = nil // it could not be mounted
		}
		errs = append(errs, err, os.Remove(r.mountedAt))
	}
	return errors.Join(errs...)
}
