package ledger

import (
	"errors"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
)

// Limits of what providers and device plugins have stored with claims: opaque claims, the settings of
// containers with their devices, and the ids of devices that no plugin lists. All of it is in memory, in the journal and
// in answers. The limits of a container and of a pod are for all providers together, so that many registrations get no
// more than one.
const (
	storedPerContainer = 256 << 10
	storedPerPod       = 1 << 20
	// storedPerProvider is the limit of a provider, or of the device plugin of a resource.
	storedPerProvider = 4 << 20
	// storedPerNode is the limit of everything together.
	storedPerNode = 128 << 20
)

// stored returns the bytes that the claim's provider, or the device plugin, has stored with it.
func stored(v *View, c *Claim) int {
	n := len(c.Opaque)
	if c.Devices == nil {
		return n
	}
	n += len(c.Devices.Response)
	if isExternal(v, c) {
		for i := range c.Devices.Devices {
			n += len(c.Devices.Devices[i].ID)
		}
	}
	return n
}

// isExternal returns whether an external provider made a claim.
func isExternal(v *View, c *Claim) bool {
	_, external := v.externalProviders[c.Provider]
	return external
}

// HasClaimsOf returns whether a pod has a claim of a provider.
func (v *View) HasClaimsOf(provider string) bool {
	for p := range v.allocations() {
		if slices.ContainsFunc(p.Claims, func(c Claim) bool { return c.Provider == provider }) {
			return true
		}
	}
	return false
}

// author returns who has stored something with a claim: an external provider, or the device plugin of a
// resource.
func author(v *View, c *Claim) string {
	if c.Devices == nil || isExternal(v, c) {
		return "provider " + c.Provider
	}
	return "the device plugin of " + c.Resource
}

// storedOf has the bytes of each author.
func storedOf(v *View, claims []Claim, into map[string]int) (total int) {
	for i := range claims {
		if n := stored(v, &claims[i]); n > 0 {
			into[author(v, &claims[i])] += n
			total += n
		}
	}
	return total
}

// CheckStored checks what providers have stored with a pod's claims against the limits. claims are those that
// the pod got last. An error is of class Exhausted, and names their provider, the owner, and the limit.
func (v *View) CheckStored(uid string, claims []Claim) error {
	pod, ok := v.pods.Get(uid)
	if !ok || !slices.ContainsFunc(claims, func(c Claim) bool { return stored(v, &c) > 0 }) {
		return nil
	}
	perOwner := map[Owner]int{}
	for i := range pod.Claims {
		perOwner[pod.Claims[i].Owner] += stored(v, &pod.Claims[i])
	}
	authors := map[string]int{}
	ofPod := storedOf(v, pod.Claims, map[string]int{})
	ofNode := 0
	for p := range v.allocations() {
		ofNode += storedOf(v, p.Claims, authors)
	}
	for i := range claims {
		c := &claims[i]
		if stored(v, c) == 0 {
			continue
		}
		for _, limit := range []struct {
			of         string
			have, most int
		}{
			{c.Owner.String(), perOwner[c.Owner], storedPerContainer},
			{"pod " + uid, ofPod, storedPerPod},
			{author(v, c), authors[author(v, c)], storedPerProvider},
			{"this node", ofNode, storedPerNode},
		} {
			if limit.have > limit.most {
				err := errdefs.Exhaustedf("provider %s stores too much with its claim of %s on %s: %s would have %d bytes of providers, expected at most %d",
					c.Provider, c.Owner, c.Resource, limit.of, limit.have, limit.most)
				err.Provider, err.Resource = c.Provider, c.Resource
				return err
			}
		}
	}
	return nil
}

// BlameStored adds the provider to the error of a commit that the journal had no space for, if most of the changes are
// its own.
func BlameStored(before *View, changes *Content, err error) error {
	full := new(errdefs.Error)
	if changes == nil || !errors.As(err, &full) || full.Class != errdefs.Exhausted {
		return err
	}
	authors, total := map[string]int{}, 0
	for _, p := range changes.Pods {
		if p == nil {
			continue
		}
		for i := range p.Claims {
			n := stored(before, &p.Claims[i])
			authors[p.Claims[i].Provider] += n
			total += n
		}
	}
	for provider, n := range authors {
		if n > total/2 {
			full.Provider = provider
			full.Message += ": most of it is what provider " + provider + " stores with claims"
		}
	}
	return full
}
