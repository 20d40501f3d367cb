package hintbus_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/internal/hintproxy"
	"github.com/berthd/berth/server/internal/rpc/hintbus"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// registry records its calls, and fails if that is set.
type registry struct {
	err        error
	registered []ledger.ExternalProvider
	gone       []string
	list       []hintproxy.Status
}

func (r *registry) Register(_ context.Context, o ledger.ExternalProvider) error {
	r.registered = append(r.registered, o)
	return r.err
}

func (r *registry) Unregister(_ context.Context, name string) error {
	r.gone = append(r.gone, name)
	return r.err
}

func (r *registry) List() []hintproxy.Status { return r.list }

func serve(t *testing.T, r *registry) hintv1.HintBusServiceClient {
	return hintv1.NewHintBusServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		hintv1.RegisterHintBusServiceServer(s, hintbus.New(r, ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})))
	}))
}

func TestRegister(t *testing.T) {
	t.Parallel()
	good := &hintv1.RegisterRequest{
		Provider: "nic", Endpoint: "/run/nic.sock", Mode: hintv1.Mode_MODE_REQUIRED,
		Deadline: durationpb.New(time.Second), Resources: []string{"example.com/nic"}, Index: -2,
		Capabilities: []hintv1.Capability{hintv1.Capability_CAPABILITY_EXPLAIN, hintv1.Capability_CAPABILITY_VALIDATE},
	}
	change := func(f func(*hintv1.RegisterRequest)) *hintv1.RegisterRequest {
		m := proto.Clone(good).(*hintv1.RegisterRequest)
		f(m)
		return m
	}
	invalid := func(text string, fields ...string) rpctest.Failure {
		return rpctest.Failure{Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Message: text, Fields: fields}
	}
	for name, row := range map[string]struct {
		req  *hintv1.RegisterRequest
		err  error
		want rpctest.Failure
	}{
		"good": {good, nil, rpctest.Failure{}},
		"advisory": {change(func(m *hintv1.RegisterRequest) { m.Mode, m.Deadline = hintv1.Mode_MODE_ADVISORY, nil }), nil,
			rpctest.Failure{}},
		"empty": {&hintv1.RegisterRequest{}, nil, invalid("request is invalid: provider: is required (and 2 more)",
			"provider", "endpoint", "mode")},
		"no time": {change(func(m *hintv1.RegisterRequest) { m.Deadline = durationpb.New(0) }), nil,
			invalid("request is invalid: deadline: expected a positive duration", "deadline")},
		"no capability": {change(func(m *hintv1.RegisterRequest) { m.Capabilities[1] = 99 }), nil,
			invalid("request is invalid: capabilities[1]: expected VALIDATE or EXPLAIN", "capabilities[1]")},
		"unreachable": {good, errdefs.Unavailablef("register provider nic: nobody answers"),
			rpctest.Failure{Code: codes.Unavailable, Reason: "TEMPORARILY_UNAVAILABLE", Message: "register provider nic: nobody answers",
				Retry: true}},
	} {
		r := &registry{err: row.err}
		_, err := serve(t, r).Register(t.Context(), row.req)
		t.Run(name, func(t *testing.T) { row.want.Check(t, err) })
		if row.want.Code == codes.InvalidArgument != (len(r.registered) == 0) {
			t.Errorf("%s: the registry was told %+v", name, r.registered)
		}
		want := ledger.ExternalProvider{
			Name: "nic", Endpoint: "/run/nic.sock", Required: true, Deadline: time.Second,
			Resources: []string{"example.com/nic"}, Index: -2, Validates: true, Explains: true,
		}
		if name == "good" && !reflect.DeepEqual(r.registered, []ledger.ExternalProvider{want}) {
			t.Errorf("the registry was told %+v, want %+v", r.registered, want)
		}
		if name == "advisory" && (r.registered[0].Required || r.registered[0].Deadline != 0) {
			t.Errorf("the registry was told %+v", r.registered)
		}
	}
}

func TestUnregister(t *testing.T) {
	t.Parallel()
	r := &registry{err: errdefs.NotFoundf("no such provider")}
	client := serve(t, r)
	_, err := client.Unregister(t.Context(), &hintv1.UnregisterRequest{})
	rpctest.Failure{
		Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Message: "request is invalid: provider: is required",
		Fields: []string{"provider"},
	}.Check(t, err)
	_, err = client.Unregister(t.Context(), &hintv1.UnregisterRequest{Provider: "nic"})
	rpctest.Failure{Code: codes.NotFound, Reason: "OBJECT_NOT_FOUND", Message: "no such provider"}.Check(t, err)
	if !reflect.DeepEqual(r.gone, []string{"nic"}) {
		t.Errorf("the registry was told %q", r.gone)
	}
}

func TestListProviders(t *testing.T) {
	t.Parallel()
	end := time.Unix(1000, 0)
	client := serve(t, &registry{list: []hintproxy.Status{
		{BuiltIn: true, ExternalProvider: ledger.ExternalProvider{Name: "cpu", Required: true}},
		{
			ExternalProvider: ledger.ExternalProvider{
				Name: "nic", Endpoint: "/nic", Deadline: time.Second, Index: 1, Resources: []string{"example.com/nic"},
				Validates: true, Explains: true,
			},
			State: hintproxy.Suspended, Message: "it has failed", Leases: []ledger.Lease{{AdmissionID: "adm", Expires: end}},
		},
	}})
	got, err := client.ListProviders(t.Context(), &hintv1.ListProvidersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &hintv1.ListProvidersResponse{Providers: []*hintv1.Provider{
		{Name: "cpu", BuiltIn: true, Mode: hintv1.Mode_MODE_REQUIRED},
		{
			Name: "nic", Mode: hintv1.Mode_MODE_ADVISORY, Endpoint: "/nic", Deadline: durationpb.New(time.Second), Index: 1,
			Resources: []string{"example.com/nic"}, State: hintv1.State_STATE_SUSPENDED, Message: "it has failed",
			Leases:       []*hintv1.Lease{{AdmissionId: "adm", ExpireTime: timestamppb.New(end)}},
			Capabilities: []hintv1.Capability{hintv1.Capability_CAPABILITY_VALIDATE, hintv1.Capability_CAPABILITY_EXPLAIN},
		},
	}}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
