package kubelet

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// memoryCheckpoint is the JSON form of all formats.
type memoryCheckpoint struct {
	memoryData
	Checksum uint64 `json:"checksum"`
	sealed
}

// memoryData is the content. In format 3 it is sealed, and the checkpoint has a copy without pod entries.
type memoryData struct {
	Policy     string                             `json:"policyName"`
	Nodes      map[int]*storedNode                `json:"machineState"`
	Entries    map[string]map[string]storedBlocks `json:"entries,omitempty"`
	PodEntries map[string]storedPod               `json:"podEntries,omitempty"`
}

func newMemoryData() memoryData {
	return memoryData{
		Nodes: map[int]*storedNode{}, Entries: map[string]map[string]storedBlocks{}, PodEntries: map[string]storedPod{},
	}
}

type storedNode struct {
	Blocks int                     `json:"numberOfAssignments"`
	Tables map[string]*storedTable `json:"memoryMap"`
	Group  []int                   `json:"cells"`
}

type storedTable struct {
	Total          uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

type storedBlocks []storedBlock

type storedBlock struct {
	Nodes    []int  `json:"numaAffinity"`
	Resource string `json:"type"`
	Bytes    uint64 `json:"size"`
}

type storedPod struct {
	Blocks storedBlocks `json:"memoryBlocks,omitempty"`
}

// ParseMemory reads memory_manager_state in any format. All errors are of class Invalid: no
// JSON object, a node id that berth does not support (the message has its path), a wrong
// checksum. As in the kubelet, a missing checksum or 0 is accepted.
func ParseMemory(data []byte) (MemoryState, error) {
	s, err := parseMemory(data)
	if err != nil {
		return MemoryState{}, fmt.Errorf("read memory_manager_state: %w", err)
	}
	return s, nil
}

func parseMemory(data []byte) (s MemoryState, err error) {
	c := memoryCheckpoint{memoryData: newMemoryData()}
	if err := json.Unmarshal(data, &c); err != nil {
		return s, misread(err)
	}
	s = MemoryState{
		Format: 3, Nodes: map[int]MemoryNode{},
		Containers: map[string]map[string][]MemoryBlock{}, Pods: map[string][]MemoryBlock{},
	}
	if c.isSealed() {
		c.memoryData = newMemoryData()
		err = c.open(&c.memoryData)
	} else {
		s.Format, err = c.format()
	}
	if err != nil {
		return s, err
	}
	s.Policy = c.Policy
	for _, id := range slices.Sorted(maps.Keys(c.Nodes)) {
		if s.Nodes[id], err = c.Nodes[id].read(id); err != nil {
			return s, err
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(c.Entries)) {
		s.Containers[uid] = map[string][]MemoryBlock{}
		for _, name := range slices.Sorted(maps.Keys(c.Entries[uid])) {
			if s.Containers[uid][name], err = c.Entries[uid][name].read(fmt.Sprintf("container %q of pod %q", name, uid)); err != nil {
				return s, err
			}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(c.PodEntries)) {
		if s.Pods[uid], err = c.PodEntries[uid].Blocks.read(fmt.Sprintf("pod %q", uid)); err != nil {
			return s, err
		}
	}
	return s, nil
}

// format distinguishes formats 1 and 2 by the checksum.
//
// A kubelet with the gate that does not find the checksum of format 2 tries format 1, which needs
// none. The kubelet of 1.36 keeps the pod entries that it has read before.
func (c *memoryCheckpoint) format() (int, error) {
	first := checksum(c.dump(false))
	pods := len(c.PodEntries) > 0
	switch second := checksum(c.dump(true)); {
	case c.Checksum == second, pods && (c.Checksum == 0 || c.Checksum == first):
		return 2, nil
	case pods:
		return 0, wrongChecksum(c.Checksum, second)
	case c.Checksum == first || c.Checksum == 0:
		return 1, nil
	}
	return 0, wrongChecksum(c.Checksum, first)
}

func (n *storedNode) read(id int) (MemoryNode, error) {
	if n == nil || id < 0 || id >= numa.MaxNodes {
		return MemoryNode{}, errdefs.Invalidf("machineState: %d is no NUMA node with tables", id)
	}
	group, err := Group(id, n.Group)
	if err != nil {
		return MemoryNode{}, err
	}
	out := MemoryNode{Blocks: n.Blocks, Group: group, Tables: map[string]MemoryTable{}}
	for resource, t := range n.Tables {
		if t == nil {
			return MemoryNode{}, errdefs.Invalidf("memoryMap of NUMA node %d: %q has no table", id, resource)
		}
		out.Tables[resource] = MemoryTable(*t)
	}
	return out, nil
}

// Group reads the group of a NUMA node. A node that is named twice is an error, as
// for the kubelet, which compares lists.
func Group(id int, cells []int) (numa.Mask, error) {
	group, err := readNodes(fmt.Sprintf("cells of NUMA node %d", id), cells)
	if err == nil && group.Len() != len(cells) {
		return 0, errdefs.Invalidf("cells of NUMA node %d: %v names a node twice", id, cells)
	}
	return group, err
}

func readNodes(what string, ids []int) (numa.Mask, error) {
	nodes, err := numa.FromIDs(ids)
	if err != nil {
		return 0, errdefs.Invalidf("%s: %w", what, err)
	}
	return nodes, nil
}

func (list storedBlocks) read(of string) ([]MemoryBlock, error) {
	out := make([]MemoryBlock, len(list))
	for i, b := range list {
		nodes, err := readNodes("numaAffinity of "+of, b.Nodes)
		if err != nil {
			return nil, err
		}
		out[i] = MemoryBlock{Nodes: nodes, Resource: b.Resource, Bytes: b.Bytes}
	}
	return out, nil
}

func stored(blocks []MemoryBlock) storedBlocks {
	out := make(storedBlocks, len(blocks))
	for i, b := range blocks {
		out[i] = storedBlock{Nodes: b.Nodes.IDs(), Resource: b.Resource, Bytes: b.Bytes}
	}
	return out
}

// Marshal writes the state as the kubelet does, in format 1, 2 or 3. Class
// Unsupported: another format; memory of pods as a whole in format 1, which has no
// place for it.
func (s *MemoryState) Marshal(format int) ([]byte, error) {
	switch {
	case format == 1 && len(s.Pods) > 0:
		return nil, badFormat("1 has no place for the memory of pods as a whole; use format 2 or 3")
	case format < 1 || format > 3:
		return nil, badFormat("%d: expected 1, 2 or 3", format)
	}
	c := memoryCheckpoint{memoryData: newMemoryData()}
	c.Policy = s.Policy
	for id, n := range s.Nodes {
		c.Nodes[id] = &storedNode{Blocks: n.Blocks, Tables: map[string]*storedTable{}, Group: n.Group.IDs()}
		for resource, t := range n.Tables {
			c.Nodes[id].Tables[resource] = new(storedTable(t))
		}
	}
	for uid, containers := range s.Containers {
		c.Entries[uid] = map[string]storedBlocks{}
		for name, blocks := range containers {
			c.Entries[uid][name] = stored(blocks)
		}
	}
	for uid, blocks := range s.Pods {
		var pod storedPod
		if len(blocks) > 0 { // else left out, so that the checksum is of none
			pod.Blocks = stored(blocks)
		}
		c.PodEntries[uid] = pod
	}
	var err error
	if format == 3 {
		if c.sealed, err = seal(c.memoryData); err != nil {
			return nil, errdefs.Internalf("write memory_manager_state: %w", err)
		}
		c.PodEntries = nil
	}
	c.Checksum = checksum(c.dump(format == 2))
	data, err := json.Marshal(c)
	if err != nil {
		return nil, errdefs.Internalf("write memory_manager_state: %w", err)
	}
	return data, nil
}

// dump prints the checkpoint; resources of pods as a whole are part of format 2 only.
func (c *memoryCheckpoint) dump(pods bool) string {
	text := "(*state.MemoryManagerCheckpoint){PolicyName:(string)" + c.Policy +
		" MachineState:(state.NUMANodeMap)" + dumpMap(c.Nodes, (*storedNode).dump) +
		" Entries:(state.ContainerMemoryAssignments)" + dumpMap(c.Entries, func(containers map[string]storedBlocks) string {
		return dumpMap(containers, storedBlocks.dump)
	})
	if pods {
		text += " PodEntries:(state.PodMemoryAssignments)" + dumpMap(c.PodEntries, func(p storedPod) string {
			return "{MemoryBlocks:([]state.Block)" + p.Blocks.dump() + "}"
		})
	}
	return text + " Checksum:(checksum.Checksum)0}"
}

func (n *storedNode) dump() string {
	if n == nil {
		return "<nil>"
	}
	return "<*>{NumberOfAssignments:(int)" + strconv.Itoa(n.Blocks) +
		" MemoryMap:(map[v1.ResourceName]*state.MemoryTable)" + dumpMap(n.Tables, (*storedTable).dump) +
		" Cells:([]int)" + dumpList(n.Group, strconv.Itoa) + "}"
}

func (t *storedTable) dump() string {
	if t == nil {
		return "<nil>"
	}
	return fmt.Sprintf("<*>{TotalMemSize:(uint64)%d SystemReserved:(uint64)%d Allocatable:(uint64)%d Reserved:(uint64)%d Free:(uint64)%d}",
		t.Total, t.SystemReserved, t.Allocatable, t.Reserved, t.Free)
}

func (list storedBlocks) dump() string {
	return dumpList(list, func(b storedBlock) string {
		return "{NUMAAffinity:([]int)" + dumpList(b.Nodes, strconv.Itoa) +
			" Type:(v1.ResourceName)" + b.Resource + " Size:(uint64)" + strconv.FormatUint(b.Bytes, 10) + "}"
	})
}
