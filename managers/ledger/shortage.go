package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/workload"
)

// Shortage is the missing amount of a resource on some NUMA nodes, with its holders.
// Amounts are in the resource's unit: CPUs, bytes or devices. The sum of Free, Held and
// Withheld is the total of the nodes.
type Shortage struct {
	Resource string `json:"resource"`
	// Nodes as a list; empty if nodes do not matter.
	Nodes string `json:"nodes,omitempty"`
	Need  uint64 `json:"need"`
	Free  uint64 `json:"free"`
	// Held is the total of the holders.
	Held uint64 `json:"held,omitempty"`
	// Withheld is unclaimed and not allocatable; Why has the reason in a few words, for
	// example "reserved".
	Withheld uint64 `json:"withheld,omitempty"`
	Why      string `json:"why,omitempty"`
	// Holders are the largest holders; MoreHolders is the number of others.
	Holders     []Owner `json:"holders,omitempty"`
	MoreHolders int     `json:"more_holders,omitempty"`
	// Structural means that the nodes could not give it even if no pod was there: no removal helps. It is false for what may
	// come back by itself, such as unhealthy devices.
	Structural bool `json:"structural,omitempty"`
}

// shownHolders is the number of holders that a shortage names.
const shownHolders = 8

// HeldBy sets the holders. amount returns a claim's part of the missing resource, 0 for
// none. Containers of a pod that use the same memory in turn each count fully, so the
// caller sets Held.
func (s *Shortage) HeldBy(view *View, amount func(*Claim) uint64) {
	var shares []share
	for pod := range view.Pods() {
		for i := range pod.Claims {
			c := &pod.Claims[i]
			n := amount(c)
			if n == 0 {
				continue
			}
			if last := len(shares) - 1; last >= 0 && shares[last].owner == c.Owner {
				shares[last].amount += n
			} else {
				shares = append(shares, share{c.Owner, n})
			}
		}
	}
	s.name(shares)
}

// HeldByPods sets the holders for resources of whole pods: amount returns a pod's part.
func (s *Shortage) HeldByPods(view *View, amount func(*Pod) uint64) {
	var shares []share
	for pod := range view.Pods() {
		if n := amount(pod); n > 0 {
			shares = append(shares, share{Owner{Pod: pod.UID()}, n})
		}
	}
	s.name(shares)
}

// share is the part of one holder.
type share struct {
	owner  Owner
	amount uint64
}

func (s *Shortage) name(shares []share) {
	slices.SortStableFunc(shares, func(a, b share) int { return cmp.Compare(b.amount, a.amount) })
	for _, h := range shares[:min(len(shares), shownHolders)] {
		s.Holders = append(s.Holders, h.owner)
	}
	s.MoreHolders = max(len(shares)-shownHolders, 0)
}

// Text puts the shortage into words. There are no others for it: a trace has this text, and programs, the page and events
// repeat it. The view has the names of the holders.
func (s *Shortage) Text(view *View) string {
	text := s.Resource
	if s.Nodes != "" {
		text += " on " + s.place()
	}
	if text += ": " + s.amount(s.Need) + " needed, "; s.Structural && s.Free+s.Held+s.Withheld == 0 {
		text += "none there"
	} else {
		text += s.amount(s.Free) + " free"
	}
	if s.Held > 0 || len(s.Holders) > 0 {
		text += ", " + s.held(view)
	}
	switch {
	case s.Withheld > 0:
		text += ", " + s.amount(s.Withheld) + " " + cmp.Or(s.Why, "withheld")
	case s.Why != "":
		text += ", " + s.Why
	}
	if s.Structural {
		text += "; this can never fit on " + s.these(view)
	}
	return text
}

// these points to the nodes.
func (s *Shortage) these(view *View) string {
	switch machine := view.Machine().NodeMask(); {
	case s.Nodes == "", s.Nodes == machine.String():
		return "this machine"
	case strings.ContainsAny(s.Nodes, ",-"):
		return "these NUMA nodes"
	}
	return "this NUMA node"
}

// place names the nodes.
func (s *Shortage) place() string {
	if strings.ContainsAny(s.Nodes, ",-") {
		return "NUMA nodes " + s.Nodes
	}
	return "NUMA node " + s.Nodes
}

// held names the holders and what they have together.
func (s *Shortage) held(view *View) string {
	text := "held"
	if s.Held > 0 {
		text = s.amount(s.Held) + " held"
	}
	if s.Held > 1 && s.Free == 0 && s.Withheld == 0 {
		text = "all " + text
	}
	var owners []string
	for _, h := range s.Holders {
		owner := h.Pod
		if pod, ok := view.Pod(h.Pod); ok {
			owner = pod.Pod.Namespace + "/" + pod.Pod.Name
		}
		if h.Container != "" {
			owner += "/" + h.Container
		}
		owners = append(owners, owner)
	}
	if len(owners) > 0 {
		text += " by " + strings.Join(owners, ", ")
	}
	if s.MoreHolders > 0 {
		text += fmt.Sprintf(" and %d more", s.MoreHolders)
	}
	return text
}

// amount gives an amount in the resource's unit, rounded unless the free and the needed amount would then be the same.
func (s *Shortage) amount(n uint64) string {
	r := workload.Resource(s.Resource)
	switch {
	case r != workload.Memory && r != workload.EphemeralStorage && !r.IsHugePages():
		return strconv.FormatUint(n, 10)
	case workload.Bytes(s.Need) == workload.Bytes(s.Free):
		return r.Text(int64(min(n, 1<<63-1)))
	}
	return workload.Bytes(n)
}

// SuggestionKind names what a suggestion changes.
type SuggestionKind string

const (
	// SuggestRequest changes the pod's requests.
	SuggestRequest SuggestionKind = "request"
	// SuggestPolicy changes the topology manager's policy or scope.
	SuggestPolicy SuggestionKind = "policy"
	// SuggestRemoval removes other pods.
	SuggestRemoval SuggestionKind = "removal"
	// SuggestWait waits for other pods that do not run again when they have ended.
	SuggestWait SuggestionKind = "wait"
	// SuggestSplit divides a container into two.
	SuggestSplit SuggestionKind = "split"
)

// Suggestion is one change with which a rejected pod fits, verified by a dry run.
type Suggestion struct {
	Kind SuggestionKind `json:"kind"`
	// Text completes the sentence "the pod would fit …": "with topology policy best-effort …".
	Text string `json:"text"`
	// Requests are the new amounts.
	Requests []RequestChange `json:"requests,omitempty"`
	// Policy and Scope are the new settings.
	Policy string `json:"policy,omitempty"`
	Scope  string `json:"scope,omitempty"`
	// Remove are the uids of the pods to remove.
	Remove []string `json:"remove,omitempty"`
	// Wait are the uids of the pods to wait for.
	Wait []string `json:"wait,omitempty"`
	// How has the commands, or the changed lines of a manifest or a configuration, that carry it out.
	How []string `json:"how,omitempty"`
}

// RequestChange is one amount of a pod's specification, both request and limit, in the
// resource's unit (CPUs, bytes, devices). An empty Container means the pod-level resources;
// To 0 removes the resource.
type RequestChange struct {
	Container string `json:"container,omitempty"`
	Resource  string `json:"resource"`
	From      uint64 `json:"from"`
	To        uint64 `json:"to"`
}
