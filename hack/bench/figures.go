package main

import "time"

// promise is the most that an operation may take.
type promise struct {
	name   name
	time   time.Duration
	allocs int // 0: none is promised
}

// promises are for 512 CPUs: 2 sockets, 8 NUMA nodes, half full; of merges, and of
// memory for a container with memory and huge pages of two sizes, by the number of
// nodes.
var promises = []promise{
	{name{"CPU", "hints, half, request 4", "512", "berth"}, 5 * time.Microsecond, 20},
	{name{"CPU", "packed, half, request 16", "512", "berth"}, 20 * time.Microsecond, 0},
	{name{"CPU", "distributed, half, a quarter", "512", "berth"}, 200 * time.Microsecond, 0},
	{name{"Memory", "hints, half", "8", "berth"}, 10 * time.Microsecond, 0},
	{name{"Memory", "hints, empty", "64", "berth"}, 50 * time.Microsecond, 0},
	{name{"Memory", "hints, half", "64", "berth"}, 50 * time.Microsecond, 0},
	{name{"Merge", "3 lists, preferred", "8", "berth"}, 5 * time.Microsecond, 0},
	{name{"Merge", "5 lists, preferred", "8", "berth"}, 5 * time.Microsecond, 0},
	{name{"Merge", "3 lists, not preferred", "8", "berth"}, 150 * time.Microsecond, 0},
	{name{"Merge", "5 lists, not preferred", "8", "berth"}, 150 * time.Microsecond, 0},
	{name{"Merge", "5 rules, equal weights, preferred", "64", "berth"}, 100 * time.Microsecond, 0},
	{name{"Merge", "5 rules, equal weights, not preferred", "64", "berth"}, 100 * time.Microsecond, 0},
	{name{"Merge", "5 rules, unlike weights, not preferred", "16", "berth"}, 100 * time.Microsecond, 0},
	{name{"PodResources", "List, 4 containers a pod", "500", "berth"}, 1200 * time.Microsecond, 0},
	{name{"Admit", "decision, CPU, memory and 2 devices, half", "512", "berth"}, 100 * time.Microsecond, 0},
	{name{"Transition", "plan, 200 pods move", "512", "berth"}, 50 * time.Millisecond, 0},
	{name{"Restart", "first answer", "5000", "berth"}, time.Second, 0},
	{name{"Rest", "processor time in a second", "5000", "berth"}, 5 * time.Millisecond, 0}, // 0.5 %
}

// limits are of parts of an operation.
var limits = []limit{
	{name{"Placement", "leave, kernel", "500", "berth"}, "beyond", 20 * time.Millisecond},
	{name{"Placement", "leave, cri", "500", "berth"}, "beyond", 20 * time.Millisecond},
	{name{"Prepare", "4 CPUs and 2 GiB", "16", "berth"}, "median", 5 * time.Millisecond},
}

// limit is the most that a part of an operation may take.
type limit struct {
	name name
	part string
	time time.Duration
}

// scalings are of operations that do not depend on how many containers there are.
var scalings = []scaling{
	{name{"Placement", "free, kernel", "500", "berth"}, "10", 1.5},
	{name{"Placement", "free, cri", "500", "berth"}, "10", 1.5},
	{name{"Placement", "event, kernel", "500", "berth"}, "10", 1.5},
	{name{"Placement", "event, cri", "500", "berth"}, "10", 1.5},
}

// scaling is the most that an operation may take as a multiple of what it takes at another size.
type scaling struct {
	name name
	than string
	most float64
}

// mostGrown is by how many MiB one bad user may make berthd grow.
const mostGrown = 64

// ratio is the most that an operation may take as a multiple of what it is made of, or has to read; of
// what it takes beside 100 pods and not 5,000; of what it takes where nobody watches, or
// where no plugin hangs.
type ratio struct {
	name name
	most float64
}

var ratios = []ratio{
	{name{"AdmitOverTheSocket", "8 CPUs and 4 GiB", "512", "berth"}, 1.5},
	{name{"AdmitWithHistory", "8 CPUs and 4 GiB", "512", "berth"}, 1.05},
	{name{"ResizeOverTheSocket", "by one CPU", "512", "berth"}, 2},
	{name{"ManyPods", "processor time of an Admit and a Remove", "5000", "berth"}, 1.3},
	{name{"ManyPods", "Admit", "5000", "berth"}, 1.3},
	{name{"Watch", "Admit and Remove", "190", "berth"}, 1.25}, // four fifths of the throughput
	{name{"BadUser", "Admit beside a user who may none", "512", "berth"}, 2},
	{name{"BadUser", "Admit beside a user who may read", "512", "berth"}, 2},
	{name{"BadUser", "Admit beside a user who may provider", "512", "berth"}, 2},
	{name{"BadUser", "Admit beside a user who may agent", "512", "berth"}, 2},
	{name{"BadUser", "Admit beside a user who may admin", "512", "berth"}, 2},
	{name{"BadUser", "Admit beside a user who may read-frames", "512", "berth"}, 2},
	{name{"Placement", "rest, kernel", "500", "berth"}, 1.3},
	{name{"Placement", "rest, cri", "500", "berth"}, 1.3},
	{name{"HungPlugin", "Admit without devices", "512", "berth"}, 1.1}, // what medians differ by
}
