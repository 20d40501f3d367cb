package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
)

// Decided is a decision about a pod that another program has made a decision about, too.
type Decided struct {
	admission.Verdict
}

// Admitted reports whether the pod fits.
func (d Decided) Admitted() bool { return d.Outcome == admission.Admitted }

// Try decides about a pod, and changes nothing.
func (a *App) Try(ctx context.Context, m *typesv1.Pod) (Decided, error) {
	pod, err := NodePod(a.given.Config, m)
	if err != nil {
		return Decided{}, err
	}
	v, err := a.deciding.engine.Admit(ctx, admission.Request{Pod: pod, DryRun: true})
	return Decided{v}, err
}

// Reject decides about a pod that does not fit, and keeps the explanation with notes. at is when another program has rejected the pod;
// zero if that is not known.
func (a *App) Reject(ctx context.Context, m *typesv1.Pod, at time.Time, notes []string) error {
	pod, err := NodePod(a.given.Config, m)
	if err != nil {
		return err
	}
	_, err = a.deciding.engine.Admit(ctx, admission.Request{Pod: pod, Unserved: notes, At: at})
	return err
}

// Nodes are the NUMA nodes of an admitted pod's CPUs, memory and devices, as far as they have any.
func (d Decided) Nodes() (nodes numa.Mask) {
	for i := range d.Pod.Claims {
		nodes = nodes.Union(d.Pod.Claims[i].NUMANodes(d.View.Machine()))
	}
	return nodes
}

// Apart says which resources of a rejected pod no NUMA node has together, with the policy single-numa-node; empty if that is not why.
func (d Decided) Apart() string {
	byContainer := map[string][]offer{}
	var order []string
	for _, s := range d.Trace.Steps {
		if s.Kind != ledger.StepAnswered || len(s.Hints) == 0 || s.Omitted > 0 {
			continue
		}
		var o offer
		for _, h := range s.Hints {
			if h.Nodes.Len() == 1 {
				o.nodes = o.nodes.Union(h.Nodes)
			}
		}
		if o.resource = s.Resource; o.nodes.IsEmpty() {
			continue
		}
		if !slices.Contains(order, s.Container) {
			order = append(order, s.Container)
		}
		byContainer[s.Container] = append(byContainer[s.Container], o)
	}
	for _, container := range order {
		if text := together(byContainer[container]); text != "" {
			return text
		}
	}
	return ""
}

// offer are the NUMA nodes that have enough of a resource alone.
type offer struct {
	resource string
	nodes    numa.Mask
}

// together names the offers that have no node in common; empty if there is one.
func together(offers []offer) string {
	if len(offers) < 2 {
		return ""
	}
	common, parts := offers[0].nodes, []string{}
	for _, o := range offers {
		common = common.Intersect(o.nodes)
		parts = append(parts, fmt.Sprintf("%s (only on %s)", o.resource, o.nodes))
	}
	if !common.IsEmpty() {
		return ""
	}
	return fmt.Sprintf("no NUMA node has all of %s", strings.Join(parts, ", "))
}

// Single reports whether the topology policy wants one NUMA node.
func (a *App) Single() bool { return a.given.Config.Topology.Policy == topology.SingleNUMANode }
