package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthd/berth/managers/cgroup"
)

// recording is one line.
type recording struct {
	Name    string                     `json:"name"`
	Shape   string                     `json:"shape"`
	Version cgroup.Version             `json:"version"`
	Driver  cgroup.Driver              `json:"driver"`
	MaxPIDs int64                      `json:"maxPIDs"`
	Machine json.RawMessage            `json:"machine"`
	Configs map[string]json.RawMessage `json:"configs"`
	Pods    map[string]json.RawMessage `json:"pods"`
	Plugins []plugin                   `json:"plugins"`
	Steps   []step                     `json:"steps"`

	// reserved holds the names of the reserved cgroups that any start so far had.
	reserved map[string]string
}

// step is one thing that happened.
type step struct {
	Do       string                       `json:"do"`
	Config   string                       `json:"config,omitempty"`
	Pod      string                       `json:"pod,omitempty"`
	Label    string                       `json:"label,omitempty"`
	Reason   string                       `json:"reason,omitempty"`
	Error    bool                         `json:"error,omitempty"`
	Again    bool                         `json:"again,omitempty"`
	Rejected bool                         `json:"rejected,omitempty"`
	Cgroups  map[string]map[string]string `json:"cgroups,omitempty"`
	CPU      string                       `json:"cpu,omitempty"`
	Memory   string                       `json:"memory,omitempty"`
	// Podresources are the answers to List and GetAllocatableResources.
	Podresources json.RawMessage `json:"podresources,omitempty"`
	// Decided is what an admission decided, in order.
	Decided []decided `json:"decided,omitempty"`
	// Created is how the kubelet created the pod's containers after its admission.
	Created []created `json:"created,omitempty"`
}

// result is an entry of results.json.
type result struct {
	Step, Config, Pod, Label, Phase, Reason, Error string

	// WaitedFor is true if the next step did not wait until the pod ran.
	WaitedFor string `json:"waited_for"`
	T         time.Time
}

// decision is an entry of decisions.json.
type decision struct {
	Pod, Message  string
	Check, Result time.Time
	Containers    []container
}

// scenario takes the steps of a capture in order.
type scenario struct {
	capture
	out       *recording
	results   []result
	decisions []decision

	live    map[string]bool      // admitted pods whose manifests are there
	config  string               // what made the state that is there; empty if there is none
	skipped bool                 // the last start is left out, with all until the next one
	stop    bool                 // a stop is to be written before anything else
	gone    []string             // pods whose manifests went while no kubelet ran
	ended   time.Time            // when the last kubelet ended
	before  time.Time            // when the last decision that was taken began
	fresh   map[string]admission // those whose pods no capture has shown yet
}

// admission is a step, and whether nothing happened until the pod ran.
type admission struct {
	step   int
	waited bool
}

// record makes the recording of a capture, up to a line of its scenario.
func record(c capture, until string) (*recording, error) {
	var run struct{ Shape string }
	if err := c.read(&run, "run.json"); err != nil {
		return nil, err
	}
	r := &recording{
		Name: c.name, Shape: run.Shape, Version: cgroup.V2, Driver: cgroup.Systemd,
		Configs: map[string]json.RawMessage{}, Pods: map[string]json.RawMessage{}, reserved: map[string]string{},
	}
	if strings.HasPrefix(c.name, "v1-") {
		r.Version = cgroup.V1
	}
	if strings.Contains(c.name, "-cgroupfs-") {
		r.Driver = cgroup.Cgroupfs
	}
	var err error
	if r.Plugins, err = c.plugins(); err != nil {
		return nil, err
	}
	s := &scenario{capture: c, out: r, live: map[string]bool{}, fresh: map[string]admission{}}
	if err := c.read(&s.results, "results.json"); err != nil {
		return nil, err
	}
	if err := c.read(&s.decisions, "decisions.json"); err != nil {
		return nil, err
	}
	if err := s.take(until); err != nil {
		return nil, err
	}
	first := slices.IndexFunc(r.Steps, func(s step) bool { return s.Memory != "" })
	if first < 0 {
		return nil, errors.New("no comparison has a memory state")
	}
	if r.Machine, err = c.machine(run.Shape, r.Steps[first].Memory); err != nil {
		return nil, err
	}
	r.MaxPIDs, err = maxPIDs(r)
	return r, err
}

// take goes through the lines of the scenario.
func (s *scenario) take(until string) error {
	text, err := os.ReadFile(s.path("config", "scenario.txt"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line != "" && line == until {
			return nil
		}
		verb, rest, _ := strings.Cut(line, " ")
		if err := s.line(verb, rest); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
	}
	return nil
}

func (s *scenario) line(verb, rest string) error {
	switch verb {
	case "", "sleep":
		return nil
	case "start", "try-start":
		if rest == "" {
			rest = "kubelet.json"
		}
		return s.start(rest)
	case "add", "admit":
		return s.admit(rest)
	case "remove":
		_, err := s.next("remove", func(r result) bool { return r.Pod == rest })
		if err != nil {
			return err
		}
		delete(s.live, rest)
		s.add(step{Do: "remove", Pod: rest})
		return nil
	case "stop", "reset":
		return s.end(verb)
	case "state", "capture":
		return s.compare(rest, verb == "capture")
	case "sh":
		s.command(rest)
		return nil
	}
	return errors.New("an unknown step")
}

// next takes the next result of a kind.
func (s *scenario) next(kind string, fits func(result) bool) (result, error) {
	i := slices.IndexFunc(s.results, func(r result) bool { return r.Step == kind })
	if i < 0 || !fits(s.results[i]) {
		return result{}, fmt.Errorf("results.json does not have it as the next %s", kind)
	}
	r := s.results[i]
	s.results = s.results[i+1:]
	return r, nil
}

// add writes a step, after a stop that is due; none of a start that is left out.
func (s *scenario) add(next step) {
	if s.skipped {
		return
	}
	if s.stop {
		s.stop = false
		s.out.Steps = append(s.out.Steps, step{Do: "stop"})
	}
	s.out.Steps = append(s.out.Steps, next)
}

// start takes a start of the kubelet, and what it made of the pods that were there.
func (s *scenario) start(config string) error {
	r, err := s.next("start-kubelet", func(r result) bool { return r.Config == config })
	if err != nil {
		return err
	}
	if s.skipped = s.config != "" && (config != s.config || r.Error != ""); s.skipped {
		return nil
	}
	if s.out.Configs[config], err = s.capture.config(config); err != nil {
		return err
	}
	reserved, err := reservedNames(s.out.Configs[config], s.out.Driver)
	if err != nil {
		return err
	}
	maps.Copy(s.out.reserved, reserved)
	s.add(step{Do: "start", Config: config, Error: r.Error != "", Again: len(s.live) > 0})
	if r.Error != "" {
		return nil
	}
	for _, pod := range s.gone {
		s.add(step{Do: "remove", Pod: pod})
	}
	s.gone = nil
	s.anew(s.config == "")
	s.config = config
	return nil
}

// anew takes what a kubelet that was started beside running pods decided about them.
func (s *scenario) anew(lost bool) {
	for _, d := range s.decisions {
		if !s.isNow(d) || !s.live[d.name()] {
			continue
		}
		switch rejected := d.Message != ""; {
		case rejected:
			delete(s.live, d.name())
			if !lost {
				s.add(step{Do: "remove", Pod: d.name()})
			}
		case lost:
			s.add(step{Do: "admit", Pod: d.name(), Decided: d.decided()})
		}
	}
}

// isNow reports whether the kubelet that was started last decided.
func (s *scenario) isNow(d decision) bool {
	ends := func(r result) bool { return r.Step == "stop-kubelet" || r.Step == "reset" }
	i := slices.IndexFunc(s.results, ends)
	return d.Check.After(s.ended) && (i < 0 || d.Check.Before(s.results[i].T))
}

// name is the pod's name as in its manifest: a kubelet adds its node's name.
func (d decision) name() string { return strings.TrimSuffix(d.Pod, "-numavm") }

func (s *scenario) admit(pod string) error {
	r, err := s.next("add", func(r result) bool { return r.Pod == pod })
	if err != nil {
		return err
	}
	if s.skipped || r.Phase == "(not listed)" && !s.isDecided(pod) {
		return nil
	}
	if s.out.Pods[pod] == nil {
		if s.out.Pods[pod], err = s.capture.pod(pod); err != nil {
			return err
		}
	}
	rejected := r.Reason != ""
	if !rejected {
		s.live[pod] = true
	}
	next := step{Do: "admit", Pod: pod, Reason: r.Reason, Rejected: rejected}
	if i := slices.IndexFunc(s.decisions, func(d decision) bool { return d.name() == pod && d.Check.After(s.before) }); i >= 0 {
		next.Decided, s.before = s.decisions[i].decided(), s.decisions[i].Check
	}
	s.add(next)
	s.fresh[pod] = admission{len(s.out.Steps) - 1, r.WaitedFor != "admission only"}
	return nil
}

// isDecided reports whether a pod had been admitted or rejected when the next comparison
// was made.
func (s *scenario) isDecided(pod string) bool {
	i := slices.IndexFunc(s.results, func(r result) bool { return r.Step == "capture" })
	return slices.ContainsFunc(s.decisions, func(d decision) bool {
		return d.name() == pod && s.isNow(d) && !d.Result.IsZero() && (i < 0 || d.Result.Before(s.results[i].T))
	})
}

// end takes a stop or a reset.
func (s *scenario) end(verb string) error {
	kind := map[string]string{"stop": "stop-kubelet", "reset": "reset"}[verb]
	r, err := s.next(kind, func(result) bool { return true })
	if err != nil {
		return err
	}
	s.ended, s.before = r.T, r.T
	if verb == "reset" {
		s.lose()
		s.live = map[string]bool{}
		return nil
	}
	s.stop = s.stop || !s.skipped
	return nil
}

// lose takes that all state is lost; a stop that is due is a part of that.
func (s *scenario) lose() {
	s.skipped, s.stop, s.config = false, false, ""
	clear(s.fresh)
	s.add(step{Do: "reset"})
}

// manifest is the file of a static pod.
var manifest = regexp.MustCompile(`^rm -f /etc/kubernetes/manifests/(\S+)\.json$`)

// command takes what was done to the kubelet's files while it did not run. A file that
// was damaged and a CPU that was taken away made the next start fail.
func (s *scenario) command(text string) {
	if strings.HasPrefix(text, "rm -f ") && strings.Contains(text, "/cpu_manager_state") &&
		strings.Contains(text, "/memory_manager_state") {
		s.lose()
		return
	}
	if m := manifest.FindStringSubmatch(text); m != nil {
		s.gone = append(s.gone, m[1])
		delete(s.live, m[1])
	}
}

// compare takes what a kubelet had left.
func (s *scenario) compare(label string, full bool) (err error) {
	if full {
		if _, err := s.next("capture", func(r result) bool { return r.Label == label }); err != nil {
			return err
		}
	}
	if s.skipped {
		return nil
	}
	c := step{Do: "compare", Label: label}
	if full {
		if c.Cgroups, err = s.cgroups(label, s.out); err != nil {
			return err
		}
		if err := s.create(label); err != nil {
			return err
		}
	}
	if err := s.states(&c, full); err != nil {
		return err
	}
	s.add(c)
	return nil
}

// maxPIDs is what the captured kernel had room for: the limit of all pods, and what was
// reserved beside them.
func maxPIDs(r *recording) (int64, error) {
	config := ""
	for _, s := range r.Steps {
		if s.Do == "start" {
			config = s.Config
		}
		text := s.Cgroups["pods"]["pids.max"]
		if text == "" {
			continue
		}
		limit, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("pids.max of all pods at %s: %w", s.Label, err)
		}
		var reserved struct {
			SystemReserved, KubeReserved struct {
				PID int64 `json:"pid,string"`
			}
		}
		if err := json.Unmarshal(r.Configs[config], &reserved); err != nil {
			return 0, err
		}
		return limit + reserved.SystemReserved.PID + reserved.KubeReserved.PID, nil
	}
	return 0, errors.New("no comparison has the cgroup of all pods")
}
