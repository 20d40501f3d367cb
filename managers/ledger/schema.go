package ledger

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"iter"
	"maps"
	"slices"
	"strconv"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/internal/ordered"
)

// The schema. Version 1:
//
//	bucket      key                                   value
//	meta        schema                                number of the schema
//	meta        generation                            number of commits, counts of all entries outside meta and
//	                                                  history, of pods and of unknown living pods, and the number of
//	                                                  the last entry of the history
//	meta        epoch                                 Options.Epoch of the ledger's beginning, absent if it was 0
//	meta        epoch-id                              View.EpochID, absent if there is none
//	meta        boot-id                               View.BootID at the last commit, absent if it was not known
//	meta        machine                               machine.Topology.Fingerprint at the last commit
//	meta        topology                              machine.Snapshot of that machine. Only the history depends on it
//	meta        config                                Rules.ConfigDigest at the last commit
//	meta        memory                                Rules.Memory at the last commit, absent if it was empty
//	meta        reservation                           Reservation of the rules at the last commit
//	meta        claim-rules                           ClaimRules at the last commit, absent if claims may have nothing
//	meta        uncertain                             View.Uncertain, absent where there is none
//	meta        override                              Override, absent where there is none
//	pods        <uid>                                 Pod, with "trace": the number of its trace, if it has one, and
//	                                                  "claims": the sum of its claims; without "owned_by" it
//	                                                  belongs to DefaultOwner
//	claims      <uid>/<container or ·pod>/<resource>  Claim; "/<provider>" follows for every claim but the first in
//	                                                  order of providers, where several hold claims on one resource
//	traces      <number, 20 digits>                   Trace; numbers ascend and are not used again while kept
//	containers  <runtime's container id>              Binding
//	resources   <resource>                            SeenResource
//	leases      <id>                                  Lease
//	external-providers  <name>                        ExternalProvider
//	unknown-live-pods  <uid>                          UnknownLivePod
//	history     <number, 20 digits>                   a list of HistoryEntry, of which the first has the number; numbers
//	                                                  of a list ascend without gaps
//	history-open  <number, 20 digits>                 the last such list, as long as it gets more entries; at most one
//
// Every value is a JSON object {"crc":"xxxxxxxx","value":...}: the checksum is
// CRC-32C, in hexadecimal, over the bucket, a zero byte, the key, a zero byte and
// the bytes of the value as they stand there. It finds flipped bytes and values
// under a wrong key; lost entries are found by their count.
//
// The sum of a pod's claims is CRC-32C, in hexadecimal, over the key, a zero byte
// and the checksum of each of them in their order. It shows whether a pod has the
// claims that belong to its record: all of them, no others, and none of another time.
//
// The two epochs have different tasks. "epoch" is a time and the base of the
// revisions, so that those of later ledgers are higher; it stays as long as the
// ledger continues. "epoch-id" is random. Two things with the same value were written in
// the same life of the file. It changes whenever the file is created again.
//
// To change the schema: raise schemaVersion, append a migration that turns the
// entries of the former version into those of the new one, and add a golden file
// of the former version to the tests.
const schemaVersion = 1

// Keys of the meta bucket.
const (
	metaSchema     = "schema"
	metaGeneration = "generation"
	metaEpoch      = "epoch"
	metaEpochID    = "epoch-id"
	metaBootID     = "boot-id"
	metaMachine    = "machine"
	metaTopology   = "topology"
	metaConfig     = "config"
	metaMemory     = "memory"
	metaUncertain  = "uncertain"
	metaOverride   = "override"

	metaReservation = "reservation"
	metaClaims      = "claim-rules"
)

// podKey stands for the container in the key of a claim of the pod as a whole.
// It cannot be a container's name.
const podKey = "·pod"

// storedGeneration is the value of meta/generation.
type storedGeneration struct {
	Number  uint64 `json:"number"`
	Entries int    `json:"entries"`
	Pods    int    `json:"pods"`
	Unknown int    `json:"unknown,omitempty"`
	// History is the number of the last entry of the history; 0 if none was written.
	History uint64 `json:"history,omitempty"`
}

// storedPod is the value of a pod's record.
type storedPod struct {
	*Pod
	TraceNumber *uint64 `json:"trace,omitempty"`
	ClaimsSum   string  `json:"claims,omitempty"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	sealStart  = `{"crc":"`
	sealMiddle = `","value":`
	sealEnd    = `}`
	crcLen     = 8
)

// checksum covers bucket, key and value. The room is for its work, and may be nil.
func checksum(bucket, key string, value, room []byte) [crcLen]byte {
	name := append(append(room[:0], bucket...), 0)
	name = append(append(name, key...), 0)
	sum := crc32.Update(crc32.Update(0, castagnoli, name), castagnoli, value)
	var out [crcLen]byte
	hex.Encode(out[:], binary.BigEndian.AppendUint32(nil, sum))
	return out
}

func seal(bucket, key string, value any) (Entry, error) {
	var w bytes.Buffer
	w.WriteString(sealStart + noSum + sealMiddle)
	if err := json.NewEncoder(&w).Encode(value); err != nil {
		return Entry{}, fmt.Errorf("encode %s/%s: %w", bucket, key, err)
	}
	w.Truncate(w.Len() - len("\n")) // of the encoder
	return endSeal(bucket, key, &w), nil
}

// sealText makes the entry for the JSON of a value, which may be in parts.
func sealText(bucket, key string, text ...[]byte) Entry {
	const start = sealStart + noSum + sealMiddle
	size := len(start) + len(sealEnd) + len(bucket) + len(key) + 2 // with the room of the checksum
	for _, part := range text {
		size += len(part)
	}
	w := bytes.NewBuffer(make([]byte, 0, size))
	w.WriteString(start)
	for _, part := range text {
		w.Write(part)
	}
	return endSeal(bucket, key, w)
}

// endSeal puts the checksum in its place, where a value is written behind it.
func endSeal(bucket, key string, w *bytes.Buffer) Entry {
	out := w.Bytes()
	sum := checksum(bucket, key, out[len(sealStart)+crcLen+len(sealMiddle):], w.AvailableBuffer())
	copy(out[len(sealStart):], sum[:])
	w.WriteString(sealEnd)
	return Entry{Bucket: bucket, Key: key, Value: w.Bytes()}
}

// noSum stands where the checksum will be.
const noSum = "00000000"

// unseal returns the JSON text of a value whose checksum holds.
func unseal(e Entry) ([]byte, error) {
	sum, text, err := splitSeal(e.Value)
	if err != nil {
		return nil, err
	}
	if want := checksum(e.Bucket, e.Key, text, nil); string(sum) != string(want[:]) {
		return nil, fmt.Errorf("checksum is %s, stored is %s", want, sum)
	}
	return text, nil
}

// splitSeal returns the checksum and the JSON text of a stored value.
func splitSeal(value []byte) (sum, text []byte, err error) {
	rest, ok := bytes.CutPrefix(value, []byte(sealStart))
	if !ok || len(rest) < crcLen {
		return nil, nil, fmt.Errorf("no checksum")
	}
	sum, rest = rest[:crcLen], rest[crcLen:]
	rest, start := bytes.CutPrefix(rest, []byte(sealMiddle))
	text, end := bytes.CutSuffix(rest, []byte(sealEnd))
	if !start || !end {
		return nil, nil, fmt.Errorf("no value beside the checksum")
	}
	return sum, text, nil
}

// open decodes a value whose checksum holds into v.
func open(e Entry, v any) error {
	text, err := unseal(e)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// claimsSum grows over a pod's claims, as they are stored and in their order.
type claimsSum uint32

// add takes in a claim whose checksum holds.
func (s *claimsSum) add(e Entry) {
	sum := crc32.Update(uint32(*s), castagnoli, append([]byte(e.Key), 0))
	if len(e.Value) >= len(sealStart)+crcLen {
		sum = crc32.Update(sum, castagnoli, e.Value[len(sealStart):len(sealStart)+crcLen])
	}
	*s = claimsSum(sum)
}

// storedClaim is a claim beside the entry that it was read from.
type storedClaim struct {
	Claim
	entry Entry
}

// sumOf puts a pod's claims in order and returns their sum.
func sumOf(claims []storedClaim) claimsSum {
	slices.SortFunc(claims, func(a, b storedClaim) int { return compareClaims(a.Claim, b.Claim) })
	var sum claimsSum
	for _, c := range claims {
		sum.add(c.entry)
	}
	return sum
}

func (s claimsSum) String() string { return fmt.Sprintf("%08x", uint32(s)) }

// claimKeys returns the keys of a pod's claims, which are in order.
func claimKeys(claims []Claim) []string {
	keys := make([]string, len(claims))
	for i, c := range claims {
		container := cmp.Or(c.Owner.Container, podKey)
		keys[i] = c.Owner.Pod + "/" + container + "/" + c.Resource
		if i > 0 && claims[i-1].Owner == c.Owner && claims[i-1].Resource == c.Resource {
			keys[i] += "/" + c.Provider
		}
	}
	return keys
}

// traceKey has as many digits for every number, so that the file has them in order.
func traceKey(number uint64) string {
	const zeros = "00000000000000000000" // as many as the largest number has digits
	digits := strconv.FormatUint(number, 10)
	return zeros[len(digits):] + digits
}

// batch collects entries; the first error stays.
type batch struct {
	entries []Entry
	err     error
}

func (b *batch) put(bucket, key string, value any) {
	e, err := seal(bucket, key, value)
	if err != nil {
		b.err = cmp.Or(b.err, err)
		return
	}
	b.entries = append(b.entries, e)
}

func (b *batch) drop(bucket, key string) {
	b.entries = append(b.entries, Entry{Bucket: bucket, Key: key})
}

func (b *batch) generation(v *View) {
	b.put(BucketMeta, metaGeneration, storedGeneration{Number: v.generation, Entries: v.entries(), Pods: v.pods.Len(),
		Unknown: v.unknown.Len(), History: v.recorded})
}

// entries counts what is stored outside meta.
func (v *View) entries() int {
	return v.pods.Len() + v.facts.claims + v.traces.kept.Len() + v.bindings.byID.Len() +
		len(v.resources) + len(v.leases) + len(v.externalProviders) + v.unknown.Len()
}

// usualEntries is what an admission commits, and some more: the generation, a pod,
// its claims, its trace, and the trace that goes for it.
const usualEntries = 8

// encodeDraft returns the entries that turn old into next, where d made next of
// old. The same changes give the same bytes.
func encodeDraft(old, next *View, d *Draft) ([]Entry, error) {
	b := batch{entries: make([]Entry, 0, usualEntries)}
	b.generation(next)
	for _, uid := range sortedKeys(d.pods) {
		was, _ := old.pods.Get(uid)
		is, _ := next.pods.Get(uid)
		b.pod(uid, was, is, next)
	}
	encodeChanges(&b, BucketContainers, d.bindings)
	encodeChanges(&b, BucketResources, d.resources)
	encodeChanges(&b, BucketLeases, d.leases)
	encodeChanges(&b, BucketExternalProviders, d.externalProviders)
	encodeChanges(&b, BucketUnknownLive, d.unknown)
	b.traces(old, next)
	b.uncertain(old, next)
	if d.renewal != nil {
		b.put(BucketMeta, metaEpochID, next.epoch.id)
		b.put(BucketMeta, metaEpoch, next.epoch.base)
	}
	return b.entries, b.err
}

func encodeChanges[V any](b *batch, bucket string, changes map[string]*V) {
	for _, key := range sortedKeys(changes) {
		if v := changes[key]; v != nil {
			b.put(bucket, key, v)
		} else {
			b.drop(bucket, key)
		}
	}
}

// pod writes a pod's record and those of its claims that changed.
func (b *batch) pod(uid string, old, next *Pod, v *View) {
	var stale map[string][]byte // the claims that it had
	if old != nil {
		stale = make(map[string][]byte, len(old.Claims))
		for i, key := range claimKeys(old.Claims) {
			e, err := seal(BucketClaims, key, &old.Claims[i])
			b.err = cmp.Or(b.err, err)
			stale[key] = e.Value
		}
	}
	if next != nil {
		stored := &storedPod{Pod: next}
		if number, ok := v.traces.ofPods.Get(uid); ok {
			stored.TraceNumber = &number
		}
		at := len(b.entries)
		b.entries = append(b.entries, Entry{}) // the record, once the sum of its claims is known
		var sum claimsSum
		for i, key := range claimKeys(next.Claims) {
			e, err := seal(BucketClaims, key, &next.Claims[i])
			b.err = cmp.Or(b.err, err)
			sum.add(e)
			if !bytes.Equal(stale[key], e.Value) {
				b.entries = append(b.entries, e)
			}
			delete(stale, key)
		}
		stored.ClaimsSum = sum.String()
		e, err := seal(BucketPods, uid, stored)
		b.entries[at], b.err = e, cmp.Or(b.err, err)
	} else if old != nil {
		b.drop(BucketPods, uid)
	}
	for _, key := range sortedKeys(stale) {
		b.drop(BucketClaims, key)
	}
}

// traces writes the new traces, whose numbers are the highest, and drops the ones that are not kept any more.
func (b *batch) traces(old, next *View) {
	for c := range ordered.Diff(old.traces.kept, next.traces.kept) {
		switch {
		case !c.Is:
			b.drop(BucketTraces, traceKey(c.Key))
		case !c.Was:
			b.put(BucketTraces, traceKey(c.Key), c.New.trace)
		}
	}
}

// override writes the override if it changed.
func (b *batch) override(old, next *View) {
	switch {
	case next.override == old.override:
	case next.override == nil:
		b.drop(BucketMeta, metaOverride)
	default:
		b.put(BucketMeta, metaOverride, next.override)
	}
}

// uncertain writes why the state is uncertain, if that changed.
func (b *batch) uncertain(old, next *View) {
	switch {
	case next.uncertain == old.uncertain:
	case next.uncertain == "":
		b.drop(BucketMeta, metaUncertain)
	default:
		b.put(BucketMeta, metaUncertain, next.uncertain)
	}
}

// Dump returns every entry of a view as a journal would hold it, in order of
// buckets and keys. Equal views give equal bytes.
func Dump(v *View) ([]Entry, error) {
	var b batch
	for p := range v.Pods() {
		b.pod(p.UID(), nil, p, v)
	}
	encodeAll(&b, BucketContainers, v.bindings.byID.All())
	encodeAll(&b, BucketResources, maps.All(v.resources))
	encodeAll(&b, BucketLeases, maps.All(v.leases))
	encodeAll(&b, BucketExternalProviders, maps.All(v.externalProviders))
	encodeAll(&b, BucketUnknownLive, v.unknown.All())
	b.traces(&View{}, v)
	b.uncertain(&View{}, v)
	b.override(&View{}, v)
	meta, err := encodeMeta(v, Rules{})
	if err = cmp.Or(b.err, err); err != nil {
		return nil, errdefs.Internalf("dump ledger: %w", err)
	}
	entries := append(b.entries, meta...)
	slices.SortFunc(entries, compareEntries)
	return entries, nil
}

func encodeAll[V any](b *batch, bucket string, values iter.Seq2[string, V]) {
	for key, v := range values {
		b.put(bucket, key, v)
	}
}

// encodeMeta returns the entries of a generation that changes only rules; stored are
// those of before.
func encodeMeta(v *View, stored Rules) ([]Entry, error) {
	var b batch
	b.generation(v)
	facts, err := encodeFacts(v, stored)
	return append(b.entries, facts...), cmp.Or(b.err, err)
}

// encodeFacts returns the entries with the epoch and the schema,
// machine and configuration the rest was written; stored are the rules of before.
func encodeFacts(v *View, stored Rules) ([]Entry, error) {
	var b batch
	b.put(BucketMeta, metaSchema, schemaVersion)
	b.put(BucketMeta, metaMachine, v.rules.Machine.Fingerprint())
	b.put(BucketMeta, metaTopology, v.rules.Machine.Snapshot())
	b.put(BucketMeta, metaConfig, v.rules.ConfigDigest)
	b.put(BucketMeta, metaReservation, v.rules.reservation())
	if v.epoch.base != 0 {
		b.put(BucketMeta, metaEpoch, v.epoch.base)
	}
	if v.epoch.id != 0 {
		b.put(BucketMeta, metaEpochID, v.epoch.id)
	}
	if v.epoch.boot != "" {
		b.put(BucketMeta, metaBootID, v.epoch.boot)
	}
	switch {
	case slices.Equal(v.rules.Memory, stored.Memory):
	case len(v.rules.Memory) == 0:
		b.drop(BucketMeta, metaMemory)
	default:
		b.put(BucketMeta, metaMemory, v.rules.Memory)
	}
	switch claims := v.rules.claims(); {
	case claims.equal(stored.claims()):
	case claims.IsZero():
		b.drop(BucketMeta, metaClaims)
	default:
		b.put(BucketMeta, metaClaims, claims)
	}
	return b.entries, b.err
}

// versionOf returns the schema version of stored entries.
func versionOf(entries []Entry) (int, error) {
	for _, e := range entries {
		if e.Bucket != BucketMeta || e.Key != metaSchema {
			continue
		}
		text, err := unseal(e)
		if err != nil {
			return 0, err
		}
		version, err := strconv.Atoi(string(text))
		if err != nil || version < 0 {
			return 0, fmt.Errorf("%q is no version", text)
		}
		return version, nil
	}
	return 0, errdefs.Corruptf("there is none, beside %d other entries", len(entries))
}
