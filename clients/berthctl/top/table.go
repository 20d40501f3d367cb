package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
)

// Source holds what a table is made of.
type Source struct {
	// Pods are the admitted pods by uid.
	Pods map[string]*typesv1.PodAllocation
	// Shared are the CPUs of containers without exclusive CPUs.
	Shared   cpuset.Set
	Revision uint64
	// Previous and Last are two readings; nil before they came.
	Previous, Last *nodev1.GetUsageResponse
}

// Table holds what top shows, as data. A nil pointer is an unknown value. Shares are in 1 of one CPU
// or of the time.
type Table struct {
	Time     time.Time `json:"time"`
	Revision uint64    `json:"revision"`
	Pods     int       `json:"pods"`
	// Shared and Exclusive are the two kinds of CPUs together.
	Shared    Pool  `json:"shared"`
	Exclusive Pool  `json:"exclusive"`
	Rows      []Row `json:"containers"`
	// Omitted is how many containers berthd did not read.
	Omitted uint32 `json:"omittedContainers"`
}

// Pool is a set of CPUs and its usage by all processes.
type Pool struct {
	CPUs string   `json:"cpus"`
	Size int      `json:"size"`
	Busy *float64 `json:"busyCPUs"`
}

// Row is a container.
type Row struct {
	PodUID    string `json:"podUid"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	// CPU is the CPU time in a time.
	CPU *float64 `json:"cpu"`
	// CPUs are the exclusive CPUs with how busy each is; none on the shared CPUs.
	CPUs []CPUShare `json:"exclusiveCPUs"`
	// Throttled is the share of the time in which the container was throttled.
	Throttled  *float64     `json:"throttled"`
	Memory     uint64       `json:"memoryBytes"`
	WorkingSet uint64       `json:"workingSetBytes"`
	Nodes      []NodeBytes  `json:"numaMemory"`
	HugePages  []SizedBytes `json:"hugePages"`
	// The shares of the time in which a process waited.
	CPUPressure    *float64 `json:"cpuPressure"`
	MemoryPressure *float64 `json:"memoryPressure"`
	IOPressure     *float64 `json:"ioPressure"`
	// Drifts is how many values of the container's cgroup another program changed lately.
	Drifts int `json:"drifts"`
}

// CPUShare tells how busy a CPU is.
type CPUShare struct {
	CPU  int      `json:"cpu"`
	Busy *float64 `json:"busy"`
}

// NodeBytes is memory on a NUMA node.
type NodeBytes struct {
	Node  uint32 `json:"node"`
	Bytes uint64 `json:"bytes"`
}

// SizedBytes is the used amount of huge pages of one size.
type SizedBytes struct {
	Size  uint64 `json:"pageSizeBytes"`
	Bytes uint64 `json:"bytes"`
}

// rates compares two readings.
type rates struct {
	elapsed time.Duration
	busy    map[int]*float64
	before  map[string]*nodev1.ContainerUsage
}

func newRates(s Source) rates {
	r := rates{busy: map[int]*float64{}, before: map[string]*nodev1.ContainerUsage{}}
	if s.Previous == nil || s.Last == nil {
		return r
	}
	r.elapsed = s.Last.GetReadTime().AsTime().Sub(s.Previous.GetReadTime().AsTime())
	times := map[uint32]uint64{}
	for _, c := range s.Previous.GetCpuTimes() {
		times[c.GetCpu()] = c.GetBusyNanoseconds()
	}
	for _, c := range s.Last.GetCpuTimes() {
		if was, ok := times[c.GetCpu()]; ok {
			now := c.GetBusyNanoseconds()
			r.busy[int(c.GetCpu())] = r.of(&was, &now, time.Nanosecond)
		}
	}
	for _, c := range s.Previous.GetContainers() {
		r.before[c.GetContainerId()] = c
	}
	return r
}

// of is the share of the time that a counter of times gained; nil where it is unknown.
func (r rates) of(was, now *uint64, unit time.Duration) *float64 {
	if was == nil || now == nil || *now < *was || r.elapsed <= 0 {
		return nil
	}
	share := float64(*now-*was) * float64(unit) / float64(r.elapsed)
	return &share
}

// pool is how busy CPUs are together; unknown if one of them is.
func (r rates) pool(set cpuset.Set) Pool {
	p := Pool{CPUs: set.String(), Size: set.Len()}
	sum := 0.0
	for id := range set.All() {
		share := r.busy[id]
		if share == nil {
			return p
		}
		sum += *share
	}
	if p.Size > 0 {
		p.Busy = &sum
	}
	return p
}

// New makes the table of a source, ordered by pod and container.
func New(s Source) Table {
	r := newRates(s)
	t := Table{Revision: s.Revision, Pods: len(s.Pods), Rows: []Row{}, Omitted: s.Last.GetOmittedContainers()}
	if s.Last != nil {
		t.Time = s.Last.GetReadTime().AsTime()
	}
	var exclusive cpuset.Set
	used := map[[2]string]*nodev1.ContainerUsage{}
	for _, c := range s.Last.GetContainers() {
		used[[2]string{c.GetPodUid(), c.GetContainerName()}] = c
	}
	drifts := map[[2]string]int{}
	for _, d := range s.Last.GetDrifts() {
		drifts[[2]string{d.GetPodUid(), d.GetContainerName()}]++
	}
	for uid, pod := range s.Pods {
		for _, c := range pod.GetContainers() {
			var own cpuset.Set
			if c.GetExclusiveCpus() {
				own, _ = cpuset.Parse(c.GetCpus().GetList()) // what cannot be read counts as none
			}
			exclusive = exclusive.Union(own)
			key := [2]string{uid, c.GetContainerName()}
			u, running := used[key]
			once := c.GetRole() == typesv1.ContainerRole_CONTAINER_ROLE_INIT
			if once && !running && own.IsEmpty() && len(c.GetContainerIds()) == 0 {
				continue // it has ended, or waits for others, and keeps nothing
			}
			t.Rows = append(t.Rows, r.row(pod, c.GetContainerName(), own, u, drifts[key]))
		}
	}
	t.Shared, t.Exclusive = r.pool(s.Shared), r.pool(exclusive)
	slices.SortFunc(t.Rows, func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(a.PodUID, b.PodUID), strings.Compare(a.Container, b.Container))
	})
	return t
}

func (r rates) row(pod *typesv1.PodAllocation, container string, own cpuset.Set, u *nodev1.ContainerUsage, drifts int) Row {
	row := Row{
		PodUID: pod.GetUid(), Pod: fmt.Sprintf("%s/%s", pod.GetNamespace(), pod.GetName()), Container: container,
		Memory: u.GetMemoryBytes(), WorkingSet: u.GetWorkingSetBytes(), Drifts: drifts,
		CPUs: []CPUShare{}, Nodes: []NodeBytes{}, HugePages: []SizedBytes{},
	}
	for id := range own.All() {
		row.CPUs = append(row.CPUs, CPUShare{id, r.busy[id]})
	}
	for _, n := range u.GetNumaMemory() {
		row.Nodes = append(row.Nodes, NodeBytes{n.GetNumaNode(), n.GetBytes()})
	}
	for _, h := range u.GetHugePages() {
		row.HugePages = append(row.HugePages, SizedBytes{h.GetPageSizeBytes(), h.GetBytes()})
	}
	if was := r.before[u.GetContainerId()]; was != nil && u != nil {
		row.CPU = r.of(&was.CpuNanoseconds, &u.CpuNanoseconds, time.Nanosecond)
		row.Throttled = r.of(was.ThrottledNanoseconds, u.ThrottledNanoseconds, time.Nanosecond)
		row.CPUPressure = r.of(was.CpuPressureMicroseconds, u.CpuPressureMicroseconds, time.Microsecond)
		row.MemoryPressure = r.of(was.MemoryPressureMicroseconds, u.MemoryPressureMicroseconds, time.Microsecond)
		row.IOPressure = r.of(was.IoPressureMicroseconds, u.IoPressureMicroseconds, time.Microsecond)
	}
	return row
}
