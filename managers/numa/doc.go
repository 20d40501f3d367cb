// Package numa holds sets of NUMA nodes and the distances between nodes.
package numa
