// Package cgroupv1 is the generated Go form of proto/berth/cgroup/v1.
package cgroupv1
