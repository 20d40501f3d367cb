// Command dra is installed as berth-dra, a driver of dynamic resource allocation (DRA). It publishes
// the NUMA nodes of a node for the scheduler of a Kubernetes cluster, and claims get CPUs and memory
// of one NUMA node. Package driver has the driver. This package has the command line, and connects the
// driver to the API server and to the kubelet.
package main
