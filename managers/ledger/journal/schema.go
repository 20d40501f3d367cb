package journal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"sync"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/ledger"
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
//	meta        settings                              storedSettings of the last commit, absent if they were not known
//	meta        memory                                Rules.Memory at the last commit, absent if it was empty
//	meta        reservation                           Reservation of the rules at the last commit
//	meta        claim-rules                           ClaimRules at the last commit, absent if claims may have nothing
//	meta        taken-pages                           Rules.TakenPages at the last commit, absent if there were none
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
	metaSettings   = "settings"
	metaMemory     = "memory"
	metaUncertain  = "uncertain"
	metaOverride   = "override"

	metaReservation = "reservation"
	metaClaims      = "claim-rules"
	metaTakenPages  = "taken-pages"
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

// storedSettings are Rules.Settings. They are of another commit than meta/config if a berth without them has written that.
type storedSettings struct {
	Config   string            `json:"config"` // Rules.ConfigDigest
	Settings map[string]string `json:"settings"`
}

// storedPod is the value of a pod's record.
type storedPod struct {
	*ledger.Pod
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

// Seal makes the entry for a value.
func Seal(bucket, key string, value any) (Entry, error) {
	e := encoders.Get().(*encoder)
	defer encoders.Put(e)
	e.text.Reset()
	if err := e.json.Encode(value); err != nil {
		return Entry{}, fmt.Errorf("encode %s/%s: %w", bucket, key, err)
	}
	return SealText(bucket, key, bytes.TrimSuffix(e.text.Bytes(), []byte("\n"))), nil
}

// encoder writes JSON into a buffer that serves many values.
type encoder struct {
	text bytes.Buffer
	json *json.Encoder
}

var encoders = sync.Pool{New: func() any {
	e := new(encoder)
	e.json = json.NewEncoder(&e.text)
	return e
}}

// SealText makes the entry for the JSON of a value, which may be in parts.
func SealText(bucket, key string, text ...[]byte) Entry {
	const start = sealStart + noSum + sealMiddle
	size := len(start) + len(sealEnd) + len(bucket) + len(key) + 2 // with the room of the checksum
	for _, part := range text {
		size += len(part)
	}
	out := append(make([]byte, 0, size), start...)
	for _, part := range text {
		out = append(out, part...)
	}
	sum := checksum(bucket, key, out[len(start):], out[len(out):])
	copy(out[len(sealStart):], sum[:])
	return Entry{Bucket: bucket, Key: key, Value: append(out, sealEnd...)}
}

// noSum stands where the checksum will be.
const noSum = "00000000"

// Unseal returns the JSON text of a value whose checksum holds.
func Unseal(e Entry) ([]byte, error) {
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
		return nil, nil, fmt.Errorf("no value next to the checksum")
	}
	return sum, text, nil
}

// Decode decodes a value whose checksum holds into v.
func Decode(e Entry, v any) error {
	text, err := Unseal(e)
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

// storedClaim is a claim with the entry that it was read from.
type storedClaim struct {
	ledger.Claim
	entry Entry
}

// sumOf puts a pod's claims in order and returns their sum.
func sumOf(claims []storedClaim) claimsSum {
	slices.SortFunc(claims, func(a, b storedClaim) int { return ledger.CompareClaims(a.Claim, b.Claim) })
	var sum claimsSum
	for _, c := range claims {
		sum.add(c.entry)
	}
	return sum
}

func (s claimsSum) String() string { return fmt.Sprintf("%08x", uint32(s)) }

// claimKeys returns the keys of a pod's claims, which are in order.
func claimKeys(claims []ledger.Claim) []string {
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

// NumberKey has as many digits for every number, so that the file has them in order.
func NumberKey(number uint64) string {
	const zeros = "00000000000000000000" // as many as the largest number has digits
	digits := strconv.FormatUint(number, 10)
	return zeros[len(digits):] + digits
}

// ParseNumber reads what NumberKey writes.
func ParseNumber(key string) (uint64, error) {
	number, err := strconv.ParseUint(key, 10, 64)
	if err == nil {
		err = matches(key, NumberKey(number))
	}
	if err != nil {
		return 0, errdefs.Corruptf("%.40q is no number of an entry: %w", key, err)
	}
	return number, nil
}

// batch collects entries; the first error stays.
type batch struct {
	entries []Entry
	err     error
}

func (b *batch) put(bucket, key string, value any) {
	e, err := Seal(bucket, key, value)
	if err != nil {
		b.err = cmp.Or(b.err, err)
		return
	}
	b.entries = append(b.entries, e)
}

func (b *batch) drop(bucket, key string) {
	b.entries = append(b.entries, Entry{Bucket: bucket, Key: key})
}

// generation writes the counts of a view, and the number of the last entry of the history.
func (b *batch) generation(v *ledger.View, recorded uint64) {
	b.put(BucketMeta, metaGeneration, storedGeneration{Number: v.Generation(), Entries: v.Entries(), Pods: v.NumPods(),
		Unknown: v.NumUnknownLive(), History: recorded})
}

// usualEntries is what an admission commits, and some more: the generation, a pod,
// its claims, its trace, and the trace that goes for it.
const usualEntries = 8

// encodeChanges returns the entries that turn old into next, which is old with changes and not shared yet: it gets the
// stored sizes of its new traces. The same changes give the same bytes.
func encodeChanges(old, next *ledger.View, changes *ledger.Content, recorded uint64) ([]Entry, error) {
	b := batch{entries: make([]Entry, 0, usualEntries)}
	b.generation(next, recorded)
	for _, uid := range ordered.Keys(changes.Pods) {
		was, _ := old.Pod(uid)
		is, _ := next.Pod(uid)
		b.pod(uid, was, is, next)
	}
	encodeEach(&b, BucketContainers, changes.Bindings)
	encodeEach(&b, BucketResources, changes.Resources)
	encodeEach(&b, BucketLeases, changes.Leases)
	encodeEach(&b, BucketExternalProviders, changes.ExternalProviders)
	encodeEach(&b, BucketUnknownLive, changes.Unknown)
	ledger.TraceChanges(old, next, func(number uint64, t *ledger.Trace) int {
		if t == nil {
			b.drop(BucketTraces, NumberKey(number))
		} else {
			b.put(BucketTraces, NumberKey(number), t)
		}
		return len(b.entries[len(b.entries)-1].Value)
	})
	b.uncertain(old.Uncertain(), next.Uncertain())
	if was, is := old.Epoch(), next.Epoch(); was.ID != is.ID || was.Base != is.Base {
		b.put(BucketMeta, metaEpochID, is.ID)
		b.put(BucketMeta, metaEpoch, is.Base)
	}
	return b.entries, b.err
}

func encodeEach[V any](b *batch, bucket string, changes map[string]*V) {
	for _, key := range ordered.Keys(changes) {
		if v := changes[key]; v != nil {
			b.put(bucket, key, v)
		} else {
			b.drop(bucket, key)
		}
	}
}

// pod writes a pod's record and those of its claims that changed.
func (b *batch) pod(uid string, old, next *ledger.Pod, v *ledger.View) {
	if next == nil {
		b.dropPod(uid, old)
		return
	}
	var stale map[string][]byte // the claims that it had
	if old != nil {
		stale = make(map[string][]byte, len(old.Claims))
		for i, key := range claimKeys(old.Claims) {
			e, err := Seal(BucketClaims, key, &old.Claims[i])
			b.err = cmp.Or(b.err, err)
			stale[key] = e.Value
		}
	}
	stored := &storedPod{Pod: next}
	if number, ok := v.TraceNumber(uid); ok {
		stored.TraceNumber = &number
	}
	at := len(b.entries)
	b.entries = append(b.entries, Entry{}) // the record, once the sum of its claims is known
	var sum claimsSum
	for i, key := range claimKeys(next.Claims) {
		e, err := Seal(BucketClaims, key, &next.Claims[i])
		b.err = cmp.Or(b.err, err)
		sum.add(e)
		if !bytes.Equal(stale[key], e.Value) {
			b.entries = append(b.entries, e)
		}
		delete(stale, key)
	}
	stored.ClaimsSum = sum.String()
	e, err := Seal(BucketPods, uid, stored)
	b.entries[at], b.err = e, cmp.Or(b.err, err)
	for _, key := range ordered.Keys(stale) {
		b.drop(BucketClaims, key)
	}
}

// dropPod removes a pod's record and its claims. Without a record there is nothing.
func (b *batch) dropPod(uid string, old *ledger.Pod) {
	if old == nil {
		return
	}
	b.drop(BucketPods, uid)
	keys := claimKeys(old.Claims)
	slices.Sort(keys)
	for _, key := range keys {
		b.drop(BucketClaims, key)
	}
}

// override writes the override if it changed.
func (b *batch) override(old, next *ledger.Override) {
	switch {
	case next == old:
	case next == nil:
		b.drop(BucketMeta, metaOverride)
	default:
		b.put(BucketMeta, metaOverride, next)
	}
}

// uncertain writes why the state is uncertain, if that changed.
func (b *batch) uncertain(old, next string) {
	switch {
	case next == old:
	case next == "":
		b.drop(BucketMeta, metaUncertain)
	default:
		b.put(BucketMeta, metaUncertain, next)
	}
}

// Dump returns every entry of a view as a journal would hold it, in order of
// buckets and keys. Equal views give equal bytes.
func Dump(v *ledger.View) ([]Entry, error) { return dump(v, v.Epoch().ID, v.Recorded()) }

// dump is Dump with another epoch and last entry of the history.
func dump(v *ledger.View, id ledger.EpochID, recorded uint64) ([]Entry, error) {
	var b batch
	for p := range v.Pods() {
		b.pod(p.UID(), nil, p, v)
	}
	for c := range v.Bindings() {
		b.put(BucketContainers, c.ID, c)
	}
	for r := range v.SeenResources() {
		b.put(BucketResources, r.Name, r)
	}
	for l := range v.Leases() {
		b.put(BucketLeases, l.ID, l)
	}
	for p := range v.ExternalProviders() {
		b.put(BucketExternalProviders, p.Name, p)
	}
	for u := range v.UnknownLivePods() {
		b.put(BucketUnknownLive, u.UID, u)
	}
	for number, trace := range v.Traces() {
		b.put(BucketTraces, NumberKey(number), trace)
	}
	b.uncertain("", v.Uncertain())
	b.override(nil, v.Override())
	b.generation(v, recorded)
	epoch := v.Epoch()
	epoch.ID = id
	b.facts(v.Rules(), ledger.Rules{}, epoch)
	if b.err != nil {
		return nil, errdefs.Internalf("dump ledger: %w", b.err)
	}
	slices.SortFunc(b.entries, CompareEntries)
	return b.entries, nil
}

// encodeRules returns the entries of a generation that changes only the rules, the override or the epoch.
func encodeRules(old, next *ledger.View, recorded uint64) ([]Entry, error) {
	var b batch
	b.generation(next, recorded)
	b.facts(next.Rules(), old.Rules(), next.Epoch())
	b.override(old.Override(), next.Override())
	return b.entries, b.err
}

// facts writes the schema, the epoch, and the machine and configuration of the rules; stored are the rules of before.
func (b *batch) facts(rules, stored ledger.Rules, epoch ledger.Epoch) {
	b.put(BucketMeta, metaSchema, schemaVersion)
	b.put(BucketMeta, metaMachine, rules.Machine.Fingerprint())
	b.put(BucketMeta, metaTopology, rules.Machine.Snapshot())
	b.put(BucketMeta, metaConfig, rules.ConfigDigest)
	if rules.Settings != nil {
		b.put(BucketMeta, metaSettings, storedSettings{rules.ConfigDigest, rules.Settings})
	}
	b.put(BucketMeta, metaReservation, rules.Reservation())
	if epoch.Base != 0 {
		b.put(BucketMeta, metaEpoch, epoch.Base)
	}
	if epoch.ID != 0 {
		b.put(BucketMeta, metaEpochID, epoch.ID)
	}
	if epoch.Boot != "" {
		b.put(BucketMeta, metaBootID, epoch.Boot)
	}
	switch {
	case slices.Equal(rules.Memory, stored.Memory):
	case len(rules.Memory) == 0:
		b.drop(BucketMeta, metaMemory)
	default:
		b.put(BucketMeta, metaMemory, rules.Memory)
	}
	switch {
	case slices.Equal(rules.TakenPages, stored.TakenPages):
	case len(rules.TakenPages) == 0:
		b.drop(BucketMeta, metaTakenPages)
	default:
		b.put(BucketMeta, metaTakenPages, rules.TakenPages)
	}
	switch claims := rules.Claims(); {
	case claims.Equal(stored.Claims()):
	case claims.IsZero():
		b.drop(BucketMeta, metaClaims)
	default:
		b.put(BucketMeta, metaClaims, claims)
	}
}

// versionOf returns the schema version of stored entries.
func versionOf(entries []Entry) (int, error) {
	for _, e := range entries {
		if e.Bucket != BucketMeta || e.Key != metaSchema {
			continue
		}
		text, err := Unseal(e)
		if err != nil {
			return 0, err
		}
		version, err := strconv.Atoi(string(text))
		if err != nil || version < 0 {
			return 0, fmt.Errorf("%q is no version", text)
		}
		return version, nil
	}
	return 0, errdefs.Corruptf("there is none, and there are %d other entries", len(entries))
}
