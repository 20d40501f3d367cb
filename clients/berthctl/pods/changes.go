package pods

import (
	"context"
	"fmt"
	"io"
	"strings"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

// size is the amounts of a container, or of a pod as a whole with the name "".
type size struct {
	container string
	has       *typesv1.ResourceRequirements
}

// sizesOf returns the amounts that a pod has; none if there is no such pod.
func sizesOf(ctx context.Context, s *command.Session, uid string) ([]size, error) {
	got, err := s.Allocation().Get(ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
	switch {
	case berth.IsNotFound(err), berth.IsInvalid(err):
		return nil, nil // the answer to the resize says it
	case err != nil:
		return nil, err
	}
	out := []size{{"", got.GetSpec().GetSpec().GetResources()}}
	for _, c := range got.GetPod().GetContainers() {
		out = append(out, size{c.GetContainerName(), c.GetResources()})
	}
	return out, nil
}

// change is an amount before and after a resize.
type change struct{ container, amount, from, to string }

// lists are the amounts of a container by their names in manifests.
var lists = []struct {
	name string
	of   func(*typesv1.ResourceRequirements) map[string]string
}{{"requests", (*typesv1.ResourceRequirements).GetRequests}, {"limits", (*typesv1.ResourceRequirements).GetLimits}}

// changesOf compares a request with the amounts that its pod has. kept are the amounts of cpu and memory that the request leaves out, a
// text for each container.
func changesOf(before []size, req *admissionv1.ResizeRequest) (changes []change, kept []string) {
	wanted := map[string]*typesv1.ResourceRequirements{"": req.GetResources()}
	for _, c := range req.GetContainers() {
		wanted[c.GetContainerName()] = c.GetResources()
	}
	for _, b := range before {
		var stays []string
		for _, list := range lists {
			for _, resource := range []string{"cpu", "memory"} {
				amount := list.name + "." + resource
				from, had := list.of(b.has)[resource]
				to, given := list.of(wanted[b.container])[resource]
				switch {
				case given && !(had && command.SameAmount(resource, from, to)):
					changes = append(changes, changed(b.container, amount, resource, from, to))
				case !given && had:
					stays = append(stays, amount+"="+command.Amount(resource, from))
				}
			}
		}
		if len(stays) > 0 {
			kept = append(kept, ofPod(b.container)+" "+strings.Join(stays, " "))
		}
	}
	return changes, kept
}

// changed returns a change as people read it. If the difference is too small for that, the numbers are exact.
func changed(container, amount, resource, from, to string) change {
	fromText, toText := "", command.Amount(resource, to)
	if from != "" {
		fromText = command.Amount(resource, from)
	}
	if fromText == toText {
		fromText, toText = from, to
	}
	return change{container, amount, fromText, toText}
}

// ofPod returns a container's name, or words for the pod as a whole.
func ofPod(container string) string {
	if container == "" {
		return "(the pod as a whole)"
	}
	return container
}

// showChanges prints what a resize changes, and what a file leaves out.
func showChanges(w io.Writer, changes []change, kept []string) {
	if len(changes) > 0 {
		t := table.New("CONTAINER", "AMOUNT", "FROM", "TO")
		for _, c := range changes {
			t.Row(ofPod(c.container), c.amount, c.from, c.to)
		}
		fmt.Fprintf(w, "\n%v", t)
	}
	if len(kept) > 0 {
		fmt.Fprintf(w, "\nkept, because the file does not name it: %s\n", strings.Join(kept, "; "))
	}
}
