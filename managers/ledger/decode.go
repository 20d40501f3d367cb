package ledger

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/berthd/berth/managers/fault"
)

// state is what a journal held.
type state struct {
	view            View // without rules
	machine, config string
	memory          []NodeMemory
	fresh           bool // the journal was empty
	migratedFrom    *int
	pending         []Entry // to be written with the next commit
	damage          []Finding
}

// load migrates and decodes. Damage is in the state; an error means that the
// entries are of no version that can be read.
func load(entries []Entry, version int, chain []migration) (state, error) {
	if len(entries) == 0 {
		return state{fresh: true}, nil
	}
	var st state
	found, err := versionOf(entries)
	if err != nil {
		st.stored(BucketMeta, metaSchema, err)
		return st, nil
	}
	if found != version {
		old := entries
		if entries, err = migrate(entries, found, version, chain); err != nil {
			if fault.ClassOf(err) == fault.Unsupported {
				return st, err
			}
			st.stored(BucketMeta, metaSchema, err)
			return st, nil
		}
		st.migratedFrom = &found
		st.pending = difference(old, entries)
	}
	d := decoder{state: &st, pods: map[string]*storedPod{}, claims: map[string][]Claim{}, keys: map[string]bool{}}
	d.decode(entries)
	return st, nil
}

// stored notes a value that cannot be used.
func (st *state) stored(bucket, key string, err error) {
	st.damage = append(st.damage, Finding{
		Kind: Structural, Rule: RuleStored, Text: fmt.Sprintf("%s/%s: %v", bucket, key, err),
	})
}

// decoder builds a view out of entries in any order.
type decoder struct {
	*state
	pods   map[string]*storedPod
	claims map[string][]Claim // by the pod's uid
	keys   map[string]bool    // of claims

	entries, found int // outside meta: as counted at the last commit, and now
}

func (d *decoder) decode(entries []Entry) {
	entries = slices.SortedFunc(slices.Values(entries), compareEntries)
	d.view = View{
		resources: map[string]SeenResource{},
		leases:    map[string]Lease{},
		outsiders: map[string]Outsider{},
		unknown:   map[string]UnknownLivePod{},
	}
	seen := map[string]bool{}
	for i, e := range entries {
		if i > 0 && compareEntries(entries[i-1], e) == 0 {
			d.stored(e.Bucket, e.Key, fmt.Errorf("is there twice"))
			continue
		}
		if e.Bucket == BucketMeta {
			seen[e.Key] = true
		} else {
			d.found++
		}
		if err := d.entry(e); err != nil {
			d.stored(e.Bucket, e.Key, err)
		}
	}
	for _, key := range []string{metaGeneration, metaMachine, metaConfig} {
		if !seen[key] {
			d.stored(BucketMeta, key, fmt.Errorf("is missing"))
		}
	}
	if d.found != d.entries {
		d.stored(BucketMeta, metaGeneration, fmt.Errorf("the last commit left %d entries, %d are there", d.entries, d.found))
	}
	d.records()
}

// entry decodes one entry. What needs other entries is left to records.
func (d *decoder) entry(e Entry) error {
	switch e.Bucket {
	case BucketMeta:
		return d.meta(e)
	case BucketPods:
		p := storedPod{Pod: &Pod{}}
		if err := open(e, &p); err != nil {
			return err
		}
		d.pods[e.Key] = &p
		return matches(e.Key, p.UID())
	case BucketClaims:
		var c Claim
		if err := open(e, &c); err != nil {
			return err
		}
		d.claims[c.Owner.Pod] = append(d.claims[c.Owner.Pod], c)
		d.keys[e.Key] = true
		return nil
	case BucketTraces:
		return d.trace(e)
	case BucketContainers:
		var b Binding
		if err := open(e, &b); err != nil {
			return err
		}
		b.ID = e.Key
		d.view.bindings = d.view.bindings.with(b)
		return nil
	case BucketResources:
		return decodeInto(e, d.view.resources, func(r *SeenResource) { r.Name = e.Key })
	case BucketLeases:
		return decodeInto(e, d.view.leases, func(l *Lease) { l.ID = e.Key })
	case BucketOutsiders:
		return decodeInto(e, d.view.outsiders, func(o *Outsider) { o.Name = e.Key })
	case BucketUnknownLive:
		return decodeInto(e, d.view.unknown, func(s *UnknownLivePod) { s.UID = e.Key })
	}
	return fmt.Errorf("the schema has no bucket %q", e.Bucket)
}

// decodeInto decodes a value that stands for itself.
func decodeInto[V any](e Entry, m map[string]V, name func(*V)) error {
	var v V
	if err := open(e, &v); err != nil {
		return err
	}
	name(&v)
	m[e.Key] = v
	return nil
}

// matches tells a value under a key that is not its own.
func matches(key, own string) error {
	if key != own {
		return fmt.Errorf("the value belongs under %q", own)
	}
	return nil
}

func (d *decoder) meta(e Entry) error {
	switch e.Key {
	case metaSchema:
		return nil // has been read by versionOf
	case metaGeneration:
		var stored storedGeneration
		err := open(e, &stored)
		d.view.generation, d.entries = stored.Number, stored.Entries
		return err
	case metaEpoch:
		return open(e, &d.view.epoch.base)
	case metaEpochID:
		return open(e, &d.view.epoch.id)
	case metaBootID:
		return open(e, &d.view.epoch.boot)
	case metaMachine:
		return open(e, &d.machine)
	case metaConfig:
		return open(e, &d.config)
	case metaMemory:
		return open(e, &d.memory)
	case metaUncertain:
		return open(e, &d.view.uncertain)
	case metaOverride:
		d.view.override = new(Override)
		return open(e, d.view.override)
	}
	return fmt.Errorf("the schema has no such key")
}

func (d *decoder) trace(e Entry) error {
	var t Trace
	if err := open(e, &t); err != nil {
		return err
	}
	number, err := strconv.ParseUint(e.Key, 10, 64)
	if err != nil {
		return err
	}
	d.view.traces.load(number, &t, len(e.Value))
	return matches(e.Key, traceKey(number))
}

// records joins pods with their claims and traces.
func (d *decoder) records() {
	for _, uid := range sortedKeys(d.pods) {
		stored := d.pods[uid]
		p := stored.Pod
		p.Claims = d.claims[uid]
		delete(d.claims, uid)
		slices.SortFunc(p.Claims, compareClaims)
		for _, key := range claimKeys(p.Claims) {
			if !d.keys[key] {
				d.stored(BucketClaims, key, fmt.Errorf("its claim is under another key"))
			}
		}
		if stored.TraceNumber != nil {
			number := *stored.TraceNumber
			kept, ok := d.view.traces.kept.Get(number)
			if !ok {
				d.stored(BucketTraces, traceKey(number), fmt.Errorf("the trace of pod %s is missing", uid))
			} else {
				p.Trace = kept.trace
				d.view.traces.ofPods = d.view.traces.ofPods.Set(uid, number)
			}
		}
		d.view.pods = d.view.pods.Set(uid, p)
	}
	for _, uid := range sortedKeys(d.claims) {
		d.damage = append(d.damage, Finding{
			Kind: Structural, Rule: RuleOwner, Owner: Owner{Pod: uid},
			Text: fmt.Sprintf("%d claims of pod %q, which is not there", len(d.claims[uid]), uid),
		})
	}
}
