package page

import (
	"context"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
)

// recently is for how long a rejection needs attention.
const recently = time.Hour

// attention is what a person may have to do something about, as far as berthd has it and the user may read it: recent rejections,
// findings of the ledger's check, the status of the node, and values of cgroups that another program has changed. Devices, plugins and
// offline CPUs are in the other answers.
func (s *server) attention(ctx context.Context, _ *http.Request) (any, error) {
	inspect, node := inspectv1.NewInspectServiceClient(s.Conn), nodev1.NewNodeServiceClient(s.Conn)
	out, untold := object{}, map[string]string{}
	var failed error
	for name, read := range map[string]func() (proto.Message, error){
		"rejections": func() (proto.Message, error) { return s.rejections(ctx, inspect) },
		"check": func() (proto.Message, error) {
			m, err := inspect.Check(ctx, &inspectv1.CheckRequest{})
			return m, err
		},
		"status": func() (proto.Message, error) {
			m, err := node.GetStatus(ctx, &nodev1.GetStatusRequest{})
			return m, err
		},
		"usage": func() (proto.Message, error) {
			m, err := node.GetUsage(ctx, &nodev1.GetUsageRequest{})
			if m != nil {
				m.CpuTimes, m.Containers = nil, nil
			}
			return m, err
		},
	} {
		m, err := read()
		switch status.Code(err) {
		case codes.OK:
			out[name] = m
		case codes.PermissionDenied, codes.Unimplemented, codes.FailedPrecondition:
			untold[name] = status.Convert(err).Message()
		default:
			failed = err
		}
	}
	if failed != nil {
		return nil, failed
	}
	out["untold"] = untold
	return out, nil
}

// rejections are the newest explanations of pods that were refused recently.
func (s *server) rejections(ctx context.Context, from inspectv1.InspectServiceClient) (proto.Message, error) {
	list, err := from.ListTraces(ctx, &inspectv1.ListTracesRequest{Refused: true})
	if err != nil {
		return nil, err
	}
	since := time.Now().Add(-recently)
	recent := list.GetTraces()[:0]
	for _, t := range list.GetTraces() {
		if t.GetDecideTime().AsTime().After(since) {
			recent = append(recent, t)
		}
	}
	list.Traces = recent
	return list, nil
}
