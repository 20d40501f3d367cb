package node_test

import (
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/rpc/node"
	"github.com/berthd/berth/server/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, m *machine.Topology) *nodev1.GetMachineResponse {
	t.Helper()
	client := nodev1.NewNodeServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		nodev1.RegisterNodeServiceServer(s, node.New(m))
	}))
	got, err := client.GetMachine(t.Context(), &nodev1.GetMachineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestGetMachine(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("2s1n1c2t1m,adjacent,mem=1Gi,huge=2Mi:8", machinetest.Offline("3"))
	got := get(t, m)
	want := &nodev1.GetMachineResponse{
		Cpus: []*nodev1.CPU{
			{Id: 0, Core: 0, Socket: 0, NumaNode: 0, UncoreCache: 0},
			{Id: 1, Core: 0, Socket: 0, NumaNode: 0, UncoreCache: 0},
			{Id: 2, Core: 2, Socket: 1, NumaNode: 1, UncoreCache: 1},
		},
		Nodes: []*nodev1.NUMANode{
			{Id: 0, Cpus: "0-1", MemoryBytes: 1 << 30, HugePages: []*nodev1.HugePages{{PageSizeKib: 2048, Count: 8}}, Distances: map[int32]int32{0: 10, 1: 20, 2: 20}},
			{Id: 1, Cpus: "2", MemoryBytes: 1 << 30, HugePages: []*nodev1.HugePages{{PageSizeKib: 2048, Count: 8}}, Distances: map[int32]int32{0: 20, 1: 10, 2: 20}},
			{Id: 2, MemoryBytes: 1 << 30, Distances: map[int32]int32{0: 20, 1: 20, 2: 10}},
		},
		OfflineCpus: "3", Fingerprint: m.Fingerprint(), SnapshotJson: got.GetSnapshotJson(),
	}
	if !proto.Equal(got, want) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
	}
}

// The snapshot makes the same machine elsewhere.
func TestSnapshotLoads(t *testing.T) {
	t.Parallel()
	for m := range machinetest.All() {
		t.Run(m.Snapshot().Name, func(t *testing.T) {
			t.Parallel()
			got := get(t, m)
			again, err := machine.Load(got.GetSnapshotJson())
			if err != nil {
				t.Fatal(err)
			}
			if again.Fingerprint() != got.GetFingerprint() || len(got.GetCpus()) != m.CPUs().Len() || len(got.GetNodes()) != m.NodeMask().Len() {
				t.Errorf("fingerprint %s of %d CPUs and %d nodes; the snapshot's is %s", got.GetFingerprint(), len(got.GetCpus()), len(got.GetNodes()), again.Fingerprint())
			}
		})
	}
}
