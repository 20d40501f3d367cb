package fit

import (
	"context"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/workload"
)

// When is when a pod fits.
type When string

// A pod that fits later would be admitted if no other pod were there, with the devices and the policy
// of now. A pod that never fits would be refused then, too.
const (
	Now   When = "now"
	Later When = "later"
	Never When = "never"
)

// Outcome says when a pod fits, with the present verdict.
type Outcome struct {
	Pod     workload.Pod
	When    When
	Verdict admission.Verdict
}

// Try decides about pods one after the other on a view, which contains the allocations of the pods
// before that fit now. Before the end of the grace period for registrations, a pod with an unknown
// resource fits later. Nothing is changed, and no process is called. The set must be joined. Errors are those of
// Trial.Repeat and of the context.
func Try(ctx context.Context, cfg admission.Config, view *ledger.View, set *managerset.Set, now time.Time, pods []workload.Pod) ([]Outcome, error) {
	cfg.Tries = -1
	busy := admission.NewTrial(cfg, view, set.Bus, set.Topology)
	busy.On(view, now)
	var out []Outcome
	for _, pod := range pods {
		v, err := busy.Repeat(ctx, admission.Request{Pod: pod})
		if err != nil {
			return nil, err
		}
		o := Outcome{Pod: pod, When: Now, Verdict: v}
		if v.Outcome != admission.Admitted {
			alone := ledger.Empty(view.Rules())
			trial := admission.NewTrial(cfg, alone, set.Bus, set.Topology)
			trial.On(alone, now)
			idle, err := trial.Repeat(ctx, admission.Request{Pod: pod})
			if err != nil {
				return nil, err
			}
			if o.When = Later; idle.Outcome == admission.Rejected {
				o.When = Never
			}
		}
		out = append(out, o)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return out, nil
}
