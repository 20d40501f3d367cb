package main

import (
	"context"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
)

// fakeFit has a pod that fits, one that fits later, one that fits after moves, and others that never do.
type fakeFit struct {
	fitv1.UnimplementedFitServiceServer
	*fake
}

func (f fakeFit) free() *fitv1.FreeResources {
	out := &fitv1.FreeResources{
		Revision: 7, TopologyPolicy: "single-numa-node", TopologyScope: "pod", CpuPolicy: "static", MemoryPolicy: "None",
		PodsFingerprint: "pfp0v001607b76a0e9d3aeb4",
	}
	for node := range uint32(2) {
		n := &fitv1.NUMANode{NumaNode: node, Distances: map[uint32]uint32{node: 10, 1 - node: 21}, Resources: []*fitv1.NodeResource{
			{Resource: "cpu", Capacity: 4, Allocatable: 4 - uint64(1-node), Available: 2 * uint64(node), Aligned: true},
			{Resource: "memory", Capacity: 64 << 30, Allocatable: 63 << 30, Available: 63 << 30},
		}}
		if node == 1 && !f.empty {
			n.Resources = append(n.Resources, &fitv1.NodeResource{Resource: "example.com/gpu", Capacity: 2, Allocatable: 2, Available: 1,
				Aligned: true})
		}
		out.Nodes = append(out.Nodes, n)
	}
	return out
}

func (f fakeFit) Fit(_ context.Context, req *fitv1.FitRequest) (*fitv1.FitResponse, error) {
	f.ask(req)
	out := &fitv1.FitResponse{Free: f.free()}
	for i, p := range req.GetPods() {
		fits := &fitv1.PodFit{Uid: p.GetMetadata().GetUid(), Namespace: p.GetMetadata().GetNamespace(), Name: p.GetMetadata().GetName()}
		switch i {
		case 0:
			fits.Fit, out.Now = fitv1.FitTime_FIT_TIME_NOW, 1
		case 1:
			fits.Fit, out.Later = fitv1.FitTime_FIT_TIME_LATER, 1
		case 2:
			fits.Fit, out.AfterDefragmentation = fitv1.FitTime_FIT_TIME_AFTER_DEFRAGMENTATION, 1
			fits.Moves, fits.MovedBytes, out.Moves, out.MovedBytes, out.SearchLimited = 2, 1<<30, 2, 1<<30, true
		default:
			fits.Fit, out.Never = fitv1.FitTime_FIT_TIME_NEVER, out.Never+1
		}
		if i > 0 {
			fits.Reason, fits.Message = "TopologyAffinityError", "Resources cannot be allocated with Topology locality"
		}
		out.Pods = append(out.Pods, fits)
	}
	return out, nil
}

func (f fakeFit) GetFreeResources(_ context.Context, req *fitv1.GetFreeResourcesRequest) (*fitv1.GetFreeResourcesResponse, error) {
	f.ask(req)
	return &fitv1.GetFreeResourcesResponse{Free: f.free()}, nil
}
