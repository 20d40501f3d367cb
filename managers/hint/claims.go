package hint

import (
	"slices"

	"github.com/berthd/berth/managers/ledger"
)

// sameClaim compares two claims without what the outside adds: a device plugin's
// response, an outside provider's own description.
func sameClaim(a, b *ledger.Claim) bool {
	if a.Key() != b.Key() {
		return false
	}
	if (a.CPUs == nil) != (b.CPUs == nil) || a.CPUs != nil && *a.CPUs != *b.CPUs {
		return false
	}
	if (a.Devices == nil) != (b.Devices == nil) || a.Devices != nil && !slices.Equal(a.Devices.Devices, b.Devices.Devices) {
		return false
	}
	return slices.EqualFunc(a.Memory, b.Memory, ledger.Block.Equal)
}

// ofRequest returns the claims of a provider in a draft that the request's owner
// holds, in the order records keep them.
func ofRequest(draft *ledger.Draft, provider string, req Request) []ledger.Claim {
	pod, ok := draft.View().Pod(req.Pod.UID)
	if !ok {
		return nil
	}
	var claims []ledger.Claim
	owner := req.Owner()
	for _, c := range pod.Claims {
		if c.Provider == provider && c.Owner == owner {
			claims = append(claims, c)
		}
	}
	return claims
}

// drop removes a provider's claims of a pod from a draft.
func drop(draft *ledger.Draft, provider, uid string) {
	pod, ok := draft.View().Pod(uid)
	if !ok {
		return
	}
	kept := *pod
	kept.Claims = slices.DeleteFunc(slices.Clone(pod.Claims), func(c ledger.Claim) bool { return c.Provider == provider })
	draft.PutPod(&kept)
}
