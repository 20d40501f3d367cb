package main

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
)

type fakeBus struct {
	hintv1.UnimplementedHintBusServiceServer
	*fake
}

func (f fakeBus) Unregister(_ context.Context, req *hintv1.UnregisterRequest) (*hintv1.UnregisterResponse, error) {
	if req.GetProvider() != "power" {
		return nil, status.Errorf(codes.NotFound, "no provider outside berthd is registered as %q", req.GetProvider())
	}
	return &hintv1.UnregisterResponse{Revision: 12}, nil
}

func (f fakeBus) ListProviders(context.Context, *hintv1.ListProvidersRequest) (*hintv1.ListProvidersResponse, error) {
	list := []*hintv1.Provider{
		{Name: "device", BuiltIn: true, Mode: hintv1.Mode_MODE_REQUIRED},
		{Name: "cpu", BuiltIn: true, Mode: hintv1.Mode_MODE_REQUIRED},
	}
	if f.empty {
		return &hintv1.ListProvidersResponse{Providers: list}, nil
	}
	return &hintv1.ListProvidersResponse{Providers: append(list,
		&hintv1.Provider{
			Name: "nic", Mode: hintv1.Mode_MODE_REQUIRED, Endpoint: "/run/nic/nic.sock", Deadline: durationpb.New(time.Second),
			Resources: []string{"example.com/nic", "example.com/vf"}, State: hintv1.State_STATE_CONNECTED,
			Leases: []*hintv1.Lease{{AdmissionId: "ADMISSION1", ExpireTime: timestamppb.New(testNow.Add(40 * time.Second))}},
		},
		&hintv1.Provider{
			Name: "power", Mode: hintv1.Mode_MODE_ADVISORY, Endpoint: "/run/power.sock", Deadline: durationpb.New(1500 * time.Millisecond),
			Index: 2, State: hintv1.State_STATE_SUSPENDED, Message: "provider power did not answer GetHints within 1.5s",
		},
		&hintv1.Provider{
			Name: "fpga", Mode: hintv1.Mode_MODE_REQUIRED, State: hintv1.State_STATE_AWAY,
			Message: "the configuration requires it, and it has not registered",
		},
	)}, nil
}
