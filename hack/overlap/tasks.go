package overlap

import (
	"strings"
	"time"

	"github.com/berthd/berth/managers/cpuset"
)

// kind is what happened.
type kind int

// The events that the tasks' lives are put together from.
const (
	switched kind = iota // the CPU continues with the task other
	created              // the task pid has made the task other
	attached             // the process pid is now in the cgroup text
	executed             // the process pid runs the program text
	exited               // the task pid ends
)

// event is a record of the kernel.
type event struct {
	at         time.Duration
	cpu        int
	kind       kind
	pid, other int
	text       string
	flags      uint64
}

// Flags of clone(2).
const (
	cloneThread     = 0x00010000
	cloneIntoCgroup = 0x200000000
)

// task is a thread.
type task struct {
	process   int
	command   string
	container string
	// fresh is true if its process was executed under watch, and is in no container yet.
	fresh bool
	early []slice
}

// mostEarly bounds the slices that are kept of a process that may be a container's.
const mostEarly = 4096

// current is what a CPU runs.
type current struct {
	pid  int
	from time.Duration
}

// tasks puts events together to the slices of containers. Events come in the order of
// their times.
type tasks struct {
	container func(cgroup string) string
	// cgroups reads the cgroups that a process is in now.
	cgroups   func(pid int) []string
	cpus      cpuset.Set
	fromBirth bool

	all     map[int]*task
	threads map[int]map[int]bool // of processes
	on      map[int]current
	lives   map[string]*life
	slices  []slice
	gaps    []time.Duration // between two records of a CPU
}

func newTasks(c Config, cgroups func(pid int) []string) *tasks {
	return &tasks{
		container: c.Container, cgroups: cgroups, cpus: c.CPUs, fromBirth: c.FromBirth,
		all: map[int]*task{}, threads: map[int]map[int]bool{}, on: map[int]current{}, lives: map[string]*life{},
	}
}

// add notes a task that is there.
func (t *tasks) add(pid, process int, command, container string) *task {
	t.remove(pid, 0)
	n := &task{process: process, command: command, container: container}
	t.all[pid] = n
	if t.threads[process] == nil {
		t.threads[process] = map[int]bool{}
	}
	t.threads[process][pid] = true
	if container != "" {
		t.enter(container)
	}
	return n
}

func (t *tasks) remove(pid int, at time.Duration) {
	n := t.all[pid]
	if n == nil {
		return
	}
	delete(t.all, pid)
	delete(t.threads[n.process], pid)
	if len(t.threads[n.process]) == 0 {
		delete(t.threads, n.process)
	}
	t.leave(n, at)
}

func (t *tasks) life(container string) *life { return lifeOf(t.lives, container) }

func lifeOf(lives map[string]*life, container string) *life {
	l := lives[container]
	if l == nil {
		l = &life{}
		lives[container] = l
	}
	return l
}

// enter counts a task into a container.
func (t *tasks) enter(container string) {
	l := t.life(container)
	l.tasks++
	l.ended = false
}

// leave counts a task out of its container.
func (t *tasks) leave(n *task, at time.Duration) {
	if n.container == "" {
		return
	}
	l := t.life(n.container)
	if l.tasks--; l.tasks == 0 {
		l.to, l.ended = at, true
	}
}

// placed gives the container of a process by its cgroups.
func (t *tasks) placed(pid int) string {
	for _, path := range t.cgroups(pid) {
		if name := t.container(path); name != "" {
			return name
		}
	}
	return ""
}

// apply takes an event on.
func (t *tasks) apply(e event) {
	switch e.kind {
	case switched:
		t.close(e.cpu, e.at, true)
		if e.other != 0 {
			t.on[e.cpu] = current{e.other, e.at}
			if n := t.all[e.other]; n != nil && e.text != "" {
				n.command = e.text
			}
		}
	case created:
		t.create(e)
	case attached:
		if name := t.container(e.text); name != "" {
			t.attach(e.pid, name, e.at)
		}
	case executed:
		t.execute(e)
	case exited:
		t.cut(e.at, func(pid int) int {
			if pid == e.pid {
				return 0 // what is left of its time is the kernel's
			}
			return pid
		})
		t.remove(e.pid, e.at)
	}
}

func (t *tasks) create(e event) {
	process, container, fresh := e.other, "", false
	if parent := t.all[e.pid]; parent != nil {
		container, fresh = parent.container, parent.fresh
		if e.flags&cloneThread != 0 {
			process = parent.process
		}
	}
	if e.flags&cloneIntoCgroup != 0 {
		container = t.placed(e.other)
	}
	n := t.add(e.other, process, e.text, container)
	n.fresh = fresh && process != e.other && container == ""
}

func (t *tasks) execute(e event) {
	// A thread that executes a program becomes the first one of its process (execve(2)).
	if old := t.all[e.other]; old != nil && e.other != e.pid {
		container, fresh := old.container, old.fresh
		t.cut(e.at, func(pid int) int {
			if pid == e.other {
				return e.pid
			}
			return pid
		})
		t.add(e.pid, e.pid, "", container).fresh = fresh
		t.remove(e.other, e.at)
	}
	n := t.all[e.pid]
	if n == nil {
		n = t.add(e.pid, e.pid, "", t.placed(e.pid))
	}
	n.command = e.text[strings.LastIndexByte(e.text, '/')+1:]
	n.fresh, n.early = n.container == "", nil
	// A runtime's init process executes itself; a container's program is elsewhere.
	if n.container != "" && !strings.HasPrefix(e.text, "/proc/") {
		if l := t.life(n.container); !l.began {
			l.from, l.began, l.program = e.at, true, e.text
		}
	}
}

// attach moves a process, with what it has done before where that counts.
func (t *tasks) attach(process int, name string, at time.Duration) {
	if t.all[process] == nil {
		t.add(process, process, "", "")
	}
	t.cut(at, func(pid int) int { return pid })
	for pid := range t.threads[process] {
		n := t.all[pid]
		if n.container == name {
			continue
		}
		t.leave(n, at)
		for _, s := range n.early {
			s.container, s.command = name, n.command
			t.slices = append(t.slices, s)
		}
		n.container, n.fresh, n.early = name, false, nil
		t.enter(name)
	}
}

// cut ends the slices that are under way, and begins those of the tasks that a function
// puts in their place; 0 is none.
func (t *tasks) cut(at time.Duration, next func(pid int) int) {
	for cpu, now := range t.on {
		t.close(cpu, at, false)
		if pid := next(now.pid); pid != 0 {
			t.on[cpu] = current{pid, at}
		}
	}
}

// close ends the slice of a CPU.
func (t *tasks) close(cpu int, at time.Duration, record bool) {
	now, ok := t.on[cpu]
	if !ok {
		return
	}
	delete(t.on, cpu)
	if record && len(t.gaps) < 1<<20 {
		t.gaps = append(t.gaps, at-now.from)
	}
	n := t.all[now.pid]
	if n == nil || !t.cpus.Contains(cpu) {
		return
	}
	s := slice{cpu: cpu, from: now.from, to: at, container: n.container, pid: now.pid, command: n.command, ran: true}
	switch {
	case n.container != "":
		t.slices = append(t.slices, s)
	case t.fromBirth && n.fresh && len(n.early) < mostEarly:
		n.early = append(n.early, s)
	}
}

// report gives what was found until now.
func (t *tasks) report(now time.Duration) Report {
	for cpu := range t.on {
		t.close(cpu, now, false)
	}
	r := find(t.slices, t.lives, now)
	r.Method = Trace
	r.P50, r.P99 = quantiles(t.gaps)
	return r
}
