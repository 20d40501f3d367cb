// Package memoryv1 is the generated Go form of proto/berth/memory/v1.
package memoryv1
