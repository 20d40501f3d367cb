package policy

import (
	"strings"
	"testing"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
)

// TestSchedulerCountsMore: what the scheduler counts reaches berthd when berth-nri connects and when it
// changes. berthd shows what pods cannot have of it.
func TestSchedulerCountsMore(t *testing.T) {
	t.Parallel()
	d := startBerthd(t) // 8 CPUs, one of them reserved
	counted, said := map[string]string{"cpu": "8"}, [][]string(nil)
	e := newEngine(t, Config{Client: d.Client, Scheduler: Scheduler{Allocatable: func() map[string]string { return counted },
		Excess: func(s []string) { said = append(said, s) }}})
	shown := func() string {
		status, err := d.Node().GetStatus(t.Context(), &nodev1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(status.GetSchedulerExcess(), "\n")
	}
	const text = "the scheduler counts 8 of cpu as allocatable, and pods can have 7: "
	if len(said) != 1 || len(said[0]) != 1 || !strings.HasPrefix(said[0][0], text) {
		t.Errorf("berth-nri says %q", said)
	}
	if got := shown(); !strings.HasPrefix(got, text) {
		t.Errorf("berthd shows %q", got)
	}
	counted = map[string]string{"cpu": "7"}
	e.follow()
	e.policy.Recount()
	eventually(t, "the excess has gone", func() bool { return shown() == "" })
}
