package page

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/sentences"
)

// state is what the managers have now.
func (s *server) state(ctx context.Context, _ *http.Request) (any, error) { return s.stateAt(ctx, nil) }

// stateAt is what the managers have or had, of one revision as far as there is a quiet moment.
func (s *server) stateAt(ctx context.Context, at *typesv1.Moment) (object, error) {
	var cpu *cpuv1.GetStateResponse
	var memory *memoryv1.GetStateResponse
	var device *devicev1.GetStateResponse
	var err error
	for range 3 {
		if cpu, err = cpuv1.NewCPUServiceClient(s.Conn).GetState(ctx, &cpuv1.GetStateRequest{At: at}); err != nil {
			return nil, err
		}
		if memory, err = memoryv1.NewMemoryServiceClient(s.Conn).GetState(ctx, &memoryv1.GetStateRequest{At: at}); err != nil {
			return nil, err
		}
		if device, err = devicev1.NewDeviceServiceClient(s.Conn).GetState(ctx, &devicev1.GetStateRequest{At: at}); err != nil {
			return nil, err
		}
		if cpu.GetRevision() == memory.GetRevision() && cpu.GetRevision() == device.GetRevision() {
			break
		}
	}
	cpu.Assignments, memory.Assignments = nil, nil // pods have their claims
	return object{"cpu": cpu, "memory": memory, "device": device}, nil
}

// past is the state with its pods at a revision, or at a time. What the state of the past costs is bounded as a trial is.
func (s *server) past(ctx context.Context, r *http.Request) (any, error) {
	text, at := r.FormValue("at"), &typesv1.Moment{}
	if revision, err := strconv.ParseUint(text, 10, 64); err == nil {
		at.Moment = &typesv1.Moment_Revision{Revision: revision}
	} else if when, err := time.Parse(time.RFC3339Nano, text); err == nil {
		at.Moment = &typesv1.Moment_Time{Time: timestamppb.New(when)}
	} else {
		return nil, status.Errorf(codes.InvalidArgument, "at: %.40q: expected a revision, or a time such as 2026-11-20T03:00:00Z", text)
	}
	if err := s.allow(ctx); err != nil {
		return nil, err
	}
	out, err := s.stateAt(ctx, at)
	if err != nil {
		return nil, err
	}
	list, err := allocationv1.NewAllocationServiceClient(s.Conn).List(ctx, &allocationv1.ListRequest{At: at})
	if err != nil {
		return nil, err
	}
	machine, err := nodev1.NewNodeServiceClient(s.Conn).GetMachine(ctx, &nodev1.GetMachineRequest{At: at})
	if err != nil {
		return nil, err
	}
	machine.SnapshotJson = nil
	out["list"], out["machine"] = list, machine
	return out, nil
}

// historyPage is how many entries of the history an answer has.
const historyPage = 200

// history is the calls that changed something, or that were refused, the newest first, without what was requested.
func (s *server) history(ctx context.Context, r *http.Request) (any, error) {
	list, err := inspectv1.NewInspectServiceClient(s.Conn).ListHistory(ctx, &inspectv1.ListHistoryRequest{
		PageSize: historyPage, PageToken: r.FormValue("page"),
	})
	if err != nil {
		return nil, err
	}
	callers := map[string]string{}
	for _, e := range list.GetEntries() {
		e.Request, e.Steps = "", nil
		if e.GetCaller() != nil {
			callers[strconv.FormatUint(e.GetNumber(), 10)] = sentences.Caller(e.GetCaller())
		}
	}
	return object{"list": list, "callers": callers}, nil
}
