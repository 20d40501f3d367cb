package simulation_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/simulation"
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
