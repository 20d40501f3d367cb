package qos_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	qosv1 "github.com/berthd/berth/api/berth/qos/v1"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/rpc/qos"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type tiers struct {
	ops  []cgroup.Op
	err  error
	none bool
}

func (t *tiers) HasTiers() bool { return !t.none }

func (t *tiers) UpdateTiers(context.Context) ([]cgroup.Op, error) { return t.ops, t.err }

func TestService(t *testing.T) {
	t.Parallel()
	layout, err := cgroup.NewLayout("/berth", cgroup.Systemd)
	if err != nil {
		t.Fatal(err)
	}
	tiers := &tiers{ops: []cgroup.Op{{Kind: cgroup.Set, Name: cgroup.Name{"a"}, Writes: []cgroup.Write{{File: "cpu.weight", New: "4"}}}}}
	client := qosv1.NewQOSServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		qosv1.RegisterQOSServiceServer(s, qos.New(tiers, layout))
	}))
	info, err := client.GetQOSContainersInfo(t.Context(), &qosv1.GetQOSContainersInfoRequest{})
	if err != nil || info.GetGuaranteed() != "/berth.slice/berth-kubepods.slice" ||
		info.GetBurstable() != "/berth.slice/berth-kubepods.slice/berth-kubepods-burstable.slice" ||
		info.GetBestEffort() != "/berth.slice/berth-kubepods.slice/berth-kubepods-besteffort.slice" {
		t.Errorf("%v, %v", info, err)
	}
	tiers.none = true
	if info, err = client.GetQOSContainersInfo(t.Context(), &qosv1.GetQOSContainersInfoRequest{}); err != nil || info.String() != "" {
		t.Errorf("without tiers: %v, %v", info, err)
	}
	done, err := client.UpdateCgroups(t.Context(), &qosv1.UpdateCgroupsRequest{})
	if err != nil || len(done.GetWrites()) != 1 || done.GetWrites()[0].GetCgroup() != "/a" {
		t.Errorf("%v, %v", done, err)
	}
	tiers.err = errdefs.Unavailablef("device or resource busy")
	if _, err := client.UpdateCgroups(t.Context(), &qosv1.UpdateCgroupsRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a refusal of the kernel: %v", err)
	}
}
