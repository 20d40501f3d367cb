package node

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/server/internal/usage"
)

// GetUsage implements NodeService.
func (s *service) GetUsage(ctx context.Context, _ *nodev1.GetUsageRequest) (*nodev1.GetUsageResponse, error) {
	read, err := s.Usage.Read(ctx)
	if err != nil {
		return nil, err
	}
	out := &nodev1.GetUsageResponse{ReadTime: timestamppb.New(read.Time), OmittedContainers: uint32(read.Omitted)}
	for _, id := range slices.Sorted(maps.Keys(read.CPUs)) {
		out.CpuTimes = append(out.CpuTimes, &nodev1.CPUTime{Cpu: uint32(id), BusyNanoseconds: uint64(read.CPUs[id])})
	}
	for _, c := range read.Containers {
		out.Containers = append(out.Containers, containerUsage(c))
	}
	for _, d := range read.Drifts {
		out.Drifts = append(out.Drifts, &cgroupv1.Drift{
			PodUid: d.Owner.Pod, ContainerName: d.Owner.Container, Cgroup: d.Name.String(),
			File: d.File, Want: d.Want, Found: d.Found, FindTime: timestamppb.New(d.Since),
		})
	}
	return out, nil
}

func containerUsage(c usage.Container) *nodev1.ContainerUsage {
	out := &nodev1.ContainerUsage{
		PodUid: c.Owner.Pod, ContainerName: c.Owner.Container, ContainerId: c.ID,
		CpuNanoseconds: uint64(max(0, c.CPU)), MemoryBytes: uint64(max(0, c.MemoryBytes)),
		WorkingSetBytes:         uint64(max(0, c.WorkingSetBytes)),
		CpuPressureMicroseconds: microseconds(c.CPUPressure), MemoryPressureMicroseconds: microseconds(c.MemoryPressure),
		IoPressureMicroseconds: microseconds(c.IOPressure),
	}
	if q := c.Quota; q != nil {
		lost := uint64(max(0, q.Time))
		out.Periods, out.ThrottledPeriods, out.ThrottledNanoseconds = &q.Periods, &q.Throttled, &lost
	}
	for _, id := range slices.Sorted(maps.Keys(c.NUMABytes)) {
		out.NumaMemory = append(out.NumaMemory, &nodev1.NUMAMemory{NumaNode: uint32(id), Bytes: c.NUMABytes[id]})
	}
	for _, size := range slices.Sorted(maps.Keys(c.HugePageBytes)) {
		out.HugePages = append(out.HugePages, &nodev1.HugePageUsage{PageSizeBytes: uint64(size), Bytes: c.HugePageBytes[size]})
	}
	return out
}

func microseconds(d *time.Duration) *uint64 {
	if d == nil {
		return nil
	}
	n := uint64(max(0, d.Microseconds()))
	return &n
}
