// Package topologyv1 is the generated Go form of proto/berth/topology/v1.
package topologyv1
