package ledger

import (
	"maps"
	"slices"
)

// Draft is a view plus planned changes. It is not safe for concurrent use, and
// it is simply forgotten when it is not committed.
type Draft struct {
	base      *View
	pods      map[string]*Pod // nil: removed
	bindings  map[string]*Binding
	resources map[string]*SeenResource
	leases    map[string]*Lease
	traces    []*Trace
	view      *View // of base and changes; nil when a change made it stale
}

// NewDraft starts a draft on a view.
func NewDraft(base *View) *Draft { return &Draft{base: base} }

// Base returns the view that the draft started from.
func (d *Draft) Base() *View { return d.base }

// View returns the base with the draft's changes applied. It is a snapshot:
// later changes to the draft do not show in it.
func (d *Draft) View() *View {
	if d.view == nil {
		if d.Empty() {
			d.view = d.base
		} else {
			d.view = d.apply(d.base.generation)
		}
	}
	return d.view
}

// Empty reports whether the draft changes nothing.
func (d *Draft) Empty() bool {
	return len(d.pods)+len(d.bindings)+len(d.resources)+len(d.leases)+len(d.traces) == 0
}

// PutPod adds or replaces a pod's record with all of its claims.
func (d *Draft) PutPod(p *Pod) {
	slices.SortFunc(p.Claims, compareClaims)
	set(&d.pods, p.UID(), p)
	d.view = nil
}

// AddClaims gives a pod of the draft more claims. A claim that has the owner,
// resource and provider of an existing one replaces it. The pod must be known.
func (d *Draft) AddClaims(uid string, claims ...Claim) {
	old, ok := d.View().Pod(uid)
	if !ok || len(claims) == 0 {
		return
	}
	p := *old
	p.Claims = slices.Clone(old.Claims)
	for _, c := range claims {
		i := slices.IndexFunc(p.Claims, func(have Claim) bool { return compareClaims(have, c) == 0 })
		if i >= 0 {
			p.Claims[i] = c
		} else {
			p.Claims = append(p.Claims, c)
		}
	}
	d.PutPod(&p)
}

// RemovePod drops a pod with its claims and the bindings of its containers.
func (d *Draft) RemovePod(uid string) {
	view := d.View()
	for id, b := range view.bindings {
		if b.Owner.Pod == uid {
			set(&d.bindings, id, nil)
		}
	}
	set(&d.pods, uid, nil)
	d.view = nil
}

// Bind ties a runtime's container id to its owner.
func (d *Draft) Bind(b Binding) {
	set(&d.bindings, b.ID, &b)
	d.view = nil
}

// Unbind forgets a container id.
func (d *Draft) Unbind(id string) {
	set(&d.bindings, id, nil)
	d.view = nil
}

// PutResource remembers a device resource.
func (d *Draft) PutResource(r SeenResource) {
	set(&d.resources, r.Name, &r)
	d.view = nil
}

// ForgetResource drops a device resource.
func (d *Draft) ForgetResource(name string) {
	set(&d.resources, name, nil)
	d.view = nil
}

// PutLease remembers an outside provider's reservation.
func (d *Draft) PutLease(l Lease) {
	set(&d.leases, l.ID, &l)
	d.view = nil
}

// DropLease forgets a reservation.
func (d *Draft) DropLease(id string) {
	set(&d.leases, id, nil)
	d.view = nil
}

// PutTrace keeps the explanation of an admission, also of a refused one.
func (d *Draft) PutTrace(t *Trace) { d.traces = append(d.traces, t) }

// set writes to a map that is made on first use.
func set[V any](m *map[string]*V, key string, v *V) {
	if *m == nil {
		*m = make(map[string]*V)
	}
	(*m)[key] = v
}

// apply builds the view that results from the draft at a generation.
func (d *Draft) apply(generation uint64) *View {
	b := d.base
	return newView(View{
		rules:      b.rules,
		generation: generation,
		pods:       overlayPointers(b.pods, d.pods),
		bindings:   overlay(b.bindings, d.bindings),
		resources:  overlay(b.resources, d.resources),
		leases:     overlay(b.leases, d.leases),
	})
}

// overlay returns base with the changes applied; base itself if there are none.
func overlay[V any](base map[string]V, changes map[string]*V) map[string]V {
	if len(changes) == 0 {
		return base
	}
	out := maps.Clone(base)
	if out == nil {
		out = make(map[string]V, len(changes))
	}
	for k, v := range changes {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = *v
		}
	}
	return out
}

// overlayPointers is overlay for a map that already holds pointers.
func overlayPointers[V any](base, changes map[string]*V) map[string]*V {
	if len(changes) == 0 {
		return base
	}
	out := maps.Clone(base)
	if out == nil {
		out = make(map[string]*V, len(changes))
	}
	for k, v := range changes {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = v
		}
	}
	return out
}
