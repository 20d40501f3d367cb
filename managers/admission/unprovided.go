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

// UnknownResource says what becomes of a pod that asks for an extended resource
// which no plugin, no provider and no configuration knows.
type UnknownResource string

const (
	// IgnoreUnknown admits the pod without the resource, as the kubelet does; the
	// answer says so. The zero value means the same.
	IgnoreUnknown UnknownResource = "ignore"
	// DeferUnknown waits for the grace and then rejects the pod.
	DeferUnknown UnknownResource = "defer"
	// RejectUnknown rejects the pod at once.
	RejectUnknown UnknownResource = "reject"
)

// Everywhere in Resources.Elsewhere means every resource that nobody here knows.
const Everywhere = "*"

// Resources says what becomes of pods that ask for extended resources which nobody
// provides, or whose plugin is away.
type Resources struct {
	Unknown UnknownResource
	// Started is when plugins could begin to register.
	Started time.Time
	// Grace is how long after Started a pod waits for a resource that nobody knows,
	// and how long it waits for a plugin that went.
	Grace time.Duration
	// Elsewhere names resources of others by their names or domains, or all by
	// Everywhere.
	Elsewhere []string
}

// elsewhere reports whether a resource is somebody else's.
func (r *Resources) elsewhere(name workload.Resource) bool {
	domain, _, _ := strings.Cut(string(name), "/")
	return slices.ContainsFunc(r.Elsewhere, func(e string) bool {
		return e == string(name) || e == domain || e == Everywhere
	})
}

// unclaimed yields the extended resources that containers ask for and nobody gave
// them a claim on.
func unclaimed(pod *ledger.Pod) iter.Seq2[*workload.Container, workload.Resource] {
	return func(yield func(*workload.Container, workload.Resource) bool) {
		for _, c := range pod.Pod.Walk() {
			for name, n := range c.Limits.Sorted() {
				if !name.IsExtended() || n == 0 || claimed(pod, c.Name, string(name)) {
					continue
				}
				if !yield(c, name) {
					return
				}
			}
		}
	}
}

// claimed reports whether a container, or the pod as a whole, holds a resource.
func claimed(pod *ledger.Pod, container, resource string) bool {
	return slices.ContainsFunc(pod.Claims, func(c ledger.Claim) bool {
		return c.Resource == resource && (c.Owner.Container == container || c.Owner.Container == "")
	})
}

// checkProvided holds a plan against what the pod asks for. What is somebody else's,
// and what an advisory provider failed to give, passes with a note in the trace; an
// error is a refusal over the first resource that nobody knows.
func (e *Engine) checkProvided(view *ledger.View, c *candidate) error {
	pod, ok := view.Pod(c.uid())
	if !ok {
		return nil
	}
	var known []string
	for container, name := range unclaimed(pod) {
		if known == nil {
			known = c.bus.Resources()
		}
		step := ledger.Step{Kind: ledger.StepNoted, Container: container.Name, Resource: string(name)}
		switch {
		case slices.Contains(known, string(name)):
			step.Text = fmt.Sprintf("%s is known here, and nobody has given any of it", name)
		case e.Resources.elsewhere(name):
			step.Text = fmt.Sprintf("%s is left to others (devices.elsewhere)", name)
		case e.Resources.Unknown == DeferUnknown || e.Resources.Unknown == RejectUnknown:
			return e.refuseUnknown(container, name, known)
		default:
			step.Text = fmt.Sprintf("nobody here provides %s; the pod goes without it (devices.unknown: %s)", name, IgnoreUnknown)
		}
		c.trace.Add(step)
	}
	return nil
}

// ResourceUnknown is the condition of a pod that waits for somebody to register for
// a resource.
const ResourceUnknown = "ResourceUnknown"

// unregisteredError is behind the refusal of a pod that asks for a resource which
// may still be registered.
type unregisteredError struct {
	resource string
	text     string
}

// Error says what is missing and until when it may come.
func (u *unregisteredError) Error() string { return u.text }

// Waits tells that nobody has decided about the pod.
func (u *unregisteredError) Waits() hint.Wait {
	return hint.Wait{Condition: ResourceUnknown, Resource: u.resource, Undecided: true}
}

// namedResources bounds how many known resources a refusal names.
const namedResources = 16

// refuseUnknown refuses a pod over a resource that nobody knows; while plugins may
// still register the refusal is one that time may heal.
func (e *Engine) refuseUnknown(container *workload.Container, name workload.Resource, known []string) error {
	wants := fmt.Sprintf("container %s asks for %d %s", container.Name, container.Limits[name], name)
	r := e.Resources
	var err *errdefs.Error
	if r.Unknown == DeferUnknown && e.Now().Before(r.Started.Add(r.Grace)) {
		err = errdefs.Refuse(errdefs.OutOf(string(name)), "%w", &unregisteredError{string(name), fmt.Sprintf(
			"%s, for which no device plugin and no provider has registered yet; plugins have %s after the start of berthd to do so (devices.registrationGrace)",
			wants, r.Grace)})
	} else {
		err = errdefs.Refuse(errdefs.OutOf(string(name)), "%s, which no device plugin and no provider here has ever registered for: %s. "+
			"A resource that somebody else provides is named in devices.elsewhere", wants, list(known))
	}
	err.Resource = string(name)
	return err
}

// list names the known resources.
func list(known []string) string {
	switch n := len(known); {
	case n == 0:
		return "no resource is known"
	case n > namedResources:
		return fmt.Sprintf("known are %s and %d more", strings.Join(known[:namedResources], ", "), n-namedResources)
	}
	return "known are " + strings.Join(known, ", ")
}

// Note is something that a pod asks for and does not get from berth although it is
// let in.
type Note struct {
	// Container is empty where the pod as a whole asks.
	Container string
	Text      string
	// Expected notes are as configured; the others are worth a line of the log.
	Expected bool
}

// Notes tells what a pod of a view, or one of its containers, goes without. An
// empty container means all of them.
func (e *Engine) Notes(view *ledger.View, pod *ledger.Pod, container string) []Note {
	var notes []Note
	var known []string
	for c, name := range unclaimed(pod) {
		if container != "" && c.Name != container {
			continue
		}
		if known == nil {
			bus, _ := e.Managers(view)
			known = bus.Resources()
		}
		note := Note{Container: c.Name}
		switch {
		case slices.Contains(known, string(name)):
			note.Text = fmt.Sprintf("container %s was let in without the %d %s that it asks for, which is known here now; "+
				"to get it the pod has to be removed and admitted again", c.Name, c.Limits[name], name)
		case e.Resources.elsewhere(name):
			note.Expected = true
			note.Text = fmt.Sprintf("container %s asks for %d %s, which is left to others (devices.elsewhere)", c.Name, c.Limits[name], name)
		default:
			note.Text = fmt.Sprintf("container %s asks for %d %s, which nobody here provides: it goes without", c.Name, c.Limits[name], name)
		}
		notes = append(notes, note)
	}
	return notes
}

// noted returns a verdict with the notes about its pod. Of a pod that is not let in
// only what would be somebody else's is told: the message has the rest.
func (e *Engine) noted(c *candidate, v Verdict) Verdict {
	switch {
	case v.Pod != nil:
		v.Notes = e.Notes(v.View, v.Pod, "")
	case v.View != nil:
		v.Notes = slices.DeleteFunc(e.Notes(v.View, c.record, ""), func(n Note) bool { return !n.Expected })
	}
	for _, text := range c.unserved {
		v.Notes = append(v.Notes, Note{Text: text})
	}
	return v
}
