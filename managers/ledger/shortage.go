package ledger

import (
	"cmp"
	"slices"
)

// Shortage says how much of a resource was missing, on which NUMA nodes, and
// who holds it. Amounts are in the resource's own unit: CPUs, bytes or devices.
// Free, Held and Withheld are together all that the nodes have of it.
type Shortage struct {
	Resource string `json:"resource"`
	// Nodes as a list; empty where nodes do not matter.
	Nodes string `json:"nodes,omitempty"`
	Need  uint64 `json:"need"`
	Free  uint64 `json:"free"`
	// Held is what the holders have together.
	Held uint64 `json:"held,omitempty"`
	// Withheld is what nobody holds and nobody can have; Why tells the reason in
	// a few words, such as "reserved".
	Withheld uint64 `json:"withheld,omitempty"`
	Why      string `json:"why,omitempty"`
	// Holders are those who hold most; MoreHolders counts the others.
	Holders     []Owner `json:"holders,omitempty"`
	MoreHolders int     `json:"more_holders,omitempty"`
}

// shownHolders is how many holders a shortage names.
const shownHolders = 8

// HeldBy fills in the holders. amount tells what a claim has of that which is
// missing, 0 if nothing. What several containers of a pod have in turn counts for
// each of them, so Held is for the caller to tell.
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

// HeldByPods fills in the holders where pods as a whole are: amount tells what a
// pod has.
func (s *Shortage) HeldByPods(view *View, amount func(*Pod) uint64) {
	var shares []share
	for pod := range view.Pods() {
		if n := amount(pod); n > 0 {
			shares = append(shares, share{Owner{Pod: pod.UID()}, n})
		}
	}
	s.name(shares)
}

// share is what one holder has.
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

// SuggestionKind names what a suggestion changes.
type SuggestionKind string

const (
	// SuggestRequest changes what the pod asks for.
	SuggestRequest SuggestionKind = "request"
	// SuggestPolicy changes the topology manager's policy or scope.
	SuggestPolicy SuggestionKind = "policy"
	// SuggestRemoval removes other pods.
	SuggestRemoval SuggestionKind = "removal"
)

// Suggestion is one change that makes a rejected pod fit; a dry run has shown
// it.
type Suggestion struct {
	Kind SuggestionKind `json:"kind"`
	// Text completes the sentence "the pod would fit if …".
	Text string `json:"text"`
	// Requests are the amounts to ask for.
	Requests []RequestChange `json:"requests,omitempty"`
	// Policy and Scope are those to set.
	Policy string `json:"policy,omitempty"`
	Scope  string `json:"scope,omitempty"`
	// Remove are the uids of the pods to remove.
	Remove []string `json:"remove,omitempty"`
}

// RequestChange is one amount of a pod's specification, request and limit alike;
// in the resource's own unit (CPUs, bytes, devices). An empty Container means
// the pod's own resources; To 0 that the resource is left out.
type RequestChange struct {
	Container string `json:"container,omitempty"`
	Resource  string `json:"resource"`
	From      uint64 `json:"from"`
	To        uint64 `json:"to"`
}
