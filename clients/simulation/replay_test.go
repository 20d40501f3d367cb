package simulation_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/server/servertest"
)

// node is a berthd that is called at random, and the state that a test expects.
type node struct {
	t      testing.TB
	config config.Config
	stop   func()
	client *berth.Client
	uids   []string // admitted at some time
	last   int
}

func machineOf(t testing.TB, shape string) *machine.Topology {
	t.Helper()
	snapshot, err := machine.ParseShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.New(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// startNode starts a berthd on a simulated machine.
func startNode(t testing.TB, shape string, entries int) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "replay") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := config.Default()
	c.RootDir, c.Listen, c.StateDir = dir, dir+"/b.sock", dir+"/state"
	c.DevicePluginDir, c.PodResourcesDir, c.PluginRegistryDir = new(""), new(""), new("")
	c.Machine, c.Cgroups.Tree = shape, config.TreeMemory
	c.Memory.Policy, c.Memory.AllowUnreserved, c.Reserved.EvictionHard = "Static", true, map[string]string{}
	c.CPU.Policy, c.Topology.Policy, c.Reserved.CPUs = "static", topology.SingleNUMANode, cpuset.Of(0)
	c.Devices.Unknown, c.History.Entries = config.UnknownIgnore, entries
	n := &node{t: t, config: c}
	n.start()
	t.Cleanup(func() { n.halt() })
	return n
}

func (n *node) start() {
	n.stop = servertest.Start(n.t, n.config)
	var err error
	if n.client, err = berth.Dial(context.Background(), n.config.Listen, berth.Options{}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) halt() {
	if n.stop != nil {
		_ = n.client.Close()
		n.stop()
		n.stop = nil
	}
}

// ledgerFile is where the ledger is.
func (n *node) ledgerFile() string { return filepath.Join(n.config.StateDir, "ledger.db") }

// admit admits a new pod; it may be rejected.
func (n *node) admit(cpu, memoryGi, init int) {
	n.last++
	p := guaranteed(fmt.Sprintf("u%d", n.last), cpu, 0)
	for _, r := range []map[string]string{p.GetSpec().GetContainers()[0].GetResources().GetLimits()} {
		r["memory"] = fmt.Sprintf("%dGi", memoryGi)
	}
	if init > 0 {
		p.Spec.InitContainers = []*typesv1.Container{{
			Name: "init", Resources: &typesv1.ResourceRequirements{Limits: map[string]string{"cpu": strconv.Itoa(init), "memory": "1Gi"}},
		}}
	}
	n.uids = append(n.uids, p.GetMetadata().GetUid())
	if _, err := n.client.Admission().Admit(context.Background(),
		&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: p}}); err != nil {
		n.t.Fatal(err)
	}
}

// resize resizes a pod, and waits until a move has ended: between its steps, other decisions would be made at
// moments that no record has. It may be refused.
func (n *node) resize(uid string, amounts map[string]string, maxMove admissionv1.Disruption) *admissionv1.ResizeResponse {
	n.t.Helper()
	answer, _ := n.client.Admission().Resize(context.Background(), &admissionv1.ResizeRequest{
		PodUid: uid, MaxMoveDisruption: maxMove, Containers: []*admissionv1.ContainerResources{{
			ContainerName: "main", Resources: &typesv1.ResourceRequirements{Limits: amounts, Requests: amounts},
		}},
	})
	if answer.GetPlan() != nil {
		nodetest.Eventually(n.t, time.Minute, "the move has ended", func() bool {
			pod, err := n.client.Allocation().Get(context.Background(),
				&allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
			return err == nil && !pod.GetPod().GetMoving()
		})
	}
	return answer
}

// any makes a random call.
func (n *node) any(t *rapid.T) {
	ctx := context.Background()
	uid := "none"
	if len(n.uids) > 0 {
		uid = rapid.SampledFrom(n.uids).Draw(t, "uid")
	}
	switch rapid.IntRange(0, 10).Draw(t, "call") {
	case 0, 1, 2, 3:
		n.admit(rapid.IntRange(1, 8).Draw(t, "cpu"), rapid.IntRange(1, 40).Draw(t, "memory"), rapid.IntRange(0, 3).Draw(t, "init"))
	case 4, 5:
		_, _ = n.client.Admission().RemovePod(ctx, &admissionv1.RemovePodRequest{PodUid: uid})
	case 6, 10:
		amounts := map[string]string{"memory": strconv.Itoa(rapid.IntRange(1, 200).Draw(t, "size")) + "Gi"}
		if rapid.Bool().Draw(t, "cpus") {
			amounts = map[string]string{"cpu": strconv.Itoa(rapid.IntRange(1, 15).Draw(t, "cpu"))}
		}
		n.resize(uid, amounts, rapid.SampledFrom([]admissionv1.Disruption{0, admissionv1.Disruption_DISRUPTION_NONE}).Draw(t, "moves"))
	case 7:
		policy := rapid.SampledFrom([]string{"none", "best-effort", "restricted", "single-numa-node"}).Draw(t, "policy")
		if _, err := n.client.Topology().SetPolicy(ctx, &topologyv1.SetPolicyRequest{TopologyPolicy: proto.String(policy)}); err != nil {
			n.t.Fatal(err)
		}
	case 8:
		n.halt()
		n.start()
	case 9:
		list, err := n.client.List(ctx, &allocationv1.ListRequest{})
		if err != nil {
			n.t.Fatal(err)
		}
		var alive []string
		for _, p := range list.GetPods() {
			if rapid.Bool().Draw(t, "alive") {
				alive = append(alive, p.GetUid())
			}
		}
		if _, err := n.client.Admission().SyncPods(ctx, &admissionv1.SyncPodsRequest{ActivePodUids: alive,
			KnownRevision: list.GetRevision(), AllowEmpty: true}); err != nil {
			n.t.Fatal(err)
		}
	}
}

// replayed replays a bundle.
func replayed(t testing.TB, b *bundle.Bundle, scene simulation.Scene) *admissionv1.Replay {
	t.Helper()
	rec, err := simulation.RecordOf(b, scene.Machine)
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := scene.Replay(t.Context(), rec, simulation.ReplayOptions{Explain: 3,
		KeepAdmitted: scene.Config.Topology.Policy == topology.BestEffort})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// without returns a replay without the names that a mask replaces, and what follows from them.
func without(r *admissionv1.Replay) string {
	out := proto.CloneOf(r)
	for _, d := range out.GetDifferences() {
		d.PodUid, d.Namespace, d.Name, d.RecordedMessage = "", "", "", ""
		d.Replayed = &admissionv1.AdmitResponse{Verdict: d.GetReplayed().GetVerdict(), Reason: d.GetReplayed().GetReason()}
	}
	for _, p := range out.GetRefusedAtBegin() {
		p.Uid, p.Namespace, p.Name, p.Verdict = "", "", "", nil
	}
	out.Machine = ""
	return prototext.Format(out)
}

// skipsMore returns whether a replay has skipped more than resizes that were deferred.
func skipsMore(r *admissionv1.Replay) bool {
	return slices.ContainsFunc(r.GetSkipped(), func(s *admissionv1.SkippedVerdicts) bool { return s.GetReason() != "deferred" })
}

// TestReplayAgrees: whatever was called, with the same machine and configuration no verdict
// differs, whether the record is berthd's answer or its file, which berthd has open. The history
// begins in the middle where berthd keeps few entries. A masked record leads to the same verdicts,
// also with another configuration, and on another machine.
func TestReplayAgrees(t *testing.T) {
	t.Parallel()
	verdicts, differ, dropped := 0, 0, 0
	rapid.Check(t, func(r *rapid.T) {
		n := startNode(t, "2s1n8c2t", rapid.SampledFrom([]int{5, 1000}).Draw(r, "entries"))
		defer n.halt()
		for range rapid.IntRange(1, 30).Draw(r, "calls") {
			n.any(r)
		}
		live, err := bundle.Collect(n.client.Bundle(context.Background()))
		if err != nil {
			t.Fatal(err)
		}
		scene := simulation.Scene{Machine: machineOf(t, "2s1n8c2t"), Config: n.config}
		file, damage, err := bundle.FromLedger(t.Context(), n.ledgerFile(), nil)
		if err != nil || damage != nil {
			t.Fatal(damage, err)
		}
		a, b := replayed(t, live, scene), replayed(t, file, scene)
		if a.GetDiffer() != 0 || skipsMore(a) || a.GetMoved() != 0 || !a.GetSameConfiguration() || !a.GetSameMachine() {
			r.Fatalf("%s", prototext.Format(a))
		}
		// A refusal that waits for a commit is in berthd's answer only.
		if b.GetDiffer() != 0 || skipsMore(b) || b.GetMoved() != 0 || b.GetVerdicts() > a.GetVerdicts() {
			r.Fatalf("from the file: %s", prototext.Format(b))
		}
		verdicts += int(a.GetVerdicts())
		if a.GetBeginPods() > 0 {
			dropped++
		}
		other, smaller := scene, scene
		other.Config.Topology.Policy, other.Config.Reserved.CPUs = topology.BestEffort, cpuset.Of(0, 1, 2, 3)
		smaller.Machine = machineOf(t, "2s1n6c2t")
		changed := []*admissionv1.Replay{replayed(t, live, other), replayed(t, live, smaller)}
		if again := replayed(t, live, other); !proto.Equal(again, changed[0]) {
			r.Fatalf("a second replay differs:\n%s\n%s", prototext.Format(changed[0]), prototext.Format(again))
		}
		differ += int(changed[0].GetDiffer() + changed[1].GetDiffer())
		if err := live.Mask(); err != nil {
			t.Fatal(err)
		}
		for i, scene := range []simulation.Scene{other, smaller, scene} {
			want := a
			if i < len(changed) {
				want = changed[i]
			}
			if got := replayed(t, live, scene); without(got) != without(want) {
				r.Fatalf("masked:\n%s\nwant:\n%s", without(got), without(want))
			}
		}
	})
	if verdicts == 0 || differ == 0 || dropped == 0 {
		t.Errorf("%d verdicts were decided again, %d differed on other scenes, %d records began in the middle", verdicts, differ, dropped)
	}
}

// TestReplayOfAMove: a resize that moved is decided in the same way, and so is one that must not move.
func TestReplayOfAMove(t *testing.T) {
	t.Parallel()
	n := startNode(t, "2s1n8c2t", 1000)
	n.admit(8, 10, 0)
	n.admit(6, 1, 0)
	wide := map[string]string{"cpu": "12"}
	if refused := n.resize("u1", wide,
		admissionv1.Disruption_DISRUPTION_NONE); refused.GetVerdict() != admissionv1.Verdict_VERDICT_DEFERRED ||
		refused.GetMoveDisruption() != admissionv1.Disruption_DISRUPTION_MOVE_MEMORY {
		t.Fatal(refused)
	}
	if moved := n.resize("u1", wide, 0); len(moved.GetPlan().GetSteps()) != 3 {
		t.Fatal(moved)
	}
	n.admit(8, 10, 0) // on the CPUs that the move has freed
	live, err := bundle.Collect(n.client.Bundle(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	scene := simulation.Scene{Machine: machineOf(t, "2s1n8c2t"), Config: n.config}
	got := replayed(t, live, scene)
	if got.GetVerdicts() != 4 || got.GetDiffer() != 0 || got.GetMoved() != 0 || skipsMore(got) {
		t.Error(prototext.Format(got))
	}
	scene.Config.Reserved.CPUs = cpuset.Of(0, 1, 2, 3)
	if got := replayed(t, live, scene); got.GetVerdicts() != 4 || got.GetMoved() == 0 {
		t.Error("with other reserved CPUs:", prototext.Format(got))
	}
}
