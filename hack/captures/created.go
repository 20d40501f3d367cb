package main

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
)

// made is what containers.json has of a container.
type made struct {
	Pod, Container string
	Attempt        int
	StartedAt      string
	Linux          *struct{ Resources json.RawMessage } `json:"cri_linux"`
	Devices        []json.RawMessage                    `json:"cri_devices"`
	Mounts         []json.RawMessage                    `json:"cri_mounts"`
	Envs           []json.RawMessage                    `json:"cri_envs"`
	Annotations    map[string]string                    `json:"cri_annotations"`
}

// created is what the kubelet sent to the runtime to create a container.
type created struct {
	Container   string            `json:"container"`
	Linux       json.RawMessage   `json:"linux"`
	Devices     []json.RawMessage `json:"devices,omitempty"`
	Mounts      []json.RawMessage `json:"mounts,omitempty"`
	Envs        []json.RawMessage `json:"envs,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// create gives the admissions since the capture before what their containers were
// created with. Where the shared CPUs of that moment are not known, because a container
// was created again or other pods came and went meanwhile, it is left out, and so are
// the annotations that are not of device plugins.
func (s *scenario) create(label string) error {
	var files struct{ Containers []made }
	if err := s.read(&files, "full-"+label, "containers.json"); err != nil {
		return err
	}
	shown := map[string]bool{}
	for _, m := range files.Containers {
		at, fresh := s.fresh[m.Pod]
		if !fresh || m.Attempt != 0 || m.Linux == nil {
			continue
		}
		started, err := strconv.ParseInt(m.StartedAt, 10, 64)
		if err != nil || time.Unix(0, started).Before(s.ended) {
			continue // of a pod with that name before the reset, or never started
		}
		shown[m.Pod] = true
		isOwn := func(d decided) bool { return d.Container == m.Container && d.CPUs != "" }
		if !at.waited && !slices.ContainsFunc(s.out.Steps[at.step].Decided, isOwn) {
			continue
		}
		linux, err := text(m.Linux.Resources)
		if err != nil {
			return err
		}
		for name := range m.Annotations {
			if strings.Contains(name, "kubernetes.io/") || strings.HasPrefix(name, "io.kubernetes.") {
				delete(m.Annotations, name)
			}
		}
		list := &s.out.Steps[at.step].Created
		*list = append(*list, created{m.Container, json.RawMessage(linux), m.Devices, m.Mounts, m.Envs, m.Annotations})
		slices.SortFunc(*list, func(a, b created) int { return cmp.Compare(a.Container, b.Container) })
	}
	for pod := range shown {
		delete(s.fresh, pod)
	}
	return nil
}
