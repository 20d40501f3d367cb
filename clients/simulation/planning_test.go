package simulation_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/topology"
)

// TestPlannings counts how many pods with an init container fit with each planning, as docs/configuration.md says.
func TestPlannings(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\d+), (\\d+) CPUs \\| (\\d+) \\| (\\d+) \\|$").FindAllStringSubmatch(string(doc), -1)
	if len(rows) != 4 {
		t.Fatalf("docs/configuration.md has %d rows", len(rows))
	}
	for _, row := range rows {
		app, err := strconv.Atoi(row[3])
		if err != nil {
			t.Fatal(err)
		}
		p := guaranteed("p", app, 0)
		p.Spec.InitContainers = []*typesv1.Container{{Name: "warm", Resources: &typesv1.ResourceRequirements{
			Limits: map[string]string{"cpu": row[2], "memory": "1Gi"}}}}
		for i, planning := range []topology.Planning{topology.ByContainer, topology.ByPod} {
			s := scene(t, row[1], topology.SingleNUMANode, "")
			s.Config.Topology.Planning = planning
			out, _, err := s.Run(t.Context(), nil, simulation.Options{More: p, Most: 100})
			if err != nil {
				t.Fatal(err)
			}
			if got := strconv.Itoa(int(out.GetRoom().GetPods())); got != row[4+i] {
				t.Errorf("%s, init %s, app %s, planning %s: %s pods fit, want %s", row[1], row[2], row[3], planning, got, row[4+i])
			}
		}
	}
}

// TestReplayPlansAsTheRecord: a replay decides again with the planning of its configuration, and what its map is drawn from has an
// init container on CPUs of its pod's app.
func TestReplayPlansAsTheRecord(t *testing.T) {
	t.Parallel()
	const shape = "1s2n8c"
	n := startNode(t, shape, 1000)
	for range 2 {
		n.admit(5, 1, 1)
	}
	live, err := bundle.Collect(n.client.Bundle(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	for planning, differ := range map[topology.Planning]uint32{topology.ByPod: 0, topology.ByContainer: 1} {
		s := simulation.Scene{Machine: machineOf(t, shape), Config: n.config}
		s.Config.Topology.Planning = planning
		rec, err := simulation.RecordOf(live, s.Machine)
		if err != nil {
			t.Fatal(err)
		}
		out, placed, err := s.Replay(t.Context(), rec, simulation.ReplayOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if out.GetVerdicts() != 2 || out.GetDiffer() != differ {
			t.Errorf("planning %s: %s", planning, prototext.Format(out))
		}
		held := map[string]cpuset.Set{}
		for c := range placed.View.Claims() {
			if c.CPUs != nil {
				held[c.Owner.Pod] = held[c.Owner.Pod].Union(c.CPUs.Set)
			}
		}
		if len(held) != 2-int(differ) {
			t.Errorf("planning %s: %d pods hold CPUs", planning, len(held))
		}
		for pod, cpus := range held {
			if cpus.Len() != 5 {
				t.Errorf("planning %s: %s holds %s, and its app 5 CPUs", planning, pod, cpus)
			}
		}
	}
}
