package journal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/machine"
)

// state is the readable part of a journal. Damage of one value does not affect others.
type state struct {
	ledger.State                   // without rules
	rules        ledger.PastRules  // of the last commit, as far as they are known
	topology     *machine.Topology // of the last commit; nil: not known
	settings     *storedSettings   // of the last commit that had some; nil: not known
	known        map[string]bool   // keys of metaFacts whose values were read
	unread       map[string]error  // why the others are unreadable; without absent ones
	fresh        bool              // the journal was empty
	migratedFrom *int
	pending      []Entry // written with the next commit
	damage       []check.Finding
	lost         map[string]*LostPod
	halves       map[string]half // of lost pods with a whole record
	uncertain    []string        // why there may be pods without any readable data

	counts   *storedGeneration // nil if unreadable
	found    int               // entries outside meta
	missing  int               // pods in the counts without entries
	restless bool              // revisions of this state may have been used for another one
}

// load migrates and decodes. Damage is recorded in the state; an error means that the
// version of the entries cannot be read.
func load(entries []Entry, version int, chain []migration) (state, error) {
	if len(entries) == 0 {
		return state{fresh: true}, nil
	}
	st := state{lost: map[string]*LostPod{}, halves: map[string]half{}, known: map[string]bool{}, unread: map[string]error{}}
	entries = slices.DeleteFunc(slices.Clone(st.rename(entries)), func(e Entry) bool { return OfHistory(e.Bucket) })
	found, err := versionOf(entries)
	switch {
	case err != nil:
		// All versions so far encode values in the same way, each with its checksum.
		st.stored(BucketMeta, metaSchema, fmt.Errorf("%w; version %d is assumed", err, version))
	case found != version:
		old := entries
		next, err := migrate(entries, found, version, chain)
		if errdefs.ClassOf(err) == errdefs.Unsupported {
			return st, err
		}
		if err != nil {
			st.stored(BucketMeta, metaSchema, err)
			break
		}
		entries = next
		st.migratedFrom = &found
		st.pending = difference(old, entries)
	}
	d := decoder{state: &st, records: map[string]*storedPod{}, claims: map[string][]storedClaim{}, torn: map[string]string{}}
	d.decode(entries)
	return st, nil
}

// buckets are all buckets, in the order of the schema's comment.
var buckets = []string{
	BucketMeta, BucketPods, BucketClaims, BucketTraces, BucketContainers, BucketResources, BucketLeases, BucketExternalProviders,
	BucketUnknownLive, BucketHistory, BucketHistoryOpen,
}

// BucketOf finds the bucket of a key and value by the value's checksum.
func BucketOf(key string, value []byte) (string, bool) {
	for _, bucket := range buckets {
		if _, err := Unseal(Entry{Bucket: bucket, Key: key, Value: value}); err == nil {
			return bucket, true
		}
	}
	return "", false
}

// KeyBefore finds the key that stands right before a value, and its bucket, by the value's
// checksum. Most texts are no key, so it costs less than BucketOf for each end of the text.
func KeyBefore(text, value []byte) (bucket, key string, ok bool) {
	sum, inside, err := splitSeal(value)
	if err != nil {
		return "", "", false
	}
	var stored [crcLen / 2]byte
	if _, err := hex.Decode(stored[:], sum); err != nil {
		return "", "", false
	}
	want := binary.BigEndian.Uint32(stored[:])
	starts := make([]uint32, len(buckets))
	for i, bucket := range buckets {
		starts[i] = crc32.Update(0, castagnoli, append([]byte(bucket), 0))
	}
	joined := append(append(bytes.Clone(text), 0), inside...)
	for begin := len(text) - 1; begin >= 0; begin-- {
		for i, bucket := range buckets {
			if crc32.Update(starts[i], castagnoli, joined[begin:]) == want {
				return bucket, string(text[begin:]), true
			}
		}
	}
	return "", "", false
}

// rename moves entries of unknown buckets to the bucket that their checksum matches,
// because only the bucket's name is damaged.
func (st *state) rename(entries []Entry) []Entry {
	for i, e := range entries {
		if slices.Contains(buckets, e.Bucket) {
			continue
		}
		if bucket, ok := BucketOf(e.Key, e.Value); ok {
			st.stored(e.Bucket, e.Key, fmt.Errorf("the entry belongs to bucket %s", bucket))
			if entries[i].Bucket != bucket {
				entries = slices.Clone(entries)
				entries[i].Bucket = bucket
			}
		}
	}
	return entries
}

// stored reports an unusable value.
func (st *state) stored(bucket, key string, err error) {
	st.damage = append(st.damage, check.Finding{
		Kind: check.Structural, Rule: check.RuleStored, Text: fmt.Sprintf("%s/%s: %v", bucket, key, err),
	})
}

// decoder builds a view from entries in any order.
type decoder struct {
	*state
	records map[string]*storedPod
	claims  map[string][]storedClaim // by the pod's uid
	torn    map[string]string        // why, by the uid in the key of an unreadable claim
}

func (d *decoder) decode(entries []Entry) {
	d.Content = ledger.Content{
		Pods: map[string]*ledger.Pod{}, Unknown: map[string]*ledger.UnknownLivePod{}, Bindings: map[string]*ledger.Binding{},
		Resources: map[string]*ledger.SeenResource{}, Leases: map[string]*ledger.Lease{},
		ExternalProviders: map[string]*ledger.ExternalProvider{},
	}
	seen, records, unknown := map[string]bool{}, 0, 0
	for _, e := range d.once(entries) {
		switch e.Bucket {
		case BucketMeta:
			seen[e.Key] = true
		case BucketPods:
			records++
			d.found++
		case BucketUnknownLive:
			unknown++
			d.found++
		default:
			d.found++
		}
		if err := d.entry(e); err != nil {
			d.damaged(e, err)
		}
	}
	for _, key := range []string{metaGeneration, metaMachine, metaConfig} {
		if !seen[key] {
			d.stored(BucketMeta, key, fmt.Errorf("is missing"))
		}
	}
	if d.unread[metaMachine] != nil && d.topology != nil {
		d.rules.Machine = d.topology.Fingerprint() // both were written together
	}
	d.join()
	d.count(records, unknown)
}

// once returns the entries in order, one for each key. Of several values the one with a
// correct checksum counts.
func (d *decoder) once(entries []Entry) []Entry {
	entries = slices.SortedStableFunc(slices.Values(entries), CompareEntries)
	all := entries[:0]
	for _, e := range entries {
		last := len(all) - 1
		if last < 0 || CompareEntries(all[last], e) != 0 {
			all = append(all, e)
			continue
		}
		_, first := Unseal(all[last])
		_, second := Unseal(e)
		again := fmt.Errorf("is listed twice")
		switch {
		case bytes.Equal(all[last].Value, e.Value), second != nil:
			d.stored(e.Bucket, e.Key, again)
		case first != nil:
			d.stored(e.Bucket, e.Key, again)
			all[last] = e
		default:
			d.damaged(e, again)
			all[last].Value = nil
		}
	}
	return all
}

// entry decodes one entry. Relations between entries are left to join.
func (d *decoder) entry(e Entry) error {
	switch e.Bucket {
	case BucketMeta:
		return d.meta(e)
	case BucketPods:
		p := storedPod{Pod: &ledger.Pod{}}
		if err := Decode(e, &p); err != nil {
			return err
		}
		if err := matches(e.Key, p.UID()); err != nil {
			return err
		}
		d.records[e.Key] = &p
		return nil
	case BucketClaims:
		var c ledger.Claim
		if err := Decode(e, &c); err != nil {
			return err
		}
		d.claims[c.Owner.Pod] = append(d.claims[c.Owner.Pod], storedClaim{c, e})
		return nil
	case BucketTraces:
		return d.trace(e)
	case BucketContainers:
		return decodeInto(e, d.Bindings, func(b *ledger.Binding) { b.ID = e.Key })
	case BucketResources:
		return decodeInto(e, d.Resources, func(r *ledger.SeenResource) { r.Name = e.Key })
	case BucketLeases:
		return decodeInto(e, d.Leases, func(l *ledger.Lease) { l.ID = e.Key })
	case BucketExternalProviders:
		return decodeInto(e, d.ExternalProviders, func(o *ledger.ExternalProvider) { o.Name = e.Key })
	case BucketUnknownLive:
		return decodeInto(e, d.Unknown, func(u *ledger.UnknownLivePod) { u.UID = e.Key })
	}
	return fmt.Errorf("the schema has no bucket %q", e.Bucket)
}

// damaged reports an unusable entry and the pods that it may concern. The key itself may be
// damaged, so the pod is not certain.
func (d *decoder) damaged(e Entry, err error) {
	if e.Bucket == BucketMeta && factOf(e.Key) != nil {
		d.unread[e.Key] = err
		return
	}
	d.stored(e.Bucket, e.Key, err)
	switch e.Bucket {
	case BucketMeta:
		if e.Key == metaUncertain {
			d.uncertain = append(d.uncertain, "the state was uncertain before, and the reason is damaged")
		}
	case BucketPods:
		d.lose(e.Key, fmt.Sprintf("its record is damaged: %v", err))
	case BucketClaims:
		uid, _, _ := strings.Cut(e.Key, "/")
		d.torn[uid] = fmt.Sprintf("its claim %s is damaged: %v", e.Key, err)
	case BucketUnknownLive:
		d.uncertain = append(d.uncertain, fmt.Sprintf("the note on the living pod %s is damaged", e.Key))
	case BucketTraces, BucketContainers, BucketResources, BucketLeases, BucketExternalProviders:
	default:
		d.uncertain = append(d.uncertain, fmt.Sprintf("it is not known what %s/%s was", e.Bucket, e.Key))
	}
}

// decodeInto decodes a value that stands for itself.
func decodeInto[V any](e Entry, m map[string]*V, name func(*V)) error {
	v := new(V)
	if err := Decode(e, v); err != nil {
		return err
	}
	name(v)
	m[e.Key] = v
	return nil
}

// matches refuses a value under a wrong key.
func matches(key, own string) error {
	if key != own {
		return fmt.Errorf("the value belongs under %q", own)
	}
	return nil
}

func (d *decoder) meta(e Entry) error {
	err := d.metaValue(e)
	d.known[e.Key] = err == nil
	return err
}

func (d *decoder) metaValue(e Entry) error {
	switch e.Key {
	case metaSchema:
		return nil // versionOf has read it
	case metaGeneration:
		var stored storedGeneration
		if err := Decode(e, &stored); err != nil {
			return err
		}
		d.Generation, d.Recorded, d.counts = stored.Number, stored.History, &stored
		return nil
	case metaEpoch:
		err := Decode(e, &d.Epoch.Base)
		d.restless = d.restless || err != nil
		return err
	case metaEpochID:
		return Decode(e, &d.Epoch.ID)
	case metaBootID:
		return Decode(e, &d.Epoch.Boot)
	case metaMachine:
		return Decode(e, &d.rules.Machine)
	case metaTopology:
		var stored machine.Snapshot
		err := Decode(e, &stored)
		if err == nil {
			d.topology, err = machine.New(stored)
		}
		if err != nil {
			d.topology = nil
		}
		return err
	case metaConfig:
		return Decode(e, &d.rules.Config)
	case metaSettings:
		var stored storedSettings
		if err := Decode(e, &stored); err != nil {
			return err
		}
		d.settings = &stored
		return nil
	case metaMemory:
		return Decode(e, &d.rules.Memory)
	case metaReservation:
		return Decode(e, &d.rules.Reservation)
	case metaClaims:
		return Decode(e, &d.rules.Claims)
	case metaTakenPages:
		return Decode(e, &d.rules.TakenPages)
	case metaUncertain:
		return Decode(e, &d.Uncertain)
	case metaOverride:
		var o ledger.Override
		if err := Decode(e, &o); err != nil {
			return err
		}
		d.Override, d.rules.Override = &o, &o
		return nil
	}
	return fmt.Errorf("the schema has no such key")
}

func (d *decoder) trace(e Entry) error {
	var t ledger.Trace
	if err := Decode(e, &t); err != nil {
		return err
	}
	number, err := ParseNumber(e.Key)
	if err != nil {
		return err
	}
	d.Traces = append(d.Traces, ledger.StoredTrace{Number: number, Trace: &t, Size: len(e.Value)})
	return nil
}

// join combines a pod's record, claims and trace. A pod is whole if its record is intact
// and its claims match the record.
func (d *decoder) join() {
	for _, uid := range ordered.Keys(d.records) {
		d.pod(uid, d.records[uid])
	}
	for _, uid := range ordered.Keys(d.claims) {
		if _, ok := d.records[uid]; ok {
			continue
		}
		d.damage = append(d.damage, check.Finding{
			Kind: check.Structural, Rule: check.RuleOwner, Owner: ledger.Owner{Pod: uid},
			Text: fmt.Sprintf("%d claims of pod %q, which is not there", len(d.claims[uid]), uid),
		})
		d.lose(uid, "its record is missing").add(d.claims[uid]...)
	}
	for uid := range d.lost {
		if stored := d.records[uid]; stored != nil {
			d.halves[uid] = half{sum: stored.ClaimsSum, trace: stored.TraceNumber, claims: d.claims[uid]}
		}
	}
	for _, uid := range ordered.Keys(d.torn) {
		if d.Pods[uid] == nil {
			d.lose(uid, d.torn[uid])
		}
	}
}

// half is an intact record without its claims.
type half struct {
	sum    string
	trace  *uint64
	claims []storedClaim
}

// pod adds a pod to the view, or to the lost pods.
func (d *decoder) pod(uid string, stored *storedPod) {
	claims := d.claims[uid]
	p := stored.Pod
	switch sum := sumOf(claims).String(); {
	// Sums from a migration do not cover claims that were lost before.
	case d.torn[uid] != "" && (sum != stored.ClaimsSum || d.migratedFrom != nil):
		d.lose(uid, d.torn[uid]).record(p).add(claims...)
	case sum != stored.ClaimsSum:
		why := fmt.Sprintf("its claims are not all there, or not those of its record: their sum is %s, that of the record %s", sum,
			stored.ClaimsSum)
		d.stored(BucketPods, uid, fmt.Errorf("%s", why))
		d.lose(uid, why).record(p).add(claims...)
	default:
		p.Claims = claimsOf(claims)
		for i, key := range claimKeys(p.Claims) {
			if claims[i].entry.Key != key {
				d.stored(BucketClaims, claims[i].entry.Key, fmt.Errorf("the claim belongs under the key %s", key))
			}
		}
		if stored.TraceNumber != nil {
			p.Trace = d.traceOf(uid, *stored.TraceNumber)
		}
		d.Pods[uid] = p
	}
}

// traceOf returns the trace of a pod's record; nil if it is damaged, which only affects the
// pod's explanation.
func (st *state) traceOf(uid string, number uint64) *ledger.Trace {
	at, ok := slices.BinarySearchFunc(st.Traces, number, func(t ledger.StoredTrace, n uint64) int { return cmp.Compare(t.Number, n) })
	if !ok {
		st.stored(BucketTraces, NumberKey(number), fmt.Errorf("the trace of pod %s is missing", uid))
		return nil
	}
	return st.Traces[at].Trace
}

// count compares the entries with the counts of the last commit.
func (d *decoder) count(records, unknown int) {
	if d.counts == nil {
		d.restless = true
		for _, p := range d.Pods {
			d.Generation = max(d.Generation, newest(p))
		}
		for _, t := range d.Traces {
			d.Generation = max(d.Generation, t.Trace.Generation)
		}
		d.uncertain = append(d.uncertain, "it is not known how many pods there were")
		return
	}
	if d.found != d.counts.Entries {
		d.stored(BucketMeta, metaGeneration, fmt.Errorf("the last commit left %d entries, %d are there", d.counts.Entries, d.found))
	}
	named := 0 // pods with claims but without a record
	for uid := range d.claims {
		if _, ok := d.records[uid]; !ok {
			named++
		}
	}
	for _, uid := range ordered.Keys(d.lost) {
		if d.records[uid] == nil && len(d.claims[uid]) == 0 && d.torn[uid] == "" {
			d.uncertain = append(d.uncertain, fmt.Sprintf("the damaged record of pod %s may be one of another pod", uid))
		}
	}
	d.missing = d.counts.Pods - records
	switch {
	case d.missing > named:
		d.uncertain = append(d.uncertain, fmt.Sprintf("there were %d pods at the last commit, the records of %d are there", d.counts.Pods,
			records))
	case unknown < d.counts.Unknown:
		d.uncertain = append(d.uncertain, fmt.Sprintf("%d pods lived here unknown at the last commit, the notes on %d are there",
			d.counts.Unknown, unknown))
	case d.found < d.counts.Entries && d.migratedFrom != nil: // pods were not counted then
		d.uncertain = append(d.uncertain, "entries are missing, and it is not known which")
	}
}
