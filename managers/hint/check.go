package hint

import (
	"fmt"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// CheckReply checks the form of a reply. Resources are in ascending order and unique. Every
// answer is of a known kind with the fields of its kind. Options are sorted, unique, and contain
// only nodes of the machine. An error is of class Corrupt and names the provider and the
// resource.
func CheckReply(r Reply, machine numa.Mask) error {
	for i := range r.Answers {
		a := &r.Answers[i]
		var text string
		switch {
		case a.Resource == "":
			text = "an answer names no resource"
		case i > 0 && a.Resource == r.Answers[i-1].Resource:
			text = "there are two answers"
		case i > 0 && a.Resource < r.Answers[i-1].Resource:
			text = fmt.Sprintf("it comes after %s, but answers are ordered by resource", r.Answers[i-1].Resource)
		default:
			text = a.check(machine)
		}
		if text != "" {
			return broken(r.Provider, a.Resource, "the hints of provider %s for %q are not usable: %s", r.Provider, a.Resource, text)
		}
	}
	return nil
}

// check describes an error of an answer; empty if there is none.
func (a *Answer) check(machine numa.Mask) string {
	switch {
	case a.Kind == NoPreference || a.Kind == Impossible:
		return ""
	case a.Kind == ByRule && a.Rule == nil:
		return "there is no rule"
	case a.Kind == ByRule:
		if text := a.Rule.check(machine); text != "" {
			return text
		}
	case a.Kind != Options:
		return fmt.Sprintf("kind %q is not known", a.Kind)
	case len(a.Hints) == 0:
		return "there are no options; expected the kind impossible"
	}
	return a.checkHints(machine)
}

// checkHints describes an error in the hints of an answer. There may be hundreds, so the usual
// case of ascending node sets is checked first.
func (a *Answer) checkHints(machine numa.Mask) string {
	var before numa.Mask
	size := 0
	for i := range a.Hints {
		h := &a.Hints[i]
		n, differ := h.Nodes.Len(), h.Nodes^before
		after := n > size || n == size && before.Overlaps(differ&-differ)
		if h.Any || h.Nodes == 0 || !h.Nodes.IsSubsetOf(machine) || !after || size == 0 && i > 0 {
			if text := a.checkHint(i, machine); text != "" {
				return text
			}
		}
		before, size = h.Nodes, n
	}
	return ""
}

// checkHint describes an error of one hint.
func (a *Answer) checkHint(i int, machine numa.Mask) string {
	switch h := a.Hints[i]; {
	case h.Any && a.Kind == ByRule:
		return fmt.Sprintf("option %d next to the rule names no nodes", i)
	case h.Any && h.Nodes != 0:
		return fmt.Sprintf("option %d names nodes and says that any will do", i)
	case !h.Any && h.Nodes == 0:
		return fmt.Sprintf("option %d names no nodes", i)
	case !h.Nodes.IsSubsetOf(machine):
		return fmt.Sprintf("option %d names nodes %s, the machine has %s", i, h.Nodes, machine)
	case i > 0 && compareHints(a.Hints[i-1], h) >= 0:
		return fmt.Sprintf("option %d is out of order or there twice", i)
	}
	return ""
}

// CheckPlan checks a provider's claims for a request: they are the provider's own, and for the
// requested container (for a whole pod, for the pod or one of its containers). An error is of
// class Corrupt and names the provider.
func CheckPlan(provider string, req Request, claims []ledger.Claim) error {
	for i := range claims {
		c := &claims[i]
		whole := req.Container < 0 && c.Owner.Pod == req.Pod.UID &&
			(c.Owner.Container == "" || req.Pod.Container(c.Owner.Container) != nil)
		switch {
		case c.Provider != provider:
			return broken(provider, c.Resource, "provider %s planned a claim in the name of %q", provider, c.Provider)
		case c.Resource == "":
			return broken(provider, "", "provider %s planned a claim that names no resource", provider)
		case !whole && c.Owner != req.Owner():
			return broken(provider, c.Resource, "provider %s planned a claim for %s, and %s was requested", provider, c.Owner, req.Owner())
		}
	}
	return nil
}

// CheckPrepared holds prepared claims against the planned ones: the same number,
// in the same order, each the same claim apart from what the outside added.
func CheckPrepared(provider string, planned, prepared []ledger.Claim) error {
	if len(planned) != len(prepared) {
		return broken(provider, "", "provider %s was given %d claims to prepare and returned %d", provider, len(planned), len(prepared))
	}
	for i := range planned {
		if !sameClaim(&planned[i], &prepared[i]) {
			return broken(provider, planned[i].Resource,
				"provider %s changed the claim of %s on %s while preparing it", provider, planned[i].Owner, planned[i].Resource)
		}
	}
	return nil
}

// broken is the error for a provider that does not keep a promise.
func broken(provider, resource, format string, args ...any) error {
	err := errdefs.Corruptf(format, args...)
	err.Provider, err.Resource = provider, resource
	return err
}
