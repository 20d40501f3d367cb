package cpu

import (
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

// kind is a kind of unit that CPUs are grouped in.
type kind int

const (
	core kind = iota
	uncore
	node
	socket
	kinds
)

// table has the data of a machine for the assignment algorithms, in dense
// form: units are numbered by the machine's partitions, and every lookup is a
// slice access.
type table struct {
	topo *machine.Topology
	part [kinds]*machine.Partition
	// of is the unit of a CPU by CPU id.
	of [kinds][]int32
	// total is the number of units of all kinds, and base where the units of a
	// kind begin when all are numbered through.
	total int
	base  [kinds]int
	// nodesFirst is the order of the two upper levels: nodes before sockets where
	// there are no more nodes than sockets, else sockets before nodes.
	nodesFirst bool
	// perCore, perSocket and perUncore are the averages of the machine, rounded
	// down, with which the reference compares.
	perCore, perSocket, perUncore int
	// perNode is the number of CPUs by node id.
	perNode numa.Weights
	// largestCore is the number of threads of the largest core.
	largestCore int

	socketNodes, nodeSockets, nodeUncores relation
	socketCores, nodeCores, uncoreCores   relation
}

// relation lists the units of one kind that have CPUs in a unit of another kind.
type relation struct {
	inner, outer kind
	// members by outer unit, ascending.
	members [][]int32
	// crossing is true if an inner unit has CPUs in several outer ones.
	crossing bool
}

func newTable(topo *machine.Topology) *table {
	t := &table{
		topo:       topo,
		part:       [kinds]*machine.Partition{topo.ByCore(), topo.ByUncore(), topo.ByNode(), topo.BySocket()},
		nodesFirst: topo.NumSockets() >= topo.NumNUMANodes(),
		perCore:    max(topo.CPUsPerCore(), 1),
		perSocket:  topo.CPUsPerSocket(),
		perUncore:  topo.CPUsPerUncore(),
	}
	last, _ := topo.CPUs().Max()
	for k, p := range t.part {
		t.of[k] = make([]int32, last+1)
		for cpu := range t.of[k] {
			t.of[k][cpu] = int32(p.Index(cpu))
		}
		t.base[k] = t.total
		t.total += p.Len()
	}
	for i := range t.part[core].Len() {
		t.largestCore = max(t.largestCore, t.part[core].Size(i))
	}
	for i := range t.part[node].Len() {
		t.perNode[t.part[node].ID(i)] = uint64(t.part[node].Size(i))
	}
	t.socketNodes, t.nodeSockets = t.relate(socket, node), t.relate(node, socket)
	t.nodeUncores, t.uncoreCores = t.relate(node, uncore), t.relate(uncore, core)
	t.socketCores, t.nodeCores = t.relate(socket, core), t.relate(node, core)
	return t
}

// relate finds the inner units of every outer unit.
func (t *table) relate(outer, inner kind) relation {
	r := relation{inner: inner, outer: outer, members: make([][]int32, t.part[outer].Len())}
	for i := range t.part[inner].Len() {
		homes := 0
		for o := range t.part[outer].Touched(t.part[inner].CPUs(i)) {
			r.members[o] = append(r.members[o], int32(i))
			homes++
		}
		r.crossing = r.crossing || homes > 1
	}
	return r
}
