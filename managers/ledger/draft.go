package ledger

import (
	"maps"
	"slices"
)

// Content holds what a view has by key, or what a draft changes of that: nil removes a key.
type Content struct {
	Pods              map[string]*Pod            // by uid
	Unknown           map[string]*UnknownLivePod // by uid
	Bindings          map[string]*Binding        // by the runtime's container id
	Resources         map[string]*SeenResource   // by name
	Leases            map[string]*Lease          // by id
	ExternalProviders map[string]*ExternalProvider
}

func (c *Content) empty() bool {
	return len(c.Pods)+len(c.Unknown)+len(c.Bindings)+len(c.Resources)+len(c.Leases)+len(c.ExternalProviders) == 0
}

// Draft is a view with planned changes. It is not safe for concurrent use. A draft that is
// not committed needs no cleanup.
type Draft struct {
	base      *View
	changes   Content
	traces    []*Trace
	uncertain *string
	renewal   *Epoch // the new epoch, without the boot; nil: unchanged
	view      *View  // base with the changes; nil after a change
}

// NewDraft starts a draft on a view.
func NewDraft(base *View) *Draft { return &Draft{base: base} }

// Base returns the view that the draft started from.
func (d *Draft) Base() *View { return d.base }

// View returns the base with the draft's changes applied. Later changes of the draft do not
// affect it.
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
	return d.changes.empty() && len(d.traces) == 0 && d.uncertain == nil && d.renewal == nil
}

// PutPod adds or replaces a pod's record with all of its claims and, if it has one, its
// trace. The ledger owns the record from here on; its claims are sorted. The pod is no
// longer an unknown living pod.
func (d *Draft) PutPod(p *Pod) {
	slices.SortFunc(p.Claims, CompareClaims)
	set(&d.changes.Pods, p.UID(), p)
	drop(&d.changes.Unknown, p.UID(), d.base.UnknownLive(p.UID()))
	d.view = nil
}

// pod returns a pod's record in the draft. Unlike View it costs nothing while the draft changes.
func (d *Draft) pod(uid string) (*Pod, bool) {
	if p, changed := d.changes.Pods[uid]; changed {
		return p, p != nil
	}
	return d.base.Pod(uid)
}

// AddClaims adds claims to a pod of the draft. A claim replaces one with the same owner,
// resource and provider. The pod must exist.
func (d *Draft) AddClaims(uid string, claims ...Claim) {
	old, ok := d.pod(uid)
	if !ok || len(claims) == 0 {
		return
	}
	p := *old
	p.Claims = append(make([]Claim, 0, len(old.Claims)+len(claims)), old.Claims...)
	for _, c := range claims {
		i := 0
		for i < len(p.Claims) && p.Claims[i].Key() != c.Key() {
			i++
		}
		if i < len(p.Claims) {
			p.Claims[i] = c
		} else {
			p.Claims = append(p.Claims, c)
		}
	}
	d.PutPod(&p)
}

// DropClaims removes claims from a pod of the draft, and from its acknowledged claims:
// those with the owner, resource and provider of a given one.
func (d *Draft) DropClaims(uid string, claims ...Claim) {
	old, ok := d.pod(uid)
	if !ok || len(claims) == 0 {
		return
	}
	p := *old
	given := func(have Claim) bool {
		return slices.ContainsFunc(claims, func(c Claim) bool { return CompareClaims(have, c) == 0 })
	}
	p.Claims = slices.DeleteFunc(slices.Clone(old.Claims), given)
	p.Acknowledged = slices.DeleteFunc(slices.Clone(old.Acknowledged), given)
	d.PutPod(&p)
}

// RemovePod removes a pod with its claims and bindings. Its trace is kept while it is among
// the newest.
func (d *Draft) RemovePod(uid string) {
	view := d.View()
	if _, ok := view.pods.Get(uid); !ok {
		return
	}
	for b := range view.BindingsOf(uid) {
		set(&d.changes.Bindings, b.ID, nil)
	}
	set(&d.changes.Pods, uid, nil)
	d.view = nil
}

// Bind ties a runtime's container id to its owner.
func (d *Draft) Bind(b Binding) {
	set(&d.changes.Bindings, b.ID, &b)
	d.view = nil
}

// Unbind removes a container id.
func (d *Draft) Unbind(id string) {
	if _, known := d.base.Binding(id); drop(&d.changes.Bindings, id, known) {
		d.view = nil
	}
}

// PutResource stores a device resource.
func (d *Draft) PutResource(r SeenResource) {
	set(&d.changes.Resources, r.Name, &r)
	d.view = nil
}

// ForgetResource removes a device resource.
func (d *Draft) ForgetResource(name string) {
	if _, known := d.base.resources[name]; drop(&d.changes.Resources, name, known) {
		d.view = nil
	}
}

// PutLease stores an external provider's reservation.
func (d *Draft) PutLease(l Lease) {
	set(&d.changes.Leases, l.ID, &l)
	d.view = nil
}

// DropLease removes a reservation.
func (d *Draft) DropLease(id string) {
	if _, known := d.base.leases[id]; drop(&d.changes.Leases, id, known) {
		d.view = nil
	}
}

// PutExternalProvider adds or replaces the registration of an external provider.
func (d *Draft) PutExternalProvider(o ExternalProvider) {
	set(&d.changes.ExternalProviders, o.Name, &o)
	d.view = nil
}

// DropExternalProvider removes a registration.
func (d *Draft) DropExternalProvider(name string) {
	if _, known := d.base.externalProviders[name]; drop(&d.changes.ExternalProviders, name, known) {
		d.view = nil
	}
}

// PutTrace stores a trace without a pod's record, for example for a refused admission. The
// trace must not change afterwards.
func (d *Draft) PutTrace(t *Trace) {
	d.traces = append(d.traces, t)
	d.view = nil
}

// SetUncertain stores why the ledger may lack running pods; an empty reason makes the state
// certain.
func (d *Draft) SetUncertain(reason string) {
	d.uncertain, d.view = nil, nil
	if reason != d.base.uncertain {
		d.uncertain = &reason
	}
}

// RenewEpoch begins a new epoch with the draft's commit, for a ledger that is found to be
// an older copy. The epoch and the draft's other changes become durable together. The id
// must not be zero and should be random. Revisions continue from a new base (see
// Options.Epoch), because the copy's revisions were used for another state.
func (d *Draft) RenewEpoch(id EpochID, base uint64) {
	d.renewal, d.view = &Epoch{ID: id, Base: max(base, d.base.epoch.Base+1)}, nil
}

// set writes to a map, which is created on first use.
func set[V any](m *map[string]*V, key string, v *V) {
	if *m == nil {
		*m = make(map[string]*V)
	}
	(*m)[key] = v
}

// drop marks a key as deleted if the base or the changes have it, and returns whether that
// is so.
func drop[V any](changes *map[string]*V, key string, known bool) bool {
	changed, planned := (*changes)[key]
	switch {
	case planned && changed == nil, !planned && !known:
		return false
	case !known:
		delete(*changes, key)
	default:
		set(changes, key, nil)
	}
	return true
}

// apply returns the view with the draft's changes, at a generation.
func (d *Draft) apply(generation uint64) *View {
	v := d.base.with(&d.changes, generation)
	if d.uncertain != nil {
		v.uncertain = *d.uncertain
	}
	if d.renewal != nil {
		v.epoch.ID, v.epoch.Base = d.renewal.ID, d.renewal.Base
	}
	v.traces.explain(d)
	return v
}

// with returns the view with changes, at a generation.
func (v *View) with(c *Content, generation uint64) *View {
	next := *v
	next.generation = generation
	next.putUnknown(c.Unknown)
	next.put(c.Pods)
	for uid := range c.Unknown {
		if _, both := c.Pods[uid]; both { // one uid has held for two for a moment
			next.derive()
			break
		}
	}
	next.bindings = v.bindings.with(c.Bindings)
	for _, bound := range c.Bindings {
		if bound == nil {
			next.unbound = generation
		}
	}
	next.resources = overlay(v.resources, c.Resources)
	next.leases = overlay(v.leases, c.Leases)
	next.externalProviders = overlay(v.externalProviders, c.ExternalProviders)
	return &next
}

// overlay returns base with the changes applied; base itself if there are none.
func overlay[V any](base, changes map[string]*V) map[string]*V {
	if len(changes) == 0 {
		return base
	}
	out := make(map[string]*V, len(base)+len(changes))
	maps.Copy(out, base)
	maps.Copy(out, changes)
	maps.DeleteFunc(out, func(_ string, v *V) bool { return v == nil })
	return out
}
