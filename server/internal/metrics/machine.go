package metrics

import "github.com/prometheus/client_golang/prometheus"

// machineCounters count the changes of the machine while berthd runs.
type machineCounters struct {
	changes *prometheus.CounterVec
}

const (
	changeApplied = "applied"
	changeFailed  = "failed"
)

func newMachineCounters(f factory) machineCounters {
	c := machineCounters{f.counters(machineChanges, "Changes of the machine while berthd runs, by result.", "result")}
	for _, result := range []string{changeApplied, changeFailed} {
		c.changes.WithLabelValues(result)
	}
	return c
}

// MachineChanged counts a changed machine that berthd follows.
func (s *Set) MachineChanged() { s.machine.changes.WithLabelValues(changeApplied).Inc() }

// MachineFailed counts a changed machine that berthd cannot follow, or only in part.
func (s *Set) MachineFailed() { s.machine.changes.WithLabelValues(changeFailed).Inc() }
