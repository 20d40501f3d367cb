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
	// (1.36 with the gate PodLevelResourceManagers) or 4 (since 1.37).
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
	// Baselines are the CPUs that containers had at their admission, by pod uid and container name. Only
	// format 4 has them, since a container can be resized. A file without them has none: Containers are
	// then the CPUs of the admission.
	Baselines map[string]map[string]cpuset.Set
}

// cpuCheckpoint is the JSON form of all formats. Entries of format 1 are lists by
// container id, of the others lists by pod uid and container name.
type cpuCheckpoint struct {
	Policy     string              `json:"policyName"`
	Shared     string              `json:"defaultCpuSet"`
	Entries    json.RawMessage     `json:"entries,omitempty"`
	PodEntries map[string]podEntry `json:"podEntries,omitempty"`
	Checksum   uint64              `json:"checksum"`
	sealed
}

// cpuData is the content of format 4, of which the checkpoint's own keys are a copy for older
// kubelets.
type cpuData struct {
	Policy     string                         `json:"policyName"`
	Shared     string                         `json:"defaultCpuSet"`
	Entries    entriesByPod                   `json:"entries,omitempty"`
	PodEntries map[string]podEntry            `json:"podEntries,omitempty"`
	Baselines  map[string]map[string]baseline `json:"baselines,omitempty"`
}

type podEntry struct {
	CPUSet string `json:"cpuSet,omitempty"`
}

type baseline struct {
	CPUSet string `json:"baseline"`
}

type (
	entriesByID  map[string]string
	entriesByPod map[string]map[string]string
)

// ParseCPU reads cpu_manager_state in any format. owners has the containers of runtime ids, which
// only format 1 uses.
//
// Errors of class Invalid: no JSON object, a list that cannot be parsed (the message names pod
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
	if c.isSealed() {
		s, err = c.parseData()
		return s, nil, err
	}
	s = CPUState{Policy: c.Policy, Containers: map[string]map[string]cpuset.Set{}, Pods: map[string]cpuset.Set{}}
	if s.Shared, err = parseList("defaultCpuSet", c.Shared); err != nil {
		return s, nil, err
	}
	byID, byPod := entriesByID{}, entriesByPod{}
	if len(c.Entries) > 0 && json.Unmarshal(c.Entries, &byPod) != nil {
		if err := json.Unmarshal(c.Entries, &byID); err != nil {
			return s, nil, errdefs.Invalidf("entries: expected a list of CPUs as text for each container of each pod, or in format 1 for each container id")
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

// parseData reads format 4.
func (c *cpuCheckpoint) parseData() (CPUState, error) {
	s := CPUState{
		Format: 4, Containers: map[string]map[string]cpuset.Set{}, Pods: map[string]cpuset.Set{},
		Baselines: map[string]map[string]cpuset.Set{},
	}
	var d cpuData
	if err := c.open(&d); err != nil {
		return s, err
	}
	s.Policy = d.Policy
	var err error
	if s.Shared, err = parseList("data: defaultCpuSet", d.Shared); err != nil {
		return s, err
	}
	if err := s.addPods(d.PodEntries); err != nil {
		return s, err
	}
	for _, uid := range slices.Sorted(maps.Keys(d.Baselines)) {
		s.Baselines[uid] = map[string]cpuset.Set{}
		for _, name := range slices.Sorted(maps.Keys(d.Baselines[uid])) {
			what := fmt.Sprintf("baseline of container %q of pod %q", name, uid)
			if s.Baselines[uid][name], err = parseList(what, d.Baselines[uid][name].CPUSet); err != nil {
				return s, err
			}
		}
	}
	return s, s.addContainers(d.Entries)
}

// format distinguishes formats 2 and 3, and format 1 without entries.
//
// A kubelet 1.36 with the gate that does not find the checksum of format 3 tries format 2, which needs
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
		return 2, nil
	case len(entries) == 0 && c.Checksum == checksum(c.dumpIDs(entriesByID{})):
		return 1, nil
	default:
		return 0, wrongChecksum(c.Checksum, sum)
	}
}

func wrongChecksum(got, want uint64) error {
	return errdefs.Invalidf("checkpoint is corrupted: the checksum is %d, the content's %d", got, want)
}

func parseList(what, list string) (cpuset.Set, error) {
	set, err := cpuset.Parse(list)
	if err != nil {
		return set, errdefs.Invalidf("%s: %w", what, err)
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

// Marshal writes the state as the kubelet does, in format 2, 3 or 4. Class
// Unsupported: another format; content that the format has no place for.
func (s *CPUState) Marshal(format int) ([]byte, error) {
	switch {
	case format < 2 || format > 4:
		return nil, badFormat("%d: expected 2, 3 or 4", format)
	case format < 4 && len(s.Baselines) > 0:
		return nil, badFormat("%d has no place for the CPUs of containers before their resize; use format 4", format)
	case format == 2 && len(s.Pods) > 0:
		return nil, badFormat("2 has no place for the CPUs of pods as a whole; use format 3 or 4")
	}
	c, entries := cpuCheckpoint{Policy: s.Policy, Shared: s.Shared.String()}, entriesByPod(texts(s.Containers))
	pods := map[string]podEntry{}
	for uid, set := range s.Pods {
		pods[uid] = podEntry{CPUSet: set.String()}
	}
	c.Checksum = checksum(c.dump(currentType, dumpEntries(entries), ""))
	var err error
	switch format {
	case 3:
		c.PodEntries = pods
		text, err := c.dumpPods(entries)
		if err != nil {
			return nil, fmt.Errorf("write cpu_manager_state: %w", err)
		}
		c.Checksum = checksum(text)
	case 4:
		data := cpuData{Policy: c.Policy, Shared: c.Shared, Entries: entries, PodEntries: pods, Baselines: map[string]map[string]baseline{}}
		for uid, containers := range texts(s.Baselines) {
			data.Baselines[uid] = map[string]baseline{}
			for name, set := range containers {
				data.Baselines[uid][name] = baseline{set}
			}
		}
		if c.sealed, err = seal(data); err != nil {
			return nil, errdefs.Internalf("write cpu_manager_state: %w", err)
		}
	}
	if len(entries) > 0 {
		if c.Entries, err = json.Marshal(entries); err != nil {
			return nil, errdefs.Internalf("write cpu_manager_state: %w", err)
		}
	}
	return json.Marshal(c)
}

// texts gives sets as lists in text.
func texts(sets map[string]map[string]cpuset.Set) map[string]map[string]string {
	out := make(map[string]map[string]string, len(sets))
	for uid, containers := range sets {
		out[uid] = make(map[string]string, len(containers))
		for name, set := range containers {
			out[uid][name] = set.String()
		}
	}
	return out
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
				return errdefs.Preconditionf("CPUs %s of container %q of pod %q are in the shared pool %s too", set.Intersect(s.Shared),
					name, uid, s.Shared)
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
