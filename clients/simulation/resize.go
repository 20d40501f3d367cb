package simulation

import (
	"context"
	"fmt"
	"strings"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/workload"
)

// Resize is an event that changes the amounts of a container.
type Resize struct {
	Namespace, Pod, Container string
	// Amounts are cpu, memory or both.
	Amounts workload.Quantities
}

// parseResize reads "NAMESPACE/POD/CONTAINER:cpu=AMOUNT,memory=AMOUNT"; the namespace may be left out.
func parseResize(text string) (*Resize, error) {
	owner, list, _ := strings.Cut(text, ":")
	parts := strings.Split(owner, "/")
	if len(parts) == 2 {
		parts = append([]string{"default"}, parts...)
	}
	if len(parts) != 3 || parts[1] == "" || parts[2] == "" || list == "" {
		return nil, errdefs.Invalidf("expected NAMESPACE/POD/CONTAINER:cpu=AMOUNT,memory=AMOUNT")
	}
	texts := map[string]string{}
	for _, part := range strings.Split(list, ",") {
		resource, amount, _ := strings.Cut(part, "=")
		if resource != string(workload.CPU) && resource != string(workload.Memory) {
			return nil, errdefs.Invalidf("%q: expected cpu=AMOUNT or memory=AMOUNT", part)
		}
		if _, twice := texts[resource]; twice {
			return nil, errdefs.Invalidf("%s is given twice", resource)
		}
		texts[resource] = amount
	}
	amounts, _, bad := convert.Amounts("resize", texts)
	if err := bad.Err("amounts"); err != nil {
		return nil, err
	}
	for resource, n := range amounts {
		if n <= 0 {
			return nil, errdefs.Invalidf("%s: expected an amount above 0", resource)
		}
	}
	return &Resize{Namespace: parts[0], Pod: parts[1], Container: parts[2], Amounts: amounts}, nil
}

// resize resizes a pod of a view, and says what became of it. A move to other NUMA nodes ends at once.
func (s *stage) resize(ctx context.Context, view *ledger.View, r *Resize) (text string, next *ledger.View, err error) {
	var pod *ledger.Pod
	for p := range view.Pods() {
		if p.Pod.Namespace == r.Namespace && p.Pod.Name == r.Pod {
			pod = p
		}
	}
	if pod == nil {
		return "", nil, errdefs.NotFoundf("pod %s/%s is not admitted", r.Namespace, r.Pod)
	}
	change := workload.Change{Container: r.Container, Requests: r.Amounts, Limits: workload.Quantities{}}
	if c := pod.Pod.Container(r.Container); c != nil {
		for resource, n := range r.Amounts { // as berthctl resize does
			if _, limited := c.Limits[resource]; limited {
				change.Limits[resource] = n
			}
		}
	}
	trial := s.trial(view, -1)
	out, err := trial.Resize(ctx, live.ResizeRequest{UID: pod.UID(), Owner: pod.Agent(), Changes: []workload.Change{change}})
	switch {
	case err != nil:
		return "", nil, err
	case out.Repeated:
		return "", view, nil
	case out.Outcome != admission.Admitted:
		return fmt.Sprintf("%s: %s", out.Outcome, out.Message), view, nil
	}
	owner := ledger.Owner{Pod: pod.UID(), Container: r.Container}
	before, _, _ := view.ContainerCPUs(owner)
	after, _, _ := trial.View().ContainerCPUs(owner)
	text = "resized; disruption " + convert.Word(admissionv1.Disruption(out.Disruption))
	if before != after {
		text += fmt.Sprintf("; CPUs %s to %s", before, after)
	}
	return text, trial.View(), nil
}
