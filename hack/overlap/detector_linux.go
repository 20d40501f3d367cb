package overlap

import (
	"fmt"
	"sync"
	"time"

	"github.com/berthd/berth/managers/cpuset"
)

// Detector watches from Start to Stop.
type Detector struct {
	Config
	quit chan struct{}
	done chan error

	mu      sync.Mutex // guards what is below
	trace   *recorder  // nil under Sample
	tasks   *tasks
	sampler *sampler
	plants  int
}

// Start starts watching.
func Start(c Config) (*Detector, error) {
	own := c.Container
	c.Container = func(cgroup string) string {
		if name := plantedIn(cgroup); name != "" {
			return name
		}
		return own(cgroup)
	}
	d := &Detector{Config: c, quit: make(chan struct{}), done: make(chan error, 1)}
	if c.Method != Sample {
		trace, err := openTrace(c.CPUs)
		switch {
		case err == nil:
			d.trace, d.Method = trace, Trace
		case c.Method == Trace:
			return nil, fmt.Errorf("record the scheduler's events: %w", err)
		}
	}
	if d.trace == nil {
		d.Method, d.sampler = Sample, newSampler(c)
	} else {
		d.tasks = newTasks(c, cgroupsOf)
		d.scan()
	}
	go func() { d.done <- d.run() }()
	return d, nil
}

// scan takes over the tasks that there are.
func (d *Detector) scan() {
	for _, pid := range processes() {
		container := d.tasks.placed(pid)
		for _, tid := range threadsOf(pid) {
			s, _ := stateOf(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
			d.tasks.add(tid, pid, s.command, container)
		}
	}
}

// between is the least time between two samples: the containers need the CPUs too.
const between = 300 * time.Microsecond

func (d *Detector) run() error {
	pause := between
	if d.trace != nil {
		pause = poll
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		if err := d.look(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-d.quit:
			return nil
		}
	}
}

func (d *Detector) look() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.trace == nil {
		d.sampler.sample()
		return nil
	}
	if err := d.trace.read(); err != nil {
		return err
	}
	for _, e := range d.trace.take(d.trace.newest - maxLag) {
		d.tasks.apply(e)
	}
	return nil
}

// Hold records that a container has CPUs for itself, at any time until Stop.
func (d *Detector) Hold(container string, cpus cpuset.Set) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.trace == nil {
		lifeOf(d.sampler.lives, container).cpus = cpus
	} else {
		d.tasks.life(container).cpus = cpus
	}
}

// Stop ends the watching and reports what was found.
func (d *Detector) Stop() (Report, error) {
	close(d.quit)
	err := <-d.done
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.trace == nil {
		r := d.sampler.report()
		r.Planted = d.plants
		return r, err
	}
	until := now()
	if stopErr := d.trace.stop(); err == nil {
		err = stopErr
	}
	if err == nil {
		err = d.trace.read()
	}
	for _, e := range d.trace.take(1<<63 - 1) {
		d.tasks.apply(e)
	}
	if closeErr := d.trace.close(); err == nil {
		err = closeErr
	}
	r := d.tasks.report(until)
	r.Lost, r.Planted = d.trace.lost, d.plants
	return r, err
}
