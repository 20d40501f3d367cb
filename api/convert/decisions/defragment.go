package decisions

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/allocations"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/live"
)

// defaultMoves is the number of moves of a request without one.
const defaultMoves = 4

// ReadDefragment reads a request for room, and its pod with a reader. Violations name the field's path.
func ReadDefragment(r convert.Reader, m *admissionv1.DefragmentRequest) (live.DefragmentRequest, error) {
	var vs errdefs.Violations
	convert.Owner("owner", m.GetOwner(), &vs)
	moves := int(m.GetMaxMoves())
	if moves == 0 {
		moves = defaultMoves
	}
	if moves > live.MaxMoves {
		vs.Addf("max_moves", "%d: expected 1 to %d", moves, live.MaxMoves)
	}
	if rate := m.GetBytesPerSecond(); rate > 0 && rate < live.LeastMoveRate {
		vs.Addf("bytes_per_second", "%d: expected at least %d, because other moves of memory wait meanwhile", rate, live.LeastMoveRate)
	}
	if err := vs.Err("request"); err != nil {
		return live.DefragmentRequest{}, err
	}
	pod, err := r.Pod(m.GetPod())
	return live.DefragmentRequest{Pod: pod, Owner: m.GetOwner(), MaxMoves: moves}, err
}

// DefragmentEvent returns the message form of an event.
func DefragmentEvent(e live.DefragmentEvent) *admissionv1.DefragmentResponse {
	switch {
	case e.Plan != nil:
		return &admissionv1.DefragmentResponse{Event: &admissionv1.DefragmentResponse_Plan{Plan: defragmentPlan(e.Plan)}}
	case e.Progress != nil:
		return &admissionv1.DefragmentResponse{Event: &admissionv1.DefragmentResponse_Progress{Progress: &admissionv1.MoveProgress{
			PodUid: e.Progress.UID, ArrivedBytes: e.Progress.ArrivedBytes, AllBytes: e.Progress.AllBytes,
		}}}
	case e.Moved != nil:
		return &admissionv1.DefragmentResponse{Event: &admissionv1.DefragmentResponse_Moved{Moved: podMoved(e.Moved)}}
	}
	return &admissionv1.DefragmentResponse{Event: &admissionv1.DefragmentResponse_Result{Result: &admissionv1.DefragmentResult{
		Fits: e.Result.Fits, Moved: uint32(e.Result.Moved), Why: e.Result.Why,
	}}}
}

func defragmentPlan(d *live.Defragmentation) *admissionv1.DefragmentPlan {
	out := &admissionv1.DefragmentPlan{
		Verdict: verdicts[d.Outcome], Reason: string(d.Reason), Message: d.Message, Fits: d.Fits(), Why: d.Why,
	}
	if d.Fits() {
		if pod, ok := d.After.Pod(d.UID); ok {
			out.Allocation = allocations.Pod(d.After, pod)
		}
	}
	for _, m := range d.Moves {
		move := &admissionv1.PlannedMove{PodUid: m.UID, Plan: MovePlan(m.Plan)}
		if pod, ok := d.After.Pod(m.UID); ok {
			move.Namespace, move.Name = pod.Pod.Namespace, pod.Pod.Name
		}
		out.Moves = append(out.Moves, move)
	}
	return out
}

func podMoved(m *live.PodMoved) *admissionv1.PodMoved {
	since := func(before, after *time.Duration) *durationpb.Duration {
		if before == nil || after == nil {
			return nil
		}
		return durationpb.New(max(0, *after-*before))
	}
	return &admissionv1.PodMoved{
		PodUid: m.UID, Duration: durationpb.New(m.Took),
		Throttled:      since(m.Before.Throttled, m.After.Throttled),
		CpuPressure:    since(m.Before.CPUPressure, m.After.CPUPressure),
		MemoryPressure: since(m.Before.MemoryPressure, m.After.MemoryPressure),
		BytesBefore:    byNode(m.Before.NodeBytes), BytesAfter: byNode(m.After.NodeBytes),
	}
}

func byNode(bytes map[int]uint64) map[uint32]uint64 {
	out := make(map[uint32]uint64, len(bytes))
	for id, n := range bytes {
		out[uint32(id)] = n
	}
	return out
}
