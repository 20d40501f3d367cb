package observe

import (
	"context"
	"errors"
	"fmt"
	"io"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/server/internal/nodecheck"
)

// mostMoves is the most pods that would have to move.
const mostMoves = 16

// aligned reports whether a configuration wants the CPUs of a pod on as few NUMA nodes as possible.
func aligned(c config.Config) bool {
	return c.CPU.Policy == cpu.PolicyStatic && (c.Topology.Policy == topology.Restricted || c.Topology.Policy == topology.SingleNUMANode)
}

// scattered finds how far the free CPUs of a node are apart: what fits on one NUMA node now, and what would fit if other pods were
// elsewhere. nil if a kubelet with this configuration does not align CPUs.
func scattered(ctx context.Context, n *Node, c config.Config) (*nodecheck.Scattered, error) {
	answer, err := fitv1.NewFitServiceClient(n).GetFreeResources(ctx, &fitv1.GetFreeResourcesRequest{})
	if err != nil {
		return nil, err
	}
	var out nodecheck.Scattered
	most := 0
	for _, node := range answer.GetFree().GetNodes() {
		for _, r := range node.GetResources() {
			if r.GetResource() == "cpu" && r.GetAligned() {
				free := int(r.GetAvailable())
				out.Fits, out.Free, most = max(out.Fits, free), out.Free+free, max(most, int(r.GetAllocatable()))
			}
		}
	}
	step := 1
	if c.CPU.Options["full-pcpus-only"] == "true" {
		step = n.threads
	}
	// The first that fits is the most, from above in halves. Less than half as much again is not worth a finding.
	for want := min(out.Free, most); 2*want >= 3*out.Fits && want/step*step > out.Fits; want = (want + out.Fits) / 2 {
		want = want / step * step
		moves, err := n.movesFor(ctx, want)
		if err != nil {
			return nil, err
		}
		if len(moves) > 0 {
			out.Possible, out.Moves = want, moves
			break
		}
	}
	return &out, nil
}

// movesFor names the pods that would have to move for a pod with exclusive CPUs; none if that does not help.
func (n *Node) movesFor(ctx context.Context, cpus int) (moves []string, err error) {
	stream, err := admissionv1.NewAdmissionServiceClient(n).Defragment(ctx, &admissionv1.DefragmentRequest{
		DryRun: true, MaxMoves: mostMoves, Pod: &typesv1.Pod{
			Metadata: &typesv1.PodMetadata{Name: "wide", Namespace: "check", Uid: "check-wide"},
			Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "c", Resources: &typesv1.ResourceRequirements{
				Limits: map[string]string{"cpu": fmt.Sprint(cpus), "memory": "1Mi"},
			}}}},
		},
	})
	if err != nil {
		return nil, err
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return moves, nil
		}
		if err != nil {
			return nil, err
		}
		if plan := event.GetPlan(); plan.GetFits() {
			for _, m := range plan.GetMoves() {
				moves = append(moves, m.GetNamespace()+"/"+m.GetName())
			}
		}
	}
}
