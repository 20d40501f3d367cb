package policy

import (
	"strings"
	"testing"
)

// TestForgottenContainerIsInTheWay: berthd has lost a running container, or it is not compared with the ledger yet, and gives its CPUs
// to an exclusive container of another pod. This one does not start before the first one has left them.
func TestForgottenContainerIsInTheWay(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		milli, memory int64
		qos           string
		unplaced      bool
	}{
		"exclusive":           {milli: 2000, memory: gib, qos: "guaranteed"},
		"shared":              {milli: 100, qos: "burstable"},
		"exclusive, unplaced": {milli: 2000, memory: gib, qos: "guaranteed", unplaced: true},
		"shared, unplaced":    {milli: 100, qos: "burstable", unplaced: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			e := newEngine(t, Config{Client: d.Client})
			first, second := pod("first", row.qos), pod("second", "guaranteed")
			had := e.run(first, container(first, "main", "first-1", row.milli, row.memory))
			d.forget()
			if row.unplaced {
				e.policy.node.members["first-1"].match = unplaced // as after a connection of the runtime
			}
			c := container(second, "main", "second-1", 3000, gib)
			if _, err := e.create(second, c); err != nil {
				t.Fatal(err)
			}
			if own := set(t, e.on("second-1")); !own.Overlaps(set(t, had)) {
				t.Fatalf("the new container has CPUs %s, the first one runs on %s: this is no case of the test", own, had)
			}
			if err := e.start(second, c); err == nil || !strings.Contains(err.Error(), "may be in use by container main of default/first") {
				t.Errorf("the container started on CPUs %s, and the first one runs on %s: %v", e.on("second-1"), e.on("first-1"), err)
			}
			e.follow()
			e.policy.Recount() // as Follow does after a lost connection
			e.startsAlone(second, c, "first-1")
		})
	}
}
