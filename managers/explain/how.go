package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// The agents that admit pods of another source: of the API server, and of a directory of manifests.
const (
	kubernetes = "kubernetes"
	berthlet   = "berthlet"
)

// plain reports whether names can stand in a command that somebody copies. An admitted pod has such names; what is read from
// a bundle of somebody else, or from a kubelet's files, may have any.
func plain(p *ledger.Pod) bool {
	return workload.IsDNSLabel(p.Pod.Namespace) && workload.IsDNSSubdomain(p.Pod.Name) && workload.IsDNSLabel(p.Agent())
}

// removal has the commands that remove a pod, or that end the pods of a claim.
func (s *search) removal(p *ledger.Pod) (how []string) {
	if !plain(p) {
		return nil
	}
	if claim := p.Pod.ResourceClaim; claim != nil && len(claim.Pods) > 0 {
		for _, pod := range claim.Pods {
			if !workload.IsDNSSubdomain(pod.Name) {
				return nil
			}
			how = append(how, fmt.Sprintf("kubectl delete pod -n %s %s", p.Pod.Namespace, pod.Name))
		}
		return how
	}
	if s.Kubelet || p.Agent() == kubernetes {
		return []string{fmt.Sprintf("kubectl delete pod -n %s %s", p.Pod.Namespace, p.Pod.Name)}
	}
	if p.Agent() == berthlet { // which would admit it again
		return []string{fmt.Sprintf("remove the manifest of %s/%s from berthlet's directory of manifests", p.Pod.Namespace, p.Pod.Name)}
	}
	how = []string{fmt.Sprintf("berthctl remove %s/%s", p.Pod.Namespace, p.Pod.Name)}
	if p.Agent() != ledger.DefaultOwner {
		how[0] += " --owner " + p.Agent()
	}
	return how
}

// waiting has the commands that show when pods have ended.
func (s *search) waiting(pods []*ledger.Pod) (how []string) {
	for _, p := range pods {
		if !plain(p) {
			continue
		}
		if s.Kubelet || p.Agent() == kubernetes {
			how = append(how, fmt.Sprintf("kubectl get pod -n %s %s --watch   # until it has ended", p.Pod.Namespace, p.Pod.Name))
		} else {
			how = append(how, fmt.Sprintf("berthctl watch --types removed -n %s   # until %s is removed", p.Pod.Namespace, p.Pod.Name))
		}
	}
	return how
}

// settings has what changes the policy or the scope of the topology manager.
func (s *search) settings(m *topology.Manager) []string {
	var command, lines []string
	if m.Policy() != s.Policy.Policy() {
		command = append(command, "--topology-manager-policy "+string(m.Policy()))
		lines = append(lines, "topologyManagerPolicy: "+string(m.Policy()))
	} else {
		command = append(command, "--topology-manager-scope "+string(m.Scope()))
		lines = append(lines, "topologyManagerScope: "+string(m.Scope()))
	}
	if !s.Kubelet {
		return []string{"berthctl policy set " + strings.Join(command, " ")}
	}
	// A kubelet starts with another topology policy or scope on the state files that it has. A policy that is looser for one pod can
	// be stricter for another: restricted with scope container refuses what a pod's containers got together.
	return append(lines, "systemctl restart kubelet   # after this change of its configuration; it admits the pods that run again, "+
		"and ends one that does not fit (kubernetes#123859)")
}

// lines are the changed lines of the pod's manifest, by container.
func (s *search) lines(set []adjustment) (how []string) {
	var owners []string
	limits, requests := map[string]workload.Quantities{}, map[string]workload.Quantities{}
	for _, a := range set {
		owner := "the pod's own"
		if a.container >= 0 {
			owner = "container " + s.Request.Pod.Containers[a.container].Name
		}
		if a.to == 0 {
			how = append(how, fmt.Sprintf("without %s   # in resources of %s", a.resource, owner))
			continue
		}
		if !slices.Contains(owners, owner) {
			owners = append(owners, owner)
			limits[owner], requests[owner] = workload.Quantities{}, workload.Quantities{}
		}
		if requests[owner][a.resource] = a.amount(a.to); !a.unlimited {
			limits[owner][a.resource] = a.amount(a.to)
		}
	}
	for _, owner := range owners {
		how = append(how, resources(limits[owner], requests[owner])+"   # "+owner+"; keep what else is there")
	}
	return how
}

// resources is the line of a manifest.
func resources(limits, requests workload.Quantities) string {
	var parts []string
	for _, part := range []struct {
		name    string
		amounts workload.Quantities
	}{{"limits", limits}, {"requests", requests}} {
		var amounts []string
		for _, r := range slices.Sorted(maps.Keys(part.amounts)) {
			amounts = append(amounts, fmt.Sprintf("%s: %q", r, r.Text(part.amounts[r])))
		}
		if len(amounts) > 0 {
			parts = append(parts, part.name+": {"+strings.Join(amounts, ", ")+"}")
		}
	}
	return "resources: {" + strings.Join(parts, ", ") + "}"
}
