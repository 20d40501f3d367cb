// Package allocationv1 is the generated Go form of proto/berth/allocation/v1.
package allocationv1
