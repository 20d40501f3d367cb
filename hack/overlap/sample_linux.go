package overlap

import (
	"strconv"
	"strings"
	"time"

	"github.com/berthd/berth/managers/cpuset"
)

// young is how long a process may be moved to another cgroup.
const young = 10 * time.Second

// sampler reads the tasks of all containers.
type sampler struct {
	Config
	known  map[int]*seen
	lives  map[string]*life
	slices []slice
	gaps   []time.Duration
	last   time.Duration
}

// seen is a process.
type seen struct {
	since     time.Duration
	container string
}

func newSampler(c Config) *sampler {
	return &sampler{Config: c, known: map[int]*seen{}, lives: map[string]*life{}}
}

// sample looks once. A container lives as long as it has a process that is not the
// runtime's init process any more.
func (s *sampler) sample() {
	at := now()
	if s.last > 0 {
		s.gaps = append(s.gaps, at-s.last)
	}
	s.last = at
	there := map[int]bool{}
	alive := map[string]bool{}
	for _, pid := range processes() {
		there[pid] = true
		p := s.known[pid]
		if p == nil {
			p = &seen{since: at}
			s.known[pid] = p
		}
		if p.container == "" {
			if at-p.since > young {
				continue
			}
			if p.container = s.place(pid); p.container == "" {
				continue
			}
		}
		if s.look(at, pid, p) {
			alive[p.container] = true
		}
	}
	for pid := range s.known {
		if !there[pid] {
			delete(s.known, pid)
		}
	}
	for name, l := range s.lives {
		if l.began && !l.ended && !alive[name] {
			l.ended, l.to = true, at
		}
	}
}

func (s *sampler) place(pid int) string {
	for _, path := range cgroupsOf(pid) {
		if name := s.Container(path); name != "" {
			return name
		}
	}
	return ""
}

// look records where the threads of a container's process run and may run, and returns
// whether the container's program is among them.
func (s *sampler) look(at time.Duration, pid int, p *seen) (program bool) {
	for _, tid := range threadsOf(pid) {
		t, ok := stateOf("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/stat")
		if !ok {
			continue
		}
		for cpu := range mayRun(tid, s.CPUs).Union(cpuset.Of(t.cpu).Intersect(s.CPUs)).All() {
			s.slices = append(s.slices, slice{cpu: cpu, from: at, to: at + time.Microsecond, container: p.container, pid: tid,
				command: t.command, ran: t.runs && t.cpu == cpu})
		}
		if tid != pid || strings.HasPrefix(t.command, "runc:[") {
			continue
		}
		program = true
		if l := lifeOf(s.lives, p.container); !l.began || l.ended {
			l.began, l.ended, l.program = true, false, t.command
			if l.from == 0 {
				l.from = at
			}
		}
	}
	return program
}

func (s *sampler) report() Report {
	r := find(s.slices, s.lives, now())
	r.Method = Sample
	r.P50, r.P99 = quantiles(s.gaps)
	return r
}
