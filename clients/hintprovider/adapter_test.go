package hintprovider

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

const resource = "example.com/tape"

// tapes is a provider of four tape drives, two on each of two NUMA nodes.
type tapes struct{ committed, aborted []string }

var drives = map[string]uint32{"t0": 0, "t1": 0, "t2": 1, "t3": 1}

func (*tapes) Name() string { return "tapes" }

func (*tapes) wanted(r *Request) map[string]int {
	out := map[string]int{}
	for _, c := range slices.Concat(r.Pod.GetSpec().GetInitContainers(), r.Pod.GetSpec().GetContainers()) {
		n, _ := strconv.Atoi(c.GetResources().GetLimits()[resource])
		if n > 0 && (r.ContainerName == "" || r.ContainerName == c.GetName()) {
			out[c.GetName()] = n
		}
	}
	for _, a := range r.Allocations {
		for _, c := range a.GetClaims() {
			if a.GetPodUid() == r.Pod.GetMetadata().GetUid() {
				delete(out, c.GetContainerName())
			}
		}
	}
	return out
}

func (*tapes) free(r *Request) []string {
	taken := map[string]bool{}
	for _, a := range r.Allocations {
		for _, c := range a.GetClaims() {
			for _, d := range c.GetDevice().GetDevices() {
				taken[d.GetId()] = true
			}
		}
	}
	var out []string
	for _, id := range []string{"t0", "t1", "t2", "t3"} {
		if !taken[id] {
			out = append(out, id)
		}
	}
	return out
}

func (p *tapes) Hints(_ context.Context, r *Request) ([]*typesv1.TopologyHints, error) {
	n := 0
	for _, m := range p.wanted(r) {
		n += m
	}
	if n == 0 {
		return nil, nil
	}
	m := &typesv1.TopologyHints{Resource: resource, Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_NO_PREFERENCE}
	if len(p.free(r)) < n {
		m.Kind, m.Reason = typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE, "too few drives"
	}
	return []*typesv1.TopologyHints{m}, nil
}

func (p *tapes) Plan(_ context.Context, r *Request, _ *typesv1.TopologyHint) ([]*typesv1.Claim, error) {
	free, wanted := p.free(r), p.wanted(r)
	var out []*typesv1.Claim
	for _, c := range slices.Concat(r.Pod.GetSpec().GetInitContainers(), r.Pod.GetSpec().GetContainers()) {
		n := wanted[c.GetName()]
		if n == 0 {
			continue
		}
		if len(free) < n {
			return nil, Refuse("OutOfTapes", resource, "too few drives")
		}
		claim := &typesv1.DeviceClaim{}
		for _, id := range free[:n] {
			claim.Devices = append(claim.Devices, &typesv1.Device{Id: id, NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{drives[id]}}})
		}
		free = free[n:]
		out = append(out, &typesv1.Claim{
			PodUid: r.Pod.GetMetadata().GetUid(), ContainerName: c.GetName(), Provider: "tapes", Resource: resource,
			Payload: &typesv1.Claim_Device{Device: claim},
		})
	}
	return out, nil
}

func (*tapes) Prepare(_ context.Context, _ string, _ *Request, claims []*typesv1.Claim) ([]*hintv1.Grant, error) {
	out := make([]*hintv1.Grant, len(claims))
	for i := range claims {
		out[i] = &hintv1.Grant{Edits: &typesv1.ContainerEdits{Envs: map[string]string{"TAPES": "yes"}}}
	}
	return out, nil
}

func (p *tapes) Abort(_ context.Context, admissionID string) {
	p.aborted = append(p.aborted, admissionID)
}

func (p *tapes) Committed(_ context.Context, allocations []*hintv1.ProviderAllocation) error {
	for _, a := range allocations {
		p.committed = append(p.committed, a.GetPodUid())
	}
	return nil
}

// view is a machine of two nodes on which pod "earlier" has a drive.
func view(t ledgertest.T) *ledger.View {
	draft := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s2n4c1t")}).View())
	claim := ledgertest.Devices("c", resource, "t0")
	claim.Provider = "tapes"
	draft.PutPod(ledgertest.With(ledgertest.Pod("earlier", "c"), claim))
	return draft.View()
}

func wanting(uid string, drives ...int64) *workload.Pod {
	p := &workload.Pod{UID: uid}
	for i, n := range drives {
		q := workload.Quantities{resource: n}
		p.Containers = append(p.Containers, workload.Container{Name: "c" + strconv.Itoa(i), Requests: q, Limits: q})
	}
	return p
}

// TestContract: a provider in messages of the API keeps the contract of berthd's own.
func TestContract(t *testing.T) {
	t.Parallel()
	hinttest.Run(t, func() hinttest.Setup {
		return hinttest.Setup{
			Provider: adapt(new(tapes)), View: view(t),
			Pods: []*workload.Pod{wanting("one", 1), wanting("more", 2, 0, 1), wanting("many", 3, 1), wanting("none", 0)},
		}
	})
}

// TestRefusal: an error of Refuse is a refusal with its reason and resource.
func TestRefusal(t *testing.T) {
	t.Parallel()
	_, err := adapt(new(tapes)).Plan(t.Context(), view(t), hint.Request{Pod: wanting("p", 4)}, hint.Hint{Any: true})
	fe := new(errdefs.Error)
	if reason, _ := errdefs.ReasonOf(err); !errors.As(err, &fe) || fe.Class != errdefs.Refused || reason != "OutOfTapes" ||
		fe.Resource != resource {
		t.Errorf("%v", err)
	}
}

// failing has answers that cannot be read.
type failing struct{ tapes }

func (*failing) Hints(context.Context, *Request) ([]*typesv1.TopologyHints, error) {
	return []*typesv1.TopologyHints{{Resource: resource, Kind: 99}}, nil
}

func (*failing) Plan(context.Context, *Request, *typesv1.TopologyHint) ([]*typesv1.Claim, error) {
	return []*typesv1.Claim{{Resource: resource}}, nil
}

func (*failing) Prepare(context.Context, string, *Request, []*typesv1.Claim) ([]*hintv1.Grant, error) {
	return nil, nil
}

func TestUnreadable(t *testing.T) {
	t.Parallel()
	p, v, req := adapt(new(failing)), view(t), hint.Request{Pod: wanting("p", 1)}
	if got, err := p.Hints(t.Context(), v, req); err == nil {
		t.Errorf("hints %+v", got)
	}
	if got, err := p.Plan(t.Context(), v, req, hint.Hint{}); err == nil {
		t.Errorf("plan %+v", got)
	}
	if got, err := p.(hint.Preparer).Prepare(t.Context(), "adm", req, make([]ledger.Claim, 1)); err == nil {
		t.Errorf("prepared %+v", got)
	}
}

type (
	validator struct{ tapes }
	explainer struct{ tapes }
	full      struct {
		validator
	}
)

func (*validator) Validate(_ context.Context, r *Request, claims []*typesv1.Claim) error {
	return Refuse("", "", r.Pod.GetMetadata().GetUid()+" has "+strconv.Itoa(len(claims)))
}

func explain(r *Request, nodes *typesv1.NUMANodeSet) []*typesv1.Shortage {
	return []*typesv1.Shortage{{Resource: resource, NumaNodes: nodes, Need: 4, Free: uint64(len(r.NUMANodes.GetIds()))}}
}

func (*explainer) Explain(r *Request, nodes *typesv1.NUMANodeSet) []*typesv1.Shortage {
	return explain(r, nodes)
}

func (*full) Explain(r *Request, nodes *typesv1.NUMANodeSet) []*typesv1.Shortage {
	return explain(r, nodes)
}

// TestOptionalMethods: berthd calls only the methods that a provider has.
func TestOptionalMethods(t *testing.T) {
	t.Parallel()
	v := view(t)
	earlier, _ := v.Pod("earlier")
	req := hint.Request{Pod: &earlier.Pod}
	for name, row := range map[string]struct {
		p                   Provider
		validates, explains bool
	}{
		"none": {new(tapes), false, false}, "validates": {new(validator), true, false},
		"explains": {new(explainer), false, true}, "both": {new(full), true, true},
	} {
		p := adapt(row.p)
		validates, ok := p.(hint.Validator)
		if ok != row.validates {
			t.Errorf("%s: validates %t", name, ok)
		} else if ok {
			if err := validates.Validate(t.Context(), v, req); errdefs.ClassOf(err) != errdefs.Refused || err.Error() != "earlier has 1" {
				t.Errorf("%s: %v", name, err)
			}
		}
		explains, ok := p.(hint.Explainer)
		if ok != row.explains {
			t.Errorf("%s: explains %t", name, ok)
		} else if ok {
			if got := explains.Explain(v, req, numa.Of(1)); len(got) != 1 || got[0].Nodes != "1" || got[0].Need != 4 || got[0].Free != 2 {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
	tape := new(tapes)
	a := adapt(tape).(adapter)
	a.Abort(t.Context(), "adm")
	if err := a.Committed(t.Context(), v); err != nil || !slices.Equal(tape.committed, []string{"earlier"}) ||
		!slices.Equal(tape.aborted, []string{"adm"}) {
		t.Errorf("%+v, %v", tape, err)
	}
	bare := adapt(struct{ Provider }{tape}).(adapter)
	bare.Abort(t.Context(), "other")
	if err := bare.Committed(t.Context(), v); err != nil || len(tape.aborted) != 1 || len(tape.committed) != 1 {
		t.Errorf("a provider without these methods: %+v, %v", tape, err)
	}
}
