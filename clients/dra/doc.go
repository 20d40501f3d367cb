// Command dra is berth-dra, a driver of dynamic resource allocation (DRA): with it, the scheduler of a
// Kubernetes cluster knows the NUMA nodes of a node, and claims get CPUs and memory of one of them.
// Package driver has the driver; this one has its command line and connects it to the API server and
// to the kubelet.
package main
