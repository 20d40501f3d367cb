package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// The chain of a made-up history: version 0 kept a pod's digest in a bucket of
// its own and had no count of entries; version 1 is the first real one; version 2
// adds a lease that stands for anything.
var (
	fromZero migration = func(entries []Entry) ([]Entry, error) {
		var next []Entry
		digests := map[string]string{}
		for _, e := range entries {
			if e.Bucket != "digests" {
				continue
			}
			var digest string
			if err := Decode(e, &digest); err != nil {
				return nil, fmt.Errorf("%s/%s: %w", e.Bucket, e.Key, err)
			}
			digests[e.Key] = digest
		}
		for _, e := range entries {
			switch {
			case e.Bucket == "digests":
				continue
			case e.Bucket == BucketPods:
				var p ledger.Pod
				if err := Decode(e, &p); err != nil {
					return nil, err
				}
				p.Digest = digests[e.Key]
				e, _ = Seal(BucketPods, e.Key, &storedPod{Pod: &p, ClaimsSum: claimsSum(0).String()})
			case e.Bucket == BucketMeta && e.Key == metaGeneration:
				e, _ = Seal(BucketMeta, metaGeneration, storedGeneration{Number: 5, Entries: 1, Pods: 1})
			}
			next = append(next, e)
		}
		return next, nil
	}
	fromOne migration = func(entries []Entry) ([]Entry, error) {
		for i, e := range entries {
			if e.Bucket == BucketMeta && e.Key == metaGeneration {
				entries[i], _ = Seal(BucketMeta, metaGeneration, storedGeneration{Number: 5, Entries: 2, Pods: 1})
			}
		}
		lease, err := Seal(BucketLeases, "new", ledger.Lease{Provider: "p"})
		return append(entries, lease), err
	}
)

func sealed(t *testing.T, bucket, key string, value any) Entry {
	t.Helper()
	e, err := Seal(bucket, key, value)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func versionZero(t *testing.T) []Entry {
	p := map[string]any{"pod": map[string]any{"uid": "a", "containers": []any{}}, "qos": "BestEffort", "admission_id": "x"}
	return []Entry{
		sealed(t, BucketMeta, metaSchema, 0), sealed(t, BucketMeta, metaGeneration, 5),
		sealed(t, BucketMeta, metaMachine, "m"), sealed(t, BucketMeta, metaConfig, "c"),
		sealed(t, BucketPods, "a", p), sealed(t, "digests", "a", "d"),
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	for version, chain := range map[int][]migration{1: {fromZero}, 2: {fromZero, fromOne}} {
		old := versionZero(t)
		st, err := load(slices.Clone(old), version, chain)
		if err != nil || len(st.damage) > 0 {
			t.Fatalf("to version %d: %v, %v", version, err, st.damage)
		}
		if st.migratedFrom == nil || *st.migratedFrom != 0 {
			t.Errorf("to version %d: migrated from %v", version, st.migratedFrom)
		}
		if p := st.Pods["a"]; p == nil || p.Digest != "d" || st.Generation != 5 || len(st.Leases) != version-1 {
			t.Errorf("to version %d: pod %+v, generation %d, %d leases", version, p, st.Generation, len(st.Leases))
		}
		// What is pending makes a store of the new version out of the old one.
		merged := apply(old, st.pending)
		if found, err := versionOf(merged); err != nil || found != version {
			t.Errorf("after the first commit the version is %d, %v", found, err)
		}
		again, err := load(merged, version, nil)
		if err != nil || len(again.damage) > 0 || again.migratedFrom != nil || len(again.pending) > 0 {
			t.Errorf("after the first commit: %v, %v, migrated from %v", err, again.damage, again.migratedFrom)
		}
	}
}

// apply writes a batch over entries, as a journal does.
func apply(entries, batch []Entry) []Entry {
	for _, change := range batch {
		entries = slices.DeleteFunc(entries, func(e Entry) bool { return CompareEntries(e, change) == 0 })
		if change.Value != nil {
			entries = append(entries, change)
		}
	}
	return entries
}

func TestMigrateRefuses(t *testing.T) {
	t.Parallel()
	at := func(version any) []Entry {
		return append(versionZero(t)[1:], sealed(t, BucketMeta, metaSchema, version))
	}
	for name, c := range map[string]struct {
		entries []Entry
		chain   []migration
		class   errdefs.Class // of the error; damage is no error
		want    string
	}{
		"newer":            {at(7), nil, errdefs.Unsupported, "version 7, this berth reads versions up to 2"},
		"older than known": {at(0), nil, errdefs.Unsupported, "version 0, this berth reads versions 2 to 2"},
		"broken migration": {at(1), []migration{func([]Entry) ([]Entry, error) { return nil, errors.New("no way") }}, errdefs.Corrupt,
			"migrate from version 1: no way"},
		"negative": {at(-1), nil, errdefs.Corrupt, "is no version"},
		"text":     {at("one"), nil, errdefs.Corrupt, "is no version"},
		"none":     {versionZero(t)[1:], nil, errdefs.Corrupt, "there is none, and there are 5 other entries"},
		"damaged": {append(versionZero(t)[1:], Entry{Bucket: BucketMeta, Key: metaSchema, Value: []byte("1")}), nil,
			errdefs.Corrupt, "no checksum"},
	} {
		st, err := load(c.entries, 2, c.chain)
		if err == nil && len(st.damage) > 0 {
			err = errdefs.Corruptf("%s", st.damage[0])
		}
		if errdefs.ClassOf(err) != c.class || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, want %s: %q", name, err, c.class, c.want)
		}
	}
}

// FuzzLoad: values whose checksums hold, but whose content is anything, are
// decoded or reported, and what is decoded is the same after another round.
func FuzzLoad(f *testing.F) {
	const claim = `{"owner":{"pod":"a","container":"c"},"resource":"cpu","provider":"p","cpus":{"set":"1-2","use":"exclusive"}}`
	sum := sumOf([]storedClaim{{entry: SealText(BucketClaims, "a/c/cpu", []byte(claim))}}).String()
	for _, seed := range [][4]string{
		{"pods", "a", `{"pod":{"uid":"a","containers":[{"name":"c"}]},"claims":"` + sum + `"}`, "claims\na/c/cpu\n" + claim},
		{"claims", "a/·pod/memory", `{"owner":{"pod":"a"},"resource":"memory","memory":[{"nodes":"0-1","bytes":18446744073709551615}]}`,
			"pods\na\nnull"},
		{"traces", "00000000000000000007", `{"steps":null}`, "traces\n7\n{}"},
		{"containers", "x", `{"owner":{"pod":"a","container":"c"}}`, "meta\nother\n1"},
	} {
		f.Add(seed[0], seed[1], []byte(seed[2]), seed[3])
	}
	f.Fuzz(func(t *testing.T, bucket, key string, value []byte, more string) {
		entries := []Entry{SealText(bucket, key, value)}
		if parts := strings.SplitN(more, "\n", 3); len(parts) == 3 {
			entries = append(entries, SealText(parts[0], parts[1], []byte(parts[2])))
		}
		entries = append(entries, sealed(t, BucketMeta, metaSchema, schemaVersion), sealed(t, BucketMeta, metaMachine, "m"),
			sealed(t, BucketMeta, metaConfig, "c"), sealed(t, BucketMeta, metaGeneration,
				storedGeneration{Number: 1, Entries: len(entries), Pods: count(entries, BucketPods),
					Unknown: count(entries, BucketUnknownLive)}))
		st, err := load(entries, schemaVersion, migrations)
		if err != nil || len(st.damage) > 0 {
			return
		}
		v := dumpable(st.State)
		first, err := Dump(v)
		if err != nil {
			t.Fatalf("decoded, but not encoded: %v", err)
		}
		st, err = load(slices.Clone(first), schemaVersion, migrations)
		if err != nil || len(st.damage) > 0 {
			t.Fatalf("second round: %v, %v", err, st.damage)
		}
		second, err := Dump(dumpable(st.State))
		if err != nil {
			t.Fatal(err)
		}
		if a, b := text(t, first), text(t, second); !bytes.Equal(a, b) {
			t.Errorf("second round differs:\n%s\n%s", a, b)
		}
	})
}

// count returns how many entries a bucket has.
func count(entries []Entry, bucket string) (n int) {
	for _, e := range entries {
		if e.Bucket == bucket {
			n++
		}
	}
	return n
}

func text(t *testing.T, entries []Entry) []byte {
	t.Helper()
	out, err := json.Marshal(entries)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestUpgradePage: the page for operators names the schema that this version writes.
func TestUpgradePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/upgrade.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("migrates it to schema %d,", schemaVersion); !strings.Contains(string(page), want) {
		t.Errorf("docs/upgrade.md does not say %q", want)
	}
}
