package kubelet

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// noMemoryPolicy is the memory manager's policy that keeps no tables.
const noMemoryPolicy = "None"

// String returns the block's amount, resource and nodes.
func (b MemoryBlock) String() string {
	return fmt.Sprintf("%s of %s on NUMA nodes %s", workload.Memory.Text(int64(min(b.Bytes, math.MaxInt64))), b.Resource, b.Nodes)
}

// readMemory converts memory_manager_state to claims. Its tables are not converted, because in
// berth they follow from the claims. If the two differ, a kubelet would refuse the file
// (MemoryState.Check), and a note reports that.
func readMemory(data []byte, in Input) (Facts, error) {
	s, err := parseMemory(data)
	if err == nil {
		err = in.allow(len(s.Pods))
	}
	if err != nil {
		return Facts{}, err
	}
	facts := Facts{Format: s.Format}
	held := s.held()
	facts.name(maps.Keys(s.Containers))
	facts.name(maps.Keys(s.Pods))
	for _, uid := range facts.Pods {
		if pod := in.pod(uid); pod != nil {
			s.addPod(&facts, held, pod)
		} else {
			s.skipPod(&facts, held, uid)
		}
	}
	held.noteRest(&facts)
	if s.Policy != in.Policy {
		facts.note("the file is one of policy %s, and berth runs under %s", Printable(s.Policy), in.Policy)
	}
	if s.Policy != noMemoryPolicy {
		if err := s.Check(in.View.Machine().Nodes(), in.ReservedMemory); err != nil {
			facts.note("a kubelet with this machine and reservation would not accept the file: %v", err)
		}
	}
	return facts, nil
}

// spots are amounts by resource and NUMA node.
type spots map[string]*ledger.NodeBytes

// held is what the tables count as held.
func (s *MemoryState) held() spots {
	out := spots{}
	for id, node := range s.Nodes {
		for resource, t := range node.Tables {
			if out[resource] == nil {
				out[resource] = &ledger.NodeBytes{}
			}
			out[resource][id] = t.Reserved
		}
	}
	return out
}

// noteRest notes bytes that the tables count as held and no block contains. After a restart a
// kubelet counts an ended init container again, in addition to the container that reuses its
// memory (kubernetes#123971).
func (s spots) noteRest(facts *Facts) {
	for _, resource := range slices.Sorted(maps.Keys(s)) {
		var nodes numa.Mask
		for id, bytes := range s[resource] {
			if bytes > 0 {
				nodes = nodes.With(id)
			}
		}
		if !nodes.IsEmpty() {
			facts.note("%s are counted as allocated, and no entry allocates them", MemoryBlock{nodes, resource, s[resource].Total()})
		}
	}
}

// skipPod records the blocks of an unknown pod.
func (s *MemoryState) skipPod(facts *Facts, held spots, uid string) {
	whole, divided := s.Pods[uid]
	for _, b := range whole {
		facts.skip("%s of pod %s", b, uid)
		held.take(b, ledger.NodeBytes{})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Containers[uid])) {
		for _, b := range s.Containers[uid][name] {
			facts.skip("%s of %s", b, ledger.Owner{Pod: uid, Container: name})
			if !divided {
				held.take(b, ledger.NodeBytes{})
			}
		}
	}
}

// addPod makes the claims of a pod and its containers, and takes them out of what
// is held.
func (s *MemoryState) addPod(facts *Facts, held spots, pod *workload.Pod) {
	record := &ledger.Pod{Pod: *pod}
	whole, divided := s.Pods[pod.UID]
	for _, b := range whole {
		record.Claims = addBlock(record.Claims, ledger.Owner{Pod: pod.UID}, b.Resource, held.take(b, ledger.NodeBytes{}))
	}
	for _, c := range pod.Walk() {
		owner := ledger.Owner{Pod: pod.UID, Container: c.Name}
		blocks, known := s.Containers[pod.UID][c.Name]
		if known && len(blocks) == 0 {
			facts.note("%s has an entry without memory", owner)
		}
		for _, b := range blocks {
			if divided { // parts of the pod's memory are counted nowhere
				record.Claims = addBlock(record.Claims, owner, b.Resource, ledger.Block{Nodes: b.Nodes, Bytes: b.Bytes})
				continue
			}
			requested := uint64(max(c.Requests[workload.Resource(b.Resource)], 0))
			switch {
			case c.Role.Feeds() && requested > b.Bytes:
				// The kubelet takes from the block what a later container takes over;
				// in berth a claim keeps its size.
				b.Bytes = requested
			case requested != b.Bytes:
				facts.note("%s holds %s and requests %s", owner, b, workload.Memory.Text(int64(requested)))
			}
			of := record.ReusableMemory(c.Name, b.Resource, b.Nodes)
			record.Claims = addBlock(record.Claims, owner, b.Resource, held.take(b, of))
		}
	}
	facts.Claims = append(facts.Claims, record.Claims...)
	for _, name := range slices.Sorted(maps.Keys(s.Containers[pod.UID])) {
		for _, b := range s.Containers[pod.UID][name] {
			if pod.Container(name) == nil {
				facts.skip("%s of %s", b, ledger.Owner{Pod: pod.UID, Container: name})
				if !divided {
					held.take(b, ledger.NodeBytes{})
				}
			}
		}
	}
}

// addBlock adds a block to the owner's claim on its resource.
func addBlock(claims []ledger.Claim, owner ledger.Owner, resource string, b ledger.Block) []ledger.Claim {
	for i := range claims {
		if c := &claims[i]; c.Owner == owner && c.Resource == resource {
			c.Memory = append(c.Memory, b)
			return claims
		}
	}
	return append(claims, ledger.Claim{Owner: owner, Provider: string(Memory), Resource: resource, Memory: []ledger.Block{b}})
}

// take divides a block among its nodes. Reused bytes come first, then bytes that the tables count
// as held, each from the lowest node up. A rest, which a consistent file does not have, is on the
// lowest node.
func (s spots) take(b MemoryBlock, of ledger.NodeBytes) ledger.Block {
	out := ledger.Block{Nodes: b.Nodes, Bytes: b.Bytes}
	rest, parts := b.Bytes, ledger.NodeBytes{}
	held := s[b.Resource]
	if held == nil {
		held = &ledger.NodeBytes{}
	}
	for _, from := range []*ledger.NodeBytes{&of, held} {
		for id := range b.Nodes.All() {
			n := min(from[id], rest)
			parts[id] += n
			from[id] -= n
			rest -= n
		}
	}
	lowest, ok := b.Nodes.Lowest()
	if !ok {
		return out
	}
	parts[lowest] += rest
	if parts[lowest] == b.Bytes {
		return out
	}
	for id := range b.Nodes.All() {
		if parts[id] > 0 {
			out.Parts = append(out.Parts, ledger.Part{Node: id, Bytes: parts[id]})
		}
	}
	return out
}

// writeMemory creates memory_manager_state from a view. The tables are those that a kubelet
// computes for the claims.
func writeMemory(view *ledger.View, settings Settings, format int) (File, error) {
	s := MemoryState{
		Policy: settings.Policy,
		Nodes:  map[int]MemoryNode{}, Containers: map[string]map[string][]MemoryBlock{}, Pods: map[string][]MemoryBlock{},
	}
	for p := range view.Pods() {
		if p.Pod.ResourceClaim == nil {
			s.addRecord(p)
		}
	}
	if settings.Policy != noMemoryPolicy {
		var err error
		if s.Nodes, err = s.tables(view.Machine().Nodes(), settings.ReservedMemory); err != nil {
			return File{}, err
		}
	}
	if format == 0 {
		format = 1
		if len(s.Pods) > 0 {
			format = 2
		}
	}
	data, err := s.Marshal(format)
	return File{Format: format, Data: data}, err
}

// addRecord adds the blocks of a pod.
func (s *MemoryState) addRecord(p *ledger.Pod) {
	containers := map[string][]MemoryBlock{}
	for _, c := range p.Claims {
		if c.Provider != string(Memory) {
			continue
		}
		for _, b := range c.Memory {
			block := MemoryBlock{Nodes: b.Nodes, Resource: c.Resource, Bytes: b.Bytes}
			if c.Owner.Container == "" {
				s.Pods[p.UID()] = append(s.Pods[p.UID()], block)
			} else {
				containers[c.Owner.Container] = append(containers[c.Owner.Container], block)
			}
		}
	}
	if _, divided := s.Pods[p.UID()]; !divided {
		shrink(&p.Pod, containers)
	}
	if len(containers) > 0 {
		s.Containers[p.UID()] = containers
	}
}

// shrink subtracts reused memory from the blocks of init containers, so that the sum of all
// blocks is the held memory.
func shrink(pod *workload.Pod, containers map[string][]MemoryBlock) {
	for i, c := range pod.Walk() {
		for _, b := range containers[c.Name] {
			rest := b.Bytes
			for _, before := range pod.Containers[:i] {
				if !before.Role.Feeds() {
					continue
				}
				for at := range containers[before.Name] {
					left := &containers[before.Name][at]
					if left.Resource == b.Resource && left.Nodes == b.Nodes {
						n := min(left.Bytes, rest)
						left.Bytes -= n
						rest -= n
					}
				}
			}
		}
	}
}
