package app_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/numa"
)

// decided is what a kubelet decided about a container of a pod, or with no name about
// the pod as a whole: the hints about each resource ("0-1", "3+" if preferred; null is
// no preference, an empty list that no place will do), the merged one, and the CPUs
// that the container was given.
type decided struct {
	Container  string
	Hints      map[string][]string
	Best, CPUs string
}

// decisions counts what was compared of decisions.
type decisions struct {
	offered int // hints that were offered for what was decided first about a pod: all of them
	traced  int // hints that the traces keep, of all answers
	merged  int // merged hints
	cpus    int // sets of CPUs that containers were given
	created int // containers that were created
	listed  int // containers that podresources list
	edits   int // devices, mounts, variables and annotations that plugins added to them
}

// totals are the counts of several replays.
type totals struct {
	mu     sync.Mutex
	runs   int // replays that are to be
	ended  int // replays that were
	counts decisions
}

func (a *totals) add(d decisions) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended++
	a.counts.offered += d.offered
	a.counts.traced += d.traced
	a.counts.merged += d.merged
	a.counts.cpus += d.cpus
	a.counts.created += d.created
	a.counts.edits += d.edits
	a.counts.listed += d.listed
}

// expect makes sure that all replays together have compared all that is recorded; where
// only some were run they cannot have.
func (a *totals) expect(t *testing.T) {
	t.Helper()
	if want := (decisions{offered: 18495, traced: 3599, merged: 452, cpus: 361, created: 221, listed: 439,
		edits: 160}); a.ended == a.runs && a.counts != want {
		t.Errorf("compared %+v, want %+v", a.counts, want)
	}
}

// written writes a hint as recordings do.
func written(h *typesv1.TopologyHint) string {
	text := "any"
	if ids := h.GetNumaNodes().GetIds(); len(ids) > 0 {
		var nodes numa.Mask
		for _, id := range ids {
			nodes = nodes.Union(numa.Of(int(id)))
		}
		text = nodes.String()
	}
	if h.GetPreferred() {
		text += "+"
	}
	return text
}

// allWritten writes hints, in an order of their own: a kubelet's is not stable.
func allWritten(hints []*typesv1.TopologyHint) []string {
	out := make([]string, len(hints))
	for i, h := range hints {
		out[i] = written(h)
	}
	slices.Sort(out)
	return out
}

// offered gives every hint for what is decided first about a pod: no other container
// has anything of it yet.
func (p *replay) offered(s step) []*typesv1.TopologyHints {
	p.t.Helper()
	if len(s.Decided) == 0 || s.Decided[0].Hints == nil {
		return nil
	}
	pod, container := p.pod(s.Pod), s.Decided[0].Container
	ctx := p.t.Context()
	cpus, err := cpuv1.NewCPUServiceClient(p.daemon.conn).GetTopologyHints(ctx,
		&cpuv1.GetTopologyHintsRequest{Pod: pod, ContainerName: container})
	if err != nil {
		p.t.Fatal(err)
	}
	memory, err := memoryv1.NewMemoryServiceClient(p.daemon.conn).GetTopologyHints(ctx,
		&memoryv1.GetTopologyHintsRequest{Pod: pod, ContainerName: container})
	if err != nil {
		p.t.Fatal(err)
	}
	devices, err := devicev1.NewDeviceServiceClient(p.daemon.conn).GetTopologyHints(ctx,
		&devicev1.GetTopologyHintsRequest{Pod: pod, ContainerName: container})
	if err != nil {
		p.t.Fatal(err)
	}
	return slices.Concat(cpus.GetTopologyHints(), memory.GetTopologyHints(), devices.GetTopologyHints())
}

// compareDecided holds an admission against the recorded one: the hints that were
// offered first, those that the trace keeps of the others, the merged hints, the CPUs.
func (p *replay) compareDecided(s step, offered []*typesv1.TopologyHints, trace *typesv1.Trace) {
	p.t.Helper()
	for i, want := range s.Decided {
		for resource, hints := range want.Hints {
			if i == 0 {
				p.compareOffered(s.Pod, want.Container, resource, hints, offered)
			}
			if !p.compareAsked(s.Pod, want.Container, resource, hints, trace) && i > 0 {
				p.t.Errorf("%s/%s: the trace does not have the answer about %s", s.Pod, want.Container, resource)
			}
		}
		p.comparePlace(s.Pod, want, trace)
	}
}

// comparePlace compares what was made of the answers about a container.
func (p *replay) comparePlace(pod string, want decided, trace *typesv1.Trace) {
	p.t.Helper()
	var best, cpus string
	for _, e := range trace.GetSteps() {
		switch {
		case e.GetKind() == typesv1.TraceStepKind_TRACE_STEP_KIND_MERGED &&
			(e.GetContainerName() == want.Container || e.GetContainerName() == ""):
			best = written(e.GetAffinity()) // one of the pod as a whole is all its containers'
		case e.GetKind() == typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED && e.GetContainerName() == want.Container &&
			e.GetResource() == "cpu":
			cpus = e.GetClaim().GetCpu().GetCpus().GetList()
		}
	}
	if want.Best != "" {
		p.decisions.merged++
		if best != want.Best {
			p.t.Errorf("%s/%s: merged %q, the kubelet %q", pod, want.Container, best, want.Best)
		}
	}
	if want.CPUs != "" {
		p.decisions.cpus++
		if cpus != want.CPUs {
			p.t.Errorf("%s/%s: CPUs %q, the kubelet %q", pod, want.Container, cpus, want.CPUs)
		}
	}
}

// compareOffered compares all hints of an answer.
func (p *replay) compareOffered(pod, container, resource string, want []string, offered []*typesv1.TopologyHints) {
	p.t.Helper()
	i := slices.IndexFunc(offered, func(a *typesv1.TopologyHints) bool { return a.GetResource() == resource })
	if i < 0 {
		p.t.Errorf("%s/%s: nothing is offered of %s, by the kubelet %v", pod, container, resource, want)
		return
	}
	p.decisions.offered += len(want)
	kind := typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS
	switch {
	case want == nil:
		kind = typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_NO_PREFERENCE
	case len(want) == 0:
		kind = typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE
	}
	got := allWritten(offered[i].GetHints())
	if slices.Sort(want); offered[i].GetKind() != kind || !slices.Equal(got, want) {
		p.t.Errorf("%s/%s: of %s %s %v is offered, by the kubelet %v", pod, container, resource, offered[i].GetKind(), got, want)
	}
}

// compareAsked compares what the trace keeps of an answer, and how many more there were;
// false if it has none: a rule stands for too many.
func (p *replay) compareAsked(pod, container, resource string, want []string, trace *typesv1.Trace) bool {
	p.t.Helper()
	for _, e := range trace.GetSteps() {
		if e.GetKind() != typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED || e.GetContainerName() != container ||
			e.GetResource() != resource || e.GetAnswer() == typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT {
			continue
		}
		got := allWritten(e.GetHints())
		p.decisions.traced += len(got)
		if len(got)+int(e.GetOmitted()) != len(want) {
			p.t.Errorf("%s/%s: %d hints of %s, the kubelet has %d", pod, container, len(got)+int(e.GetOmitted()), resource, len(want))
		}
		for _, h := range got {
			if !slices.Contains(want, h) {
				p.t.Errorf("%s/%s: the hint %s of %s is not one of the kubelet's %s", pod, container, h, resource, strings.Join(want, " "))
			}
		}
		return true
	}
	return false
}
