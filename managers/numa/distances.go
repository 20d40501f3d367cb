package numa

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
)

const (
	// unknown stands in the table for a pair without a distance.
	unknown = -1
	// maxDistance is far above the one byte of the firmware's tables, and so
	// small that no sum can overflow.
	maxDistance = 1 << 20
)

// Distances is the immutable table of distances between nodes, as firmware
// gives them (ACPI SLIT: 10 is local, larger is farther). It need not be
// symmetric, and it may lack pairs. The zero value has none.
type Distances struct {
	nodes Mask
	// table has the distance from i to j at i*stride+j. Rows are found by id,
	// not by rank, because ids below 64 leave little to save.
	table  []int32
	stride int
}

// NewDistances returns the distances rows[i][j] from node i to node j, both
// ids. Pairs may be missing. An id outside 0..63 and a distance outside
// 0..2^20 are errors that name them.
func NewDistances(rows map[int]map[int]int) (Distances, error) {
	var nodes Mask
	for i, row := range rows {
		if err := checkID(i); err != nil {
			return Distances{}, err
		}
		nodes |= 1 << i
		for j, d := range row {
			if err := checkID(j); err != nil {
				return Distances{}, fmt.Errorf("distances of node %d: %w", i, err)
			}
			if d < 0 || d > maxDistance {
				return Distances{}, fmt.Errorf("distance %d from node %d to node %d is outside 0..%d", d, i, j, maxDistance)
			}
			nodes |= 1 << j
		}
	}
	if nodes.IsEmpty() {
		return Distances{}, nil
	}
	stride := bits.Len64(uint64(nodes))
	table := make([]int32, stride*stride)
	for i := range table {
		table[i] = unknown
	}
	for i, row := range rows {
		for j, d := range row {
			table[i*stride+j] = int32(d)
		}
	}
	return Distances{nodes: nodes, table: table, stride: stride}, nil
}

// FromLists reads distances as the kernel writes them: lists[i] is the content
// of /sys/devices/system/node/node<i>/distance, which has one number for each
// online node by position, not by id (kernel: drivers/base/node.c). online is
// the list of online nodes in ascending order. With nodes 0 and 8 online the
// second number of a list is the distance to node 8.
//
// A node may have no list. Online nodes out of order or twice, a list of another
// length than online, a list of a node that is not online, and what NewDistances
// refuses are errors.
func FromLists(online []int, lists map[int][]int) (Distances, error) {
	nodes, err := FromIDs(online)
	if err != nil {
		return Distances{}, err
	}
	if !slices.Equal(online, nodes.IDs()) {
		return Distances{}, fmt.Errorf("online nodes %v are not in ascending order", online)
	}
	rows := make(map[int]map[int]int, len(lists))
	for i, list := range lists {
		if !nodes.Contains(i) {
			return Distances{}, fmt.Errorf("node %d has distances but is not online (online: %s)", i, nodes)
		}
		if len(list) != len(online) {
			return Distances{}, fmt.Errorf("node %d has %d distances, expected one for each of the %d online nodes", i, len(list),
				len(online))
		}
		rows[i] = make(map[int]int, len(list))
		for position, d := range list {
			rows[i][online[position]] = d
		}
	}
	return NewDistances(rows)
}

// Nodes returns the nodes that the table mentions.
func (d Distances) Nodes() Mask { return d.nodes }

// Between returns the distance from node i to node j, and false if it is not
// known.
func (d Distances) Between(i, j int) (int, bool) {
	if i < 0 || j < 0 || i >= d.stride || j >= d.stride || d.table[i*d.stride+j] == unknown {
		return 0, false
	}
	return int(d.table[i*d.stride+j]), true
}

// Among returns the distances between the nodes of m.
func (d Distances) Among(m Mask) Distances {
	nodes := d.nodes.Intersect(m)
	switch nodes {
	case d.nodes:
		return d
	case 0:
		return Distances{}
	}
	stride := bits.Len64(uint64(nodes))
	table := make([]int32, stride*stride)
	for i := range stride {
		for j := range stride {
			table[i*stride+j] = unknown
			if nodes.Contains(i) && nodes.Contains(j) {
				table[i*stride+j] = d.table[i*d.stride+j]
			}
		}
	}
	return Distances{nodes: nodes, table: table, stride: stride}
}

// Has reports whether the distance of every ordered pair of nodes of m is known,
// those from a node to itself included.
func (d Distances) Has(m Mask) bool {
	for i := range m.All() {
		for j := range m.All() {
			if _, known := d.Between(i, j); !known {
				return false
			}
		}
	}
	return true
}

// Sum returns the sum of the distances over all ordered pairs of nodes of m,
// those from a node to itself included. Unknown pairs count 0: call
// Has first. Between masks of equal size the order of sums is the order of the
// reference's average distances (option prefer-closest-numa-nodes, KEP-3545).
func (d Distances) Sum(m Mask) int64 {
	var sum int64
	m = m.Intersect(d.nodes)
	for i := range m.All() {
		row := d.table[i*d.stride : (i+1)*d.stride]
		for j := range m.All() {
			if row[j] != unknown {
				sum += int64(row[j])
			}
		}
	}
	return sum
}

// MarshalJSON returns the argument of NewDistances as an object of objects:
// {"0":{"0":10,"8":20},"8":{"0":20,"8":10}}.
func (d Distances) MarshalJSON() ([]byte, error) {
	rows := map[int]map[int]int{}
	for i := range d.nodes.All() {
		row := map[int]int{}
		for j := range d.nodes.All() {
			if distance, known := d.Between(i, j); known {
				row[j] = distance
			}
		}
		rows[i] = row
	}
	return json.Marshal(rows)
}

// UnmarshalJSON reads what MarshalJSON writes and refuses what NewDistances
// refuses. On error d is unchanged.
func (d *Distances) UnmarshalJSON(data []byte) error {
	var rows map[int]map[int]int
	if err := json.Unmarshal(data, &rows); err != nil {
		return err
	}
	read, err := NewDistances(rows)
	if err != nil {
		return err
	}
	*d = read
	return nil
}
