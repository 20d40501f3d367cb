package main

import "time"

// promise is the most that an operation may take.
type promise struct {
	name   name
	time   time.Duration
	allocs int // 0: none is promised
}

// promises are for 512 CPUs: 2 sockets, 8 NUMA nodes, half full; of memory for a
// container with memory and huge pages of two sizes, by the number of nodes.
var promises = []promise{
	{name{"CPU", "hints, half, request 4", "512", "berth"}, 5 * time.Microsecond, 20},
	{name{"CPU", "packed, half, request 16", "512", "berth"}, 20 * time.Microsecond, 0},
	{name{"CPU", "distributed, half, a quarter", "512", "berth"}, 200 * time.Microsecond, 0},
	{name{"Memory", "hints, half", "8", "berth"}, 10 * time.Microsecond, 0},
	{name{"Memory", "hints, empty", "64", "berth"}, 50 * time.Microsecond, 0},
	{name{"Admit", "decision, CPU, memory and 2 devices, half", "512", "berth"}, 100 * time.Microsecond, 0},
}

// kubelet is what the managers of Kubernetes 1.36.3 took, driven as a library:
// medians of five in processor time, 8 NUMA nodes, on 2 virtual processors of an
// AMD EPYC (family 26) with Go 1.26.8. Where the kubelet was asked for another
// number of CPUs the next smaller one stands here, which flatters it. Figures of
// another run on another machine show the order of magnitude and the growth, not
// more.
var kubelet = map[string]map[string]sample{
	"CPU/hints, empty, request 8": {
		"64": {2080e3, 4018}, "128": {4530e3, 4813}, "256": {9630e3, 5584},
		"512": {20030e3, 6355}, "1024": {41240e3, 7146},
	},
	"CPU/hints, half, request 4": {"512": {15270e3, 6351}},
	"CPU/packed, empty, request 8": {
		"64": {146300, 410}, "128": {1340e3, 2579}, "256": {4910e3, 5514},
		"512": {16680e3, 12137}, "1024": {61280e3, 27940},
	},
	"CPU/packed, half, request 16":     {"512": {5360e3, 5473}},
	"CPU/by caches, half, request 16":  {"512": {1290e3, 1609}},
	"CPU/distributed, half, a quarter": {"512": {12530e3, 22178}},
	"Memory/hints, empty":              {"2": {7500, 54}, "4": {26800, 172}, "8": {494400, 2191}},
	"Memory/hints, half":               {"2": {5800, 48}, "4": {20500, 139}, "8": {337400, 1474}},
	"Memory/plan, empty":               {"2": {12500, 109}, "4": {33400, 255}, "8": {515000, 2330}},
	"Memory/plan, half":                {"2": {10000, 103}, "4": {27600, 222}, "8": {363900, 1613}},
}
