package fit

import (
	"context"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// When tells when a pod fits.
type When string

// A pod that fits after moves would be admitted after other pods have moved, as a defragmentation does.
// A pod that fits later would be admitted if no other pod were there, with the devices and the policy
// of now. A pod that never fits would be refused then, too.
const (
	Now        When = "now"
	AfterMoves When = "after-defragmentation"
	Later      When = "later"
	Never      When = "never"
)

// Outcome says when a pod fits, with the present verdict.
type Outcome struct {
	Pod     workload.Pod
	When    When
	Verdict admission.Verdict
	// Moves is how many pods have to move for a pod that fits after moves, and Bytes the most memory of them.
	Moves int
	Bytes uint64
	// Nodes are the NUMA nodes of what a pod gets that fits now or after moves.
	Nodes numa.Mask
}

// Search configures the search for moves of other pods.
type Search struct {
	// MaxMoves is the most moves for one pod, up to live.MaxMoves; 0 searches none.
	MaxMoves int
	// Mover may refuse moves of memory; nil where nobody knows.
	Mover live.Mover
}

// Try decides about pods one after the other on a view, which contains the allocations of the pods
// before that fit now. Before the end of the grace period for registrations, a pod with an unknown
// resource fits later. For the pods that fit later, moves of other pods are searched, which see the pods that
// fit now, and the moves for the pods before. Each pod moves at most once, and the searches have a common
// limit; limited is whether they have reached it. Nothing is changed, and no process is called. The set must be joined. Errors are those of
// Trial.Repeat and of the context.
func Try(ctx context.Context, cfg admission.Config, view *ledger.View, set *managerset.Set, now time.Time, pods []workload.Pod,
	search Search) (out []Outcome, limited bool, err error) {
	cfg.Tries = -1
	busy := live.NewTrial(cfg, view, set.Bus, set.Topology)
	busy.On(view, now)
	var stay []string
	for _, pod := range pods {
		v, err := busy.Repeat(ctx, admission.Request{Pod: pod})
		if err != nil {
			return nil, false, err
		}
		o := Outcome{Pod: pod, When: Now, Verdict: v}
		if v.Outcome == admission.Admitted {
			o.Nodes = nodesOf(v.View, pod.UID)
		} else {
			alone := ledger.Empty(view.Rules())
			trial := admission.NewTrial(cfg, alone, set.Bus, set.Topology)
			trial.On(alone, now)
			idle, err := trial.Repeat(ctx, admission.Request{Pod: pod})
			if err != nil {
				return nil, false, err
			}
			if o.When = Later; idle.Outcome == admission.Rejected {
				o.When = Never
			}
		}
		out, stay = append(out, o), append(stay, pod.UID)
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
	}
	if search.MaxMoves == 0 {
		return out, false, nil
	}
	for i := range out {
		o := &out[i]
		if o.When != Later {
			continue
		}
		d, err := busy.Defragment(ctx, live.DefragmentRequest{Pod: o.Pod, MaxMoves: search.MaxMoves, Stay: stay}, search.Mover)
		if err != nil {
			return nil, false, err
		}
		limited = limited || d.Limited
		if !d.Fits() {
			continue
		}
		o.When, o.Moves, o.Nodes = AfterMoves, len(d.Moves), nodesOf(d.After, o.Pod.UID)
		for _, m := range d.Moves {
			o.Bytes += m.Plan.Cost.Bytes
			stay = append(stay, m.UID)
		}
	}
	return out, limited, nil
}

// nodesOf returns the NUMA nodes of a pod's CPUs, memory and devices, as far as they have any.
func nodesOf(view *ledger.View, uid string) (nodes numa.Mask) {
	p, _ := view.Pod(uid)
	for i := range p.Claims {
		nodes = nodes.Union(p.Claims[i].NUMANodes(view.Machine()))
	}
	return nodes
}
