package allocations_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/allocations"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

func nodes(ids ...uint32) *typesv1.NUMANodeSet { return &typesv1.NUMANodeSet{Ids: ids} }

func TestPods(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c2t")})
	whole := ledgertest.With(ledgertest.Pod("u2", "init:prepare", "main", "rest"),
		ledgertest.CPUs("", "2-5", ledger.CPUPod), ledgertest.CPUs("main", "2-3", ledger.CPUPodExclusive),
		ledgertest.CPUs("rest", "4-5", ledger.CPUPodShared))
	whole.Claims[1].Affinity = &ledger.Affinity{Nodes: numa.Of(0), Preferred: true}
	whole.CgroupParent, whole.AdmittedAt = "/kubepods/podu2", time.Unix(99, 5)
	view, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutPod(whole)
		for _, uid := range []string{"u1", "u3", "u4"} {
			p := ledgertest.Pod(uid)
			p.Pod.Namespace = map[string]string{"u1": "z", "u3": "default", "u4": "a"}[uid]
			p.Pod.Name = "pod-u2"
			p.QoS = workload.Burstable
			d.PutPod(p)
		}
		d.Bind(ledger.Binding{ID: "new", Owner: ledger.Owner{Pod: "u2", Container: "main"}, Sequence: 2})
		d.Bind(ledger.Binding{ID: "old", Owner: ledger.Owner{Pod: "u2", Container: "main"}, Sequence: 1})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	claims := convert.Claims(whole.Claims)
	for _, c := range claims { // the allocation around them has their owners
		c.PodUid, c.ContainerName = "", ""
	}
	want := &typesv1.PodAllocation{
		Uid: "u2", Namespace: "default", Name: "pod-u2", QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED,
		CgroupParent: "/kubepods/podu2", AdmissionId: "admission-u2", AdmitTime: timestamppb.New(time.Unix(99, 5)), Owner: "default",
		Claims: claims[:1],
		Containers: []*typesv1.ContainerAllocation{
			{ContainerName: "prepare", Role: typesv1.ContainerRole_CONTAINER_ROLE_INIT},
			{
				ContainerName: "main", Role: typesv1.ContainerRole_CONTAINER_ROLE_APP, Cpus: &typesv1.CPUSet{List: "2-3"},
				ExclusiveCpus: true,
				Affinity:      &typesv1.TopologyHint{NumaNodes: nodes(0), Preferred: true}, Claims: claims[1:2],
				ContainerIds: []string{"old", "new"},
				CpuLocations: []*typesv1.CPULocation{{Cpu: 2, Core: 2}, {Cpu: 3, Core: 3}},
			},
			{ContainerName: "rest", Role: typesv1.ContainerRole_CONTAINER_ROLE_APP, Cpus: &typesv1.CPUSet{List: "4-5"}, Claims: claims[2:]},
		},
	}
	if got := allocations.Pod(view, whole); !proto.Equal(got, want) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
	}
	if got := allocations.Container(view, whole, "main"); !proto.Equal(got, want.GetContainers()[1]) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want.GetContainers()[1])
	}
}

// TestUnadmitted: of a pod that is not in the ledger, an agent learns what is known: its containers with their ids and claims.
func TestUnadmitted(t *testing.T) {
	t.Parallel()
	held := ledgertest.With(ledgertest.Pod("u1", "main"),
		ledgertest.CPUs("", "2-5", ledger.CPUPod), ledgertest.CPUs("main", "2-3", ledger.CPUPodExclusive)).Claims
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c2t")})
	view, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutUnknownLive(ledger.UnknownLivePod{
			UID: "u1", Namespace: "default", Name: "job", Source: ledger.FromClaimRecord, QoS: workload.Guaranteed, OwnedBy: "agent",
			Claims:   held,
			Bindings: []ledger.RecordedBinding{{ID: "id-1", Container: "main"}, {ID: "id-2", Container: "shared"}},
		})
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "u2", DevicesUnknown: true})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	claims := convert.Claims(held)
	for _, c := range claims {
		c.PodUid, c.ContainerName = "", ""
	}
	for _, want := range []*typesv1.PodAllocation{
		{
			Uid: "u1", Namespace: "default", Name: "job", QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED, Owner: "agent",
			Claims: claims[:1],
			Containers: []*typesv1.ContainerAllocation{
				{
					ContainerName: "main", ContainerIds: []string{"id-1"},
					Cpus: &typesv1.CPUSet{List: "2-3"}, ExclusiveCpus: true,
					Claims: claims[1:], CpuLocations: []*typesv1.CPULocation{{Cpu: 2, Core: 2}, {Cpu: 3, Core: 3}},
				},
				{ContainerName: "shared", ContainerIds: []string{"id-2"}},
			},
		},
		{Uid: "u2"},
	} {
		u, ok := view.UnknownLivePod(want.GetUid())
		if got := allocations.Unadmitted(view, &u); !ok || !proto.Equal(got, want) {
			t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
		}
	}
}
