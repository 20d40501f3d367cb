package get

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

// ExplainHelp prints the changes that would make a rejected pod fit. On a kubelet's node each has the commands and the lines that make it.
func ExplainHelp(c *command.Ctl, w io.Writer, t *typesv1.Trace, n command.Names) {
	list := t.GetSuggestions()
	if len(list) == 0 && t.GetTried() > 0 {
		fmt.Fprintf(w, "\nno smaller request, other policy or removal of pods was found to help (%s)\n",
			table.Count(int(t.GetTried()), "dry run"))
	}
	for i, s := range list {
		if i == 0 {
			fmt.Fprint(w, "\nit would fit\n")
		}
		or := ", or"
		if i == len(list)-1 {
			or = ""
		}
		fmt.Fprintf(w, "  %s%s\n", command.OneLine(s.GetText()), or)
		if c.Kubelet == "" {
			continue
		}
		for _, line := range toDo(s, n) {
			fmt.Fprintf(w, "    %s\n", command.OneLine(line))
		}
	}
}

// toDo is how a suggestion is carried out on a node whose kubelet decides.
func toDo(s *typesv1.Suggestion, n command.Names) (lines []string) {
	switch s.GetKind() {
	case typesv1.SuggestionKind_SUGGESTION_KIND_REMOVAL:
		for _, uid := range s.GetRemovePodUids() {
			namespace, name, known := strings.Cut(n.Pod(uid), "/")
			if !known { // only its uid is known
				lines = append(lines, fmt.Sprintf("kubectl get pods -A -o json | jq -r '.items[].metadata | select(.uid == %q)'", uid))
				continue
			}
			lines = append(lines, fmt.Sprintf("kubectl delete pod -n %s %s", namespace, name))
		}
	case typesv1.SuggestionKind_SUGGESTION_KIND_REQUEST:
		lines = requestLines(s.GetRequests())
	case typesv1.SuggestionKind_SUGGESTION_KIND_POLICY:
		// A kubelet starts with another topology policy or scope on the state files that it has. A policy that is looser for one pod can
		// be stricter for another: restricted with scope container refuses what a pod's containers got together.
		if s.GetPolicy() != "" {
			lines = append(lines, "topologyManagerPolicy: "+s.GetPolicy())
		}
		if s.GetScope() != "" {
			lines = append(lines, "topologyManagerScope: "+s.GetScope())
		}
		lines = append(lines, "systemctl restart kubelet   # after this change of its configuration; it admits the pods that run again, "+
			"and ends one that does not fit (kubernetes#123859)")
	}
	return lines
}

// requestLines are the changed lines of the pod's manifest, by container.
func requestLines(changes []*typesv1.RequestChange) (lines []string) {
	var owners []string
	amounts := map[string][]string{}
	for _, r := range changes {
		owner := "the pod's own"
		if r.GetContainerName() != "" {
			owner = "container " + r.GetContainerName()
		}
		if r.GetProposed() == 0 {
			lines = append(lines, fmt.Sprintf("without %s   # in resources of %s", r.GetResource(), owner))
			continue
		}
		if !slices.Contains(owners, owner) {
			owners = append(owners, owner)
		}
		amounts[owner] = append(amounts[owner], fmt.Sprintf("%s: %q", r.GetResource(), amount(r)))
	}
	for _, owner := range owners {
		list := strings.Join(amounts[owner], ", ")
		lines = append(lines, fmt.Sprintf("resources: {limits: {%s}, requests: {%s}}   # %s; keep what else is there", list, list, owner))
	}
	return lines
}

// amount is the proposed amount as manifests have it.
func amount(r *typesv1.RequestChange) string {
	if name := r.GetResource(); name != "memory" && !strings.HasPrefix(name, "hugepages-") {
		return fmt.Sprint(r.GetProposed())
	}
	return resource.NewQuantity(int64(r.GetProposed()), resource.BinarySI).String()
}
