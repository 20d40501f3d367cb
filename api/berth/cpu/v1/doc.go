// Package cpuv1 is the generated Go form of proto/berth/cpu/v1.
package cpuv1
