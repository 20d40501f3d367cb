package admission

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// UnknownResource is the treatment of a pod that requests an extended resource without any
// known plugin, provider or configuration.
type UnknownResource string

const (
	// IgnoreUnknown admits the pod without the resource, as the kubelet does, with a note
	// in the answer. The zero value has the same meaning.
	IgnoreUnknown UnknownResource = "ignore"
	// DeferUnknown defers the pod during Grace, and then rejects it.
	DeferUnknown UnknownResource = "defer"
	// RejectUnknown rejects the pod.
	RejectUnknown UnknownResource = "reject"
)

// Everywhere in Resources.Elsewhere means every unknown resource.
const Everywhere = "*"

// Resources configures the treatment of extended resources that are unknown or whose plugin
// is away.
type Resources struct {
	Unknown UnknownResource
	// Started is the time from which plugins could register.
	Started time.Time
	// Grace is the time after Started during which pods with unknown resources are
	// deferred, and the time during which pods are deferred after a plugin has
	// disconnected.
	Grace time.Duration
	// Elsewhere names resources of other programs, by name or domain, or all with
	// Everywhere.
	Elsewhere []string
}

// elsewhere returns whether another program serves a resource.
func (r *Resources) elsewhere(name workload.Resource) bool {
	domain, _, _ := strings.Cut(string(name), "/")
	return slices.ContainsFunc(r.Elsewhere, func(e string) bool {
		return e == string(name) || e == domain || e == Everywhere
	})
}

// unclaimed yields requested extended resources without a claim.
func unclaimed(pod *ledger.Pod) iter.Seq2[*workload.Container, workload.Resource] {
	return func(yield func(*workload.Container, workload.Resource) bool) {
		for _, c := range pod.Pod.Walk() {
			for name, n := range c.Limits.Sorted() {
				if !name.IsExtended() || n == 0 || c.HasExternal(string(name)) || claimed(pod, c.Name, string(name)) {
					continue
				}
				if !yield(c, name) {
					return
				}
			}
		}
	}
}

// claimed returns whether a container, or the pod as a whole, has a claim on a resource.
func claimed(pod *ledger.Pod, container, resource string) bool {
	return slices.ContainsFunc(pod.Claims, func(c ledger.Claim) bool {
		return c.Resource == resource && (c.Owner.Container == container || c.Owner.Container == "")
	})
}

// checkProvided compares a plan with the pod's requests. Resources served elsewhere, and
// resources that an advisory provider failed to allocate, are noted in the trace. An error
// is a refusal because of the first unknown resource.
func (c *candidate) checkProvided(view *ledger.View) error {
	pod, ok := view.Pod(c.uid())
	if !ok {
		return nil
	}
	var known []string
	for container, name := range unclaimed(pod) {
		if known == nil {
			known = c.Bus.Resources()
		}
		step := ledger.Step{Kind: ledger.StepNoted, Container: container.Name, Resource: string(name)}
		switch {
		case slices.Contains(known, string(name)):
			step.Text = fmt.Sprintf("%s is known here, but none of it was allocated", name)
		case c.Resources.elsewhere(name):
			step.Text = fmt.Sprintf("%s is left to others (devices.elsewhere)", name)
		case c.Resources.Unknown == DeferUnknown || c.Resources.Unknown == RejectUnknown:
			return c.Resources.refuse(container, name, known, c.Now())
		default:
			step.Text = fmt.Sprintf("%s has no provider here; the pod is admitted without it (devices.unknown: %s)", name, IgnoreUnknown)
		}
		c.trace.Add(step)
	}
	return nil
}

// ResourceUnknown is the condition of a pod that is deferred until a plugin or provider
// registers a resource.
const ResourceUnknown = "ResourceUnknown"

// unregisteredError is the cause of refusing a pod with a resource that may still be
// registered.
type unregisteredError struct {
	resource string
	text     string
}

// Error names the missing resource and the time until which it may be registered.
func (u *unregisteredError) Error() string { return u.text }

// Waits implements hint.Waiter: the pod stays undecided.
func (u *unregisteredError) Waits() hint.Wait {
	return hint.Wait{Condition: ResourceUnknown, Resource: u.resource, Undecided: true}
}

// namedResources limits the known resources that a refusal names.
const namedResources = 16

// refuse refuses a pod because of an unknown resource. While plugins may still
// register, the refusal is temporary.
func (r *Resources) refuse(container *workload.Container, name workload.Resource, known []string, now time.Time) error {
	wants := fmt.Sprintf("container %s requests %d %s", container.Name, container.Limits[name], name)
	var err *errdefs.Error
	if r.Unknown == DeferUnknown && now.Before(r.Started.Add(r.Grace)) {
		err = errdefs.Refuse(errdefs.OutOf(string(name)), "%w", &unregisteredError{string(name), fmt.Sprintf(
			"%s, for which no device plugin and no provider has registered yet; plugins have %s after the start of berthd to do so (devices.registrationGrace)",
			wants, r.Grace)})
	} else {
		err = errdefs.Refuse(errdefs.OutOf(string(name)), "%s, which no device plugin and no provider here has ever registered for: %s. "+
			"If another program provides the resource, add it to devices.elsewhere", wants, list(known))
	}
	err.Resource = string(name)
	return err
}

// list formats the known resources.
func list(known []string) string {
	switch n := len(known); {
	case n == 0:
		return "no resource is known"
	case n > namedResources:
		return fmt.Sprintf("known are %s and %d more", strings.Join(known[:namedResources], ", "), n-namedResources)
	}
	return "known are " + strings.Join(known, ", ")
}

// Note is a request of an admitted pod that berth has not allocated.
type Note struct {
	// Container is empty for a request of the pod as a whole.
	Container string
	Text      string
	// Expected notes follow from the configuration; others are logged.
	Expected bool
}

// Notes returns the notes of a pod in a view, or of one of its containers. An empty
// container means all of them.
func (e *Engine) Notes(view *ledger.View, pod *ledger.Pod, container string) []Note {
	var notes []Note
	var known []string
	for c, name := range unclaimed(pod) {
		if container != "" && c.Name != container {
			continue
		}
		if known == nil {
			known = e.resourcesOn(view)
		}
		note := Note{Container: c.Name}
		switch {
		case slices.Contains(known, string(name)):
			note.Text = fmt.Sprintf("container %s was admitted without the %d %s that it requests, which is known here now; "+
				"remove the pod and admit it again to allocate it", c.Name, c.Limits[name], name)
		case e.Resources.elsewhere(name):
			note.Expected = true
			note.Text = fmt.Sprintf("container %s requests %d %s, which another program allocates (devices.elsewhere)", c.Name,
				c.Limits[name], name)
		default:
			note.Text = fmt.Sprintf("container %s requests %d %s, which has no provider here: the container does not get it", c.Name,
				c.Limits[name], name)
		}
		notes = append(notes, note)
	}
	return notes
}

// resourcesOn returns the resources of the providers that decide on a view, or of those that
// decide now if the view is outdated.
func (e *Engine) resourcesOn(view *ledger.View) []string {
	b, err := e.BasisOn(view)
	if err != nil {
		b, err = e.Basis(e.Ledger.View)
	}
	if err != nil {
		return []string{}
	}
	return b.Bus.Resources()
}

// noted returns a verdict with the notes about its pod. For a pod that is not admitted, it
// adds only notes about resources served elsewhere; the message has the rest.
func (c *candidate) noted(v Verdict) Verdict {
	switch {
	case v.Pod != nil:
		v.Notes = c.Notes(v.View, v.Pod, "")
	case v.View != nil:
		v.Notes = slices.DeleteFunc(c.Notes(v.View, c.record, ""), func(n Note) bool { return !n.Expected })
	}
	for _, text := range c.unserved {
		v.Notes = append(v.Notes, Note{Text: text})
	}
	return v
}
