package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
)

var (
	// podFiles are the control files that are kept of the cgroup of all pods, of the
	// tiers and of pods, on either version.
	podFiles = []string{
		"cpu.max", "cpu.weight", "cpuset.cpus", "cpuset.mems", "hugetlb.1GB.max", "hugetlb.1GB.rsvd.max", "hugetlb.2MB.max",
		"hugetlb.2MB.rsvd.max", "memory.high", "memory.low", "memory.max", "memory.min", "memory.oom.group", "memory.swap.max",
		"pids.max",
		"cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.shares", "hugetlb.1GB.limit_in_bytes", "hugetlb.1GB.rsvd.limit_in_bytes",
		"hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.rsvd.limit_in_bytes", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes",
	}
	// reservedFiles are those of reserved cgroups: the others are systemd's.
	reservedFiles = []string{"cpu.weight", "memory.max", "memory.min", "pids.max"}
)

// group is a captured cgroup.
type group struct {
	Files map[string]string `json:"files"`
}

// cgroups reads a capture's cgroups and names them by what they are.
func (c capture) cgroups(label string, r *recording) (map[string]map[string]string, error) {
	var groups map[string]group
	if err := c.read(&groups, "full-"+label, "cgroups.json"); err != nil {
		return nil, err
	}
	kept := map[string]map[string]string{}
	for full, g := range groups {
		key, files := role(full), podFiles
		for kind, name := range r.reserved {
			if name == path.Base(full) && path.Dir(full) == "/" {
				key, files = kind, reservedFiles
			}
		}
		if key == "" {
			continue
		}
		if kept[key] != nil {
			return nil, fmt.Errorf("capture %s: two cgroups for %s", label, key)
		}
		kept[key] = map[string]string{}
		for name, text := range g.Files {
			if slices.Contains(files, name) {
				kept[key][name] = text
			}
		}
	}
	return kept, nil
}

// role is what a cgroup below kubepods is there for: pods, burstable, besteffort or a
// pod's name; empty for any other.
func role(full string) string {
	last := strings.TrimSuffix(path.Base(full), ".slice")
	if _, pod, ok := strings.Cut(last, "POD="); ok {
		return pod
	}
	for _, tier := range []string{"burstable", "besteffort"} {
		if full == "/kubepods/"+tier || full == "/kubepods.slice/kubepods-"+tier+".slice" {
			return tier
		}
	}
	if path.Dir(full) == "/" && last == "kubepods" {
		return "pods"
	}
	return ""
}

// reservedNames gives the top names of the reserved cgroups of a configuration.
func reservedNames(config json.RawMessage, driver cgroup.Driver) (map[string]string, error) {
	var fields struct{ SystemReservedCgroup, KubeReservedCgroup string }
	if err := json.Unmarshal(config, &fields); err != nil {
		return nil, err
	}
	names := map[string]string{}
	for kind, name := range map[string]string{"system": fields.SystemReservedCgroup, "kube": fields.KubeReservedCgroup} {
		if name == "" {
			continue
		}
		if names[kind] = path.Base(name); driver == cgroup.Systemd {
			names[kind] = strings.TrimSuffix(names[kind], ".slice") + ".slice"
		}
	}
	return names, nil
}

// states fills in the state files and the podresources of a comparison: of a full capture,
// or the state files of the step of that name.
func (c capture) states(s *step, full bool) error {
	var files struct {
		CPU    json.RawMessage `json:"cpu_manager_state"`
		Memory json.RawMessage `json:"memory_manager_state"`
	}
	if full {
		for name, into := range map[string]*json.RawMessage{"cpu": &files.CPU, "memory": &files.Memory} {
			err := c.read(into, "full-"+s.Label, name+"_manager_state.json")
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		var answers struct {
			List, GetAllocatableResources json.RawMessage
		}
		switch err := c.read(&answers, "full-"+s.Label, "podresources.json"); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		default:
			if s.Podresources, err = json.Marshal(answers); err != nil {
				return err
			}
		}
	} else {
		found, err := filepath.Glob(c.path("steps", "[0-9]*-"+s.Label+".json"))
		if err != nil {
			return err
		}
		if len(found) != 1 {
			return fmt.Errorf("state %s: there are %d files, want one", s.Label, len(found))
		}
		if err := c.read(&files, "steps", filepath.Base(found[0])); err != nil {
			return err
		}
	}
	var err error
	if s.CPU, err = text(files.CPU); err != nil {
		return err
	}
	s.Memory, err = text(files.Memory)
	return err
}

// text is a JSON value without white space, as the kubelet writes it; empty for none.
func text(value json.RawMessage) (string, error) {
	if len(value) == 0 || string(value) == "null" {
		return "", nil
	}
	var b bytes.Buffer
	err := json.Compact(&b, value)
	return b.String(), err
}
