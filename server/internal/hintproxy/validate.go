package hintproxy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

const (
	// maxPath is the longest path of a socket: sun_path of unix(7) has 108 bytes, including
	// the final zero.
	maxPath = 107
	// maxName is the longest DNS label.
	maxName = 63
	// maxDeadline limits the time of one call, which delays the admission.
	maxDeadline = 30 * time.Second
	// maxResources limits the resources of one provider.
	maxResources = 64
)

// validate checks a registration and sorts its resources.
func (r *Registry) validate(o *ledger.ExternalProvider) error {
	var vs errdefs.Violations
	switch {
	case !isLabel(o.Name):
		vs.Addf("provider", "%.80q: expected a DNS label of at most %d characters", o.Name, maxName)
	case r.isBuiltIn(o.Name):
		vs.Addf("provider", "%q is a provider inside berthd: expected another name", o.Name)
	}
	switch n := len(o.Endpoint); {
	case n > maxPath:
		vs.Addf("endpoint", "%d bytes: the kernel takes at most %d (unix(7), sun_path)", n, maxPath)
	case !filepath.IsAbs(o.Endpoint) || strings.ContainsRune(o.Endpoint, 0):
		vs.Addf("endpoint", "%q: expected the absolute path of a unix socket", o.Endpoint)
	}
	if o.Deadline <= 0 || o.Deadline > maxDeadline {
		vs.Addf("deadline", "%s: expected more than nothing and at most %s", o.Deadline, maxDeadline)
	}
	if n := len(o.Resources); n > maxResources {
		vs.Addf("resources", "%d resources: expected at most %d", n, maxResources)
	} else {
		for i, name := range o.Resources {
			if !workload.Resource(name).IsExtended() {
				vs.Addf(fmt.Sprintf("resources[%d]", i), "%.80q: expected the name of an extended resource such as example.com/nic", name)
			}
		}
	}
	o.Resources = slices.Compact(slices.Sorted(slices.Values(o.Resources)))
	return vs.Err("registration")
}

// isBuiltIn returns whether a name belongs to a provider inside berthd.
func (r *Registry) isBuiltIn(name string) bool {
	return slices.ContainsFunc(r.parts.Bus(), func(e hint.Entry) bool {
		_, required := e.Provider.(absent)
		return external(e.Provider) == nil && !required && e.Provider.Name() == name
	})
}

// isLabel returns whether a text is a DNS label (RFC 1123).
func isLabel(text string) bool {
	for i := range len(text) {
		c := text[i]
		alnum := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !alnum && (c != '-' || i == 0 || i == len(text)-1) {
			return false
		}
	}
	return len(text) > 0 && len(text) <= maxName
}

// same returns whether two registrations are equal.
func same(a, b ledger.ExternalProvider) bool {
	return a.Name == b.Name && a.Endpoint == b.Endpoint && a.UID == b.UID &&
		(a.GID == b.GID || a.GID != nil && b.GID != nil && *a.GID == *b.GID) && a.Required == b.Required &&
		a.Deadline == b.Deadline && a.Index == b.Index && slices.Equal(a.Resources, b.Resources) &&
		a.Validates == b.Validates && a.Explains == b.Explains
}
