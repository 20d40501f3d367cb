package kubelet

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// CPUState is the content of cpu_manager_state.
type CPUState struct {
	// Format is what the state was read from: 1 (up to Kubernetes 1.17), 2, 3
	// (1.36 with the gate PodLevelResourceManagers) or 4 (1.37). Of format 4 the
	// copy in format 2 is taken, which has no pod entries.
	Format int
	// Policy is "none" or "static".
	Policy string
	// Shared is the pool on which containers without CPUs of their own run; with
	// the reserved CPUs, except under strict-cpu-reservation.
	Shared cpuset.Set
	// Containers are the CPUs of containers by pod uid and container name.
	Containers map[string]map[string]cpuset.Set
	// Pods are the CPUs of pods as a whole by pod uid.
	Pods map[string]cpuset.Set
}

// cpuCheckpoint is the JSON form of all formats. Entries of format 1 are lists by
// container id, of the others lists by pod uid and container name.
type cpuCheckpoint struct {
	Policy     string              `json:"policyName"`
	Shared     string              `json:"defaultCpuSet"`
	Entries    json.RawMessage     `json:"entries,omitempty"`
	PodEntries map[string]podEntry `json:"podEntries,omitempty"`
	Checksum   uint64              `json:"checksum"`
	Data       *string             `json:"data,omitempty"`
}

type podEntry struct {
	CPUSet string `json:"cpuSet,omitempty"`
}

type (
	entriesByID  map[string]string
	entriesByPod map[string]map[string]string
)

// ParseCPU reads cpu_manager_state in any format. owners has the containers of runtime ids, which
// only format 1 uses.
//
// Errors of class Corrupt: no JSON object, a list that cannot be parsed (the message names pod
// and container), a wrong checksum. As in the kubelet, a missing checksum or 0 is accepted. Class
// Precondition: a container id of format 1 that owners does not contain.
func ParseCPU(data []byte, owners map[string]ledger.Owner) (CPUState, error) {
	state, unknownIDs, err := parseCPU(data, owners)
	if err != nil {
		return CPUState{}, fmt.Errorf("read cpu_manager_state: %w", err)
	}
	for _, id := range slices.Sorted(maps.Keys(unknownIDs)) {
		return CPUState{}, errdefs.Preconditionf("read cpu_manager_state: container id %q: format 1 names containers by the runtime's ids, and the pod and container of this one are not known", id)
	}
	return state, nil
}

// parseCPU returns the state, and the CPUs of format 1 for ids that owners does not contain.
func parseCPU(data []byte, owners map[string]ledger.Owner) (s CPUState, unknownIDs map[string]cpuset.Set, err error) {
	c := cpuCheckpoint{PodEntries: map[string]podEntry{}}
	if err := json.Unmarshal(data, &c); err != nil {
		return s, nil, misread(err)
	}
	s = CPUState{Policy: c.Policy, Containers: map[string]map[string]cpuset.Set{}, Pods: map[string]cpuset.Set{}}
	if s.Shared, err = parseList("defaultCpuSet", c.Shared); err != nil {
		return s, nil, err
	}
	byID, byPod := entriesByID{}, entriesByPod{}
	if len(c.Entries) > 0 && json.Unmarshal(c.Entries, &byPod) != nil {
		if err := json.Unmarshal(c.Entries, &byID); err != nil {
			return s, nil, errdefs.Corruptf("entries: expected a list of CPUs as text for each container of each pod, or in format 1 for each container id")
		}
		s.Format = 1
		if sum := checksum(c.dumpIDs(byID)); c.Checksum != 0 && c.Checksum != sum {
			return s, nil, wrongChecksum(c.Checksum, sum)
		}
		unknownIDs, err = s.addIDs(byID, owners)
		return s, unknownIDs, err
	}
	if s.Format, err = c.format(byPod); err != nil {
		return s, nil, err
	}
	if err := s.addPods(c.PodEntries); err != nil {
		return s, nil, err
	}
	return s, nil, s.addContainers(byPod)
}

// format distinguishes formats 2, 3 and 4, and format 1 without entries.
//
// A kubelet with the gate that does not find the checksum of format 3 tries format 2, which needs
// none, and keeps the pod entries that it has read before.
func (c *cpuCheckpoint) format(entries entriesByPod) (int, error) {
	third, err := c.dumpPods(entries)
	if err != nil {
		return 0, err
	}
	second := c.dump(currentType, dumpEntries(entries), "")
	pods := len(c.PodEntries) > 0
	switch sum := checksum(second); {
	case c.Checksum == checksum(third), pods && (c.Checksum == 0 || c.Checksum == sum):
		return 3, nil
	case pods:
		return 0, wrongChecksum(c.Checksum, checksum(third))
	case c.Checksum == 0, c.Checksum == sum, c.Checksum == checksum(c.dump(secondType, dumpEntries(entries), "")):
		if c.Data != nil {
			return 4, nil
		}
		return 2, nil
	case len(entries) == 0 && c.Checksum == checksum(c.dumpIDs(entriesByID{})):
		return 1, nil
	default:
		return 0, wrongChecksum(c.Checksum, sum)
	}
}

func wrongChecksum(got, want uint64) error {
	return errdefs.Corruptf("checkpoint is corrupted: the checksum is %d, the content's %d", got, want)
}

func parseList(what, list string) (cpuset.Set, error) {
	set, err := cpuset.Parse(list)
	if err != nil {
		return set, errdefs.Corruptf("%s: %w", what, err)
	}
	return set, nil
}

func (s *CPUState) addContainers(entries entriesByPod) error {
	for _, uid := range slices.Sorted(maps.Keys(entries)) {
		s.Containers[uid] = map[string]cpuset.Set{}
		for _, name := range slices.Sorted(maps.Keys(entries[uid])) {
			set, err := parseList(fmt.Sprintf("container %q of pod %q", name, uid), entries[uid][name])
			if err != nil {
				return err
			}
			s.Containers[uid][name] = set
		}
	}
	return nil
}

func (s *CPUState) addIDs(entries entriesByID, owners map[string]ledger.Owner) (unknownIDs map[string]cpuset.Set, err error) {
	unknownIDs = map[string]cpuset.Set{}
	for _, id := range slices.Sorted(maps.Keys(entries)) {
		set, err := parseList(fmt.Sprintf("container id %q", id), entries[id])
		if err != nil {
			return nil, err
		}
		owner, known := owners[id]
		if !known {
			unknownIDs[id] = set
			continue
		}
		if s.Containers[owner.Pod] == nil {
			s.Containers[owner.Pod] = map[string]cpuset.Set{}
		}
		if have, twice := s.Containers[owner.Pod][owner.Container]; twice && have != set {
			return nil, errdefs.Preconditionf("container id %q: another id of %s has CPUs %q, this one has %q; name only the one that runs", id, owner, have, set)
		}
		s.Containers[owner.Pod][owner.Container] = set
	}
	return unknownIDs, nil
}

func (s *CPUState) addPods(entries map[string]podEntry) error {
	for _, uid := range slices.Sorted(maps.Keys(entries)) {
		set, err := parseList(fmt.Sprintf("pod %q", uid), entries[uid].CPUSet)
		if err != nil {
			return err
		}
		s.Pods[uid] = set
	}
	return nil
}

// Marshal writes the state as the kubelet does, in format 2 or 3. Class
// Unsupported: another format; CPUs of pods as a whole in format 2, which has no
// place for them.
func (s *CPUState) Marshal(format int) ([]byte, error) {
	c := cpuCheckpoint{Policy: s.Policy, Shared: s.Shared.String(), PodEntries: map[string]podEntry{}}
	entries := entriesByPod{}
	for uid, containers := range s.Containers {
		entries[uid] = map[string]string{}
		for name, set := range containers {
			entries[uid][name] = set.String()
		}
	}
	switch {
	case format == 2 && len(s.Pods) > 0:
		return nil, badFormat("2 has no place for the CPUs of pods as a whole; use format 3")
	case format == 2:
		c.Checksum = checksum(c.dump(currentType, dumpEntries(entries), ""))
	case format == 3:
		for uid, set := range s.Pods {
			c.PodEntries[uid] = podEntry{CPUSet: set.String()}
		}
		text, err := c.dumpPods(entries)
		if err != nil {
			return nil, fmt.Errorf("write cpu_manager_state: %w", err)
		}
		c.Checksum = checksum(text)
	default:
		return nil, badFormat("%d: expected 2 or 3", format)
	}
	if len(entries) > 0 {
		var err error
		if c.Entries, err = json.Marshal(entries); err != nil {
			return nil, errdefs.Internalf("write cpu_manager_state: %w", err)
		}
	}
	return json.Marshal(c)
}

// Check reports whether the kubelet's static policy would accept the state, on a machine with
// these CPUs. All errors are of class Precondition:
//
//   - The shared pool is empty although containers hold CPUs.
//   - A reserved CPU is missing from the pool, or in it with strict-cpu-reservation.
//   - A container's CPUs are also in the pool.
//   - The CPUs of the state are not the machine's.
func (s *CPUState) Check(machine, reserved cpuset.Set, strict bool) error {
	if strict {
		machine = machine.Minus(reserved)
	}
	if s.Shared.IsEmpty() {
		if len(s.Containers) == 0 {
			return nil
		}
		return errdefs.Preconditionf("the shared pool is empty")
	}
	if both := reserved.Intersect(s.Shared); strict && !both.IsEmpty() {
		return errdefs.Preconditionf("the strictly reserved CPUs %s are in the shared pool %s", both, s.Shared)
	}
	if missing := reserved.Minus(s.Shared); !strict && !missing.IsEmpty() {
		return errdefs.Preconditionf("the reserved CPUs %s are not in the shared pool %s", missing, s.Shared)
	}
	known := s.Shared
	for _, uid := range slices.Sorted(maps.Keys(s.Containers)) {
		for _, name := range slices.Sorted(maps.Keys(s.Containers[uid])) {
			set := s.Containers[uid][name]
			if set.Overlaps(s.Shared) {
				return errdefs.Preconditionf("CPUs %s of container %q of pod %q are in the shared pool %s too", set.Intersect(s.Shared), name, uid, s.Shared)
			}
			known = known.Union(set)
		}
	}
	for _, set := range s.Pods {
		known = known.Union(set)
	}
	if known != machine {
		return errdefs.Preconditionf("the state names CPUs %s, and the machine has %s", known, machine)
	}
	return nil
}
