package admission_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// TestStartGivesBack: an init container's memory is given back in the commit that
// binds the next container, except what that has taken over; and once only.
func TestStartGivesBack(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	m, err := memory.New(memory.Config{Policy: memory.PolicyStatic, AllowUnreserved: true},
		machinetest.Build("2s1n8c1t", machinetest.Memory(0, 10), machinetest.Memory(1, 10)))
	must(t, err)
	bus, err := hint.NewBus(nil, []hint.Entry{{Provider: m, Mode: hint.Required}}, nil)
	must(t, err)
	h.bus.Store(bus)
	asks := func(name string, role workload.Role, bytes int64) workload.Container {
		q := workload.Quantities{workload.CPU: 1000, workload.Memory: bytes}
		return workload.Container{Name: name, Role: role, Requests: q, Limits: q}
	}
	h.admit(t, workload.Pod{UID: "a", Name: "a", Namespace: "default", Containers: []workload.Container{
		asks("first", workload.Init, 9), asks("second", workload.Init, 5), asks("side", workload.Sidecar, 1), asks("main", workload.App, 3),
	}})
	claims := func() (out []string) {
		p, _ := h.ledger.View().Pod("a")
		for _, c := range p.Claims {
			out = append(out, c.Owner.Container)
		}
		return out
	}
	for _, row := range []struct {
		starting string
		held     uint64
		claims   string
		commits  uint64
	}{
		{"first", 9, "[first main second side]", 1},
		{"second", 5, "[main second side]", 1},
		{"second", 5, "[main second side]", 0},
		{"side", 4, "[main side]", 1},
		{"main", 4, "[main side]", 1},
		{"first", 4, "[main side]", 1},
	} {
		before := h.ledger.View().Generation()
		id := row.starting
		if row.held == 4 && id == "first" {
			id = "first, started again"
		}
		started, err := h.PreStart(context.Background(), ledger.Owner{Pod: "a", Container: row.starting}, id, 0)
		must(t, err)
		use := started.View.MemoryUse().Held("memory")
		if got := fmt.Sprint(claims()); got != row.claims || use.Total() != row.held || started.View.Generation()-before != row.commits {
			t.Errorf("%s: claims of %s, %d bytes held, after %d commits; want %+v", id, got, use.Total(),
				started.View.Generation()-before, row)
		}
	}
	if len(h.cgroups.placed) != 6 {
		t.Errorf("placed by %v: a start that gives back is not overtaken by itself", h.cgroups.placed)
	}
}
