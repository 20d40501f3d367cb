// Package state serves berth.cpu.v1, berth.memory.v1 and berth.device.v1: the policies of
// the managers, what is allocated and what is free, who holds what, and the hints for a
// pod. Only ForgetResource changes anything.
package state

import (
	"context"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc"
)

// Ledger returns the current view, and earlier ones.
type Ledger = rpc.Past

// Hinter requests the hints for a pod, or one of its containers, without planning;
// *admission.Engine implements it.
type Hinter interface {
	Hints(ctx context.Context, pod workload.Pod, container string) ([]hint.Reply, error)
}

// Parts hold what all of the services read.
type Parts struct {
	Ledger Ledger
	Hinter Hinter
	// Read reads the pods of requests.
	Read convert.Reader
}

// hints returns the answers of one provider for the pod or container of a request.
func (p Parts) hints(ctx context.Context, req interface {
	GetPod() *typesv1.Pod
	GetContainerName() string
}, provider string) ([]*typesv1.TopologyHints, error) {
	pod, err := p.Read.Pod(req.GetPod())
	if err != nil {
		return nil, err
	}
	replies, err := p.Hinter.Hints(ctx, pod, req.GetContainerName())
	if err != nil {
		return nil, err
	}
	return convert.AnswersOf(provider, replies), nil
}
