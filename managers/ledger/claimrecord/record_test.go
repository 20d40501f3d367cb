package claimrecord_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

const (
	someEpoch = ledger.EpochID(0x0123456789abcdef)
	someBoot  = "5f8ad6f0-7d6c-4a3e-9c5b-1c2d3e4f5a6b"
)

// someRecord has one of everything.
func someRecord() claimrecord.Record {
	c := ledger.Owner{Pod: "a", Container: "c"}
	return claimrecord.Record{
		Pod: "a", Namespace: "default", Name: "pod-a", BootID: someBoot, Epoch: someEpoch, Generation: 7,
		Digest: "digest-a", QoS: workload.Guaranteed, OwnedBy: "berthlet",
		Claims: []ledger.Claim{
			{Owner: ledger.Owner{Pod: "a"}, Provider: "outside", Resource: "vendor.com/lane", Opaque: []byte("lane 1")},
			{
				Owner: c, Provider: "cpu", Resource: "cpu", Affinity: &ledger.Affinity{Nodes: numa.Of(0), Preferred: true},
				CPUs: &ledger.CPUs{Set: cpuset.Of(2, 3), Use: ledger.CPUExclusive},
			},
			{Owner: c, Provider: "memory", Resource: "memory", Memory: []ledger.Block{{Nodes: numa.Of(0), Bytes: 1 << 20}}},
			{
				Owner: c, Provider: "device", Resource: "vendor.com/gpu",
				Devices: &ledger.Devices{Devices: []ledger.Device{{ID: "gpu-0", Nodes: numa.Of(0), Topology: true}}, Answer: "digest"},
			},
		},
		Bindings: []ledger.RecordedBinding{{ID: "containerd://1", Container: "c", CgroupPath: "/kubepods/poda/c", Own: true}},
	}
}

// TestClaimRecordRoundTrip: what is read is what was written, and the same record
// gives the same bytes.
func TestClaimRecordRoundTrip(t *testing.T) {
	t.Parallel()
	want := someRecord()
	data, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := claimrecord.Decode("a", data)
	if err != nil || !reflect.DeepEqual(*got, want) {
		t.Fatalf("%v\n%+v\n%+v", err, got, want)
	}
	again, err := got.Encode()
	if err != nil || !bytes.Equal(data, again) || !json.Valid(data) {
		t.Errorf("%v\n%s\n%s", err, data, again)
	}
}

// TestClaimRecordHasNoAnswers: of a plugin's answer the record has the digest.
func TestClaimRecordHasNoAnswers(t *testing.T) {
	t.Parallel()
	r := someRecord()
	r.Claims[3].Devices = &ledger.Devices{Devices: r.Claims[3].Devices.Devices, Response: bytes.Repeat([]byte("secret"), 20_000)}
	data, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := claimrecord.Decode("a", data)
	if err != nil {
		t.Fatal(err)
	}
	if d := got.Claims[3].Devices; d.Response != nil || len(d.Answer) != 64 || bytes.Contains(data, []byte("c2Vjcm")) {
		t.Errorf("devices %+v in %d bytes", d, len(data))
	}
	if !ledger.SameClaims(r.Claims, got.Claims) {
		t.Error("the claims are others")
	}
}

// TestClaimRecordIsBounded: a pod with more claims than a record can take is invalid,
// and the error has both sizes.
func TestClaimRecordIsBounded(t *testing.T) {
	t.Parallel()
	r := someRecord()
	for i := range 600 {
		r.Claims = append(r.Claims, ledger.Claim{
			Owner: ledger.Owner{Pod: "a", Container: fmt.Sprintf("d%04d", i)}, Provider: "cpu", Resource: "cpu",
			CPUs: &ledger.CPUs{Set: cpuset.Of(2, 3), Use: ledger.CPUExclusive}, Affinity: &ledger.Affinity{Nodes: numa.Of(0)},
		})
	}
	_, err := r.Encode()
	if errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), "49152") || strings.Count(err.Error(), "bytes") != 1 {
		t.Errorf("error %v", err)
	}
	r.Claims = r.Claims[:200]
	if data, err := r.Encode(); err != nil || len(data) > claimrecord.MaxBytes {
		t.Errorf("%d bytes: %v", len(data), err)
	}
}

// TestClaimRecordDamage: a record is used as a whole or not at all.
func TestClaimRecordDamage(t *testing.T) {
	t.Parallel()
	r := someRecord()
	whole, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		for bit := range 8 {
			data := bytes.Clone(whole)
			data[i] ^= 1 << bit
			if _, err := claimrecord.Decode("a", data); errdefs.ClassOf(err) != errdefs.Corrupt {
				t.Fatalf("bit %d of byte %d: %v", bit, i, err)
			}
		}
	}
	for i := range whole {
		if _, err := claimrecord.Decode("a", whole[:i]); err == nil {
			t.Fatalf("%d of %d bytes are believed", i, len(whole))
		}
	}
	if _, err := claimrecord.Decode("b", whole); err == nil {
		t.Error("the record of another pod is believed")
	}
	if _, err := claimrecord.Decode("a", make([]byte, claimrecord.MaxBytes+1)); err == nil ||
		!strings.Contains(err.Error(), "49153") {
		t.Errorf("a record beyond the limit: %v", err)
	}
}

// sealed puts a text into a record with a checksum that holds.
func sealed(pod, text string) []byte {
	name := "claim-record\x00" + pod + "\x00"
	return fmt.Appendf(nil, `{"crc":"%08x","value":%s}`, crc32.Checksum([]byte(name+text), crc32.MakeTable(crc32.Castagnoli)), text)
}

// TestClaimRecordContradictions: a checksum that holds does not make sense of what
// contradicts itself.
func TestClaimRecordContradictions(t *testing.T) {
	t.Parallel()
	const head = `{"format":1,"pod":"a","digest":"d","qos":"Guaranteed","epoch":"0123456789abcdef",`
	cpus := `{"container":"c","provider":"cpu","resource":"cpu","cpus":{"set":"1","use":"exclusive"}}`
	if _, err := claimrecord.Decode("a", sealed("a", head+`"claims":[`+cpus+`]}`)); err != nil {
		t.Fatalf("a good one: %v", err)
	}
	for name, text := range map[string]string{
		"another format": `{"format":2,"pod":"a","digest":"d","qos":"Guaranteed","epoch":"0123456789abcdef"}`,
		"another pod":    `{"format":1,"pod":"b","digest":"d","qos":"Guaranteed","epoch":"0123456789abcdef"}`,
		"no digest":      `{"format":1,"pod":"a","qos":"Guaranteed","epoch":"0123456789abcdef"}`,
		"no class":       `{"format":1,"pod":"a","digest":"d","qos":"Best","epoch":"0123456789abcdef"}`,
		"no epoch id":    `{"format":1,"pod":"a","digest":"d","qos":"Guaranteed","epoch":"x"}`,
		"no payload":     head + `"claims":[{"container":"c","provider":"cpu","resource":"cpu"}]}`,
		"twice":          head + `"claims":[` + cpus + `,` + cpus + `]}`,
		"no CPUs":        head + `"claims":[{"container":"c","provider":"cpu","resource":"cpu","cpus":{"set":"","use":"exclusive"}}]}`,
		"unknown use":    head + `"claims":[{"container":"c","provider":"cpu","resource":"cpu","cpus":{"set":"1","use":"mine"}}]}`,
		"no devices":     head + `"claims":[{"container":"c","provider":"device","resource":"r","devices":{"devices":[]}}]}`,
		"devices unsorted": head +
			`"claims":[{"container":"c","provider":"device","resource":"r","devices":{"devices":[{"id":"b"},{"id":"a"}]}}]}`,
		"memory nowhere": head +
			`"claims":[{"container":"c","provider":"memory","resource":"memory","memory":[{"nodes":"","bytes":1}]}]}`,
		"no id":           head + `"claims":[],"bindings":[{"container":"c"}]}`,
		"a list":          `[]`,
		"nothing":         `null`,
		"deep lists":      head + `"claims":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`,
		"deep objects":    head + `"x":` + strings.Repeat(`{"a":`, 9_000) + `1` + strings.Repeat("}", 9_000) + `}`,
		"a huge format":   `{"format":1e400,"pod":"a","digest":"d","qos":"Guaranteed","epoch":"0123456789abcdef"}`,
		"huge generation": head + `"generation":99999999999999999999999}`,
		"huge CPU": head +
			`"claims":[{"container":"c","provider":"cpu","resource":"cpu","cpus":{"set":"0-99999999999","use":"exclusive"}}]}`,
		"huge node": head +
			`"claims":[{"container":"c","provider":"memory","resource":"memory","memory":[{"nodes":"64","bytes":1}]}]}`,
		"negative bytes": head +
			`"claims":[{"container":"c","provider":"memory","resource":"memory","memory":[{"nodes":"0","bytes":-1}]}]}`,
		"parts beyond it": head +
			`"claims":[{"container":"c","provider":"memory","resource":"memory","memory":[{"nodes":"0-1","bytes":1,"parts":[{"node":0,"bytes":18446744073709551615},{"node":1,"bytes":2}]}]}]}`,
	} {
		if _, err := claimrecord.Decode("a", sealed("a", text)); errdefs.ClassOf(err) != errdefs.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNewClaimRecord: a record has what the ledger has of its pod, and of the ids of a
// container the newest.
func TestNewClaimRecord(t *testing.T) {
	t.Parallel()
	l, _ := ledgertest.Open(t, journal.Options{
		Journal: ledgertest.NewJournal(), Rules: ledger.Rules{Machine: machinetest.Build("2s1n4c2t")}, EpochID: someEpoch, BootID: someBoot,
	})
	c := ledger.Owner{Pod: "a", Container: "c"}
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutPod(ledgertest.With(ledgertest.Pod("a", "init:i", "c"),
			ledgertest.Exclusive("c", "14-15"), ledgertest.Memory("c", "memory", "0-1", 1<<20),
			ledgertest.Devices("c", "vendor.com/gpu", "gpu-1", "gpu-0"),
			ledger.Claim{Provider: "outside", Resource: "vendor.com/lane", Opaque: []byte("lane 1")},
			ledger.Claim{Provider: "zweiter", Resource: "vendor.com/lane", Opaque: []byte("lane 2")}))
		d.Bind(ledger.Binding{ID: "containerd://1", Owner: c, Sequence: 1})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	view, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.Bind(ledger.Binding{ID: "containerd://2", Owner: c, Sequence: 2})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := view.Pod("a")
	r := claimrecord.New(view, p, 9)
	if len(r.Bindings) != 1 || r.Bindings[0].ID != "containerd://2" || r.Generation != 9 || r.Epoch != view.EpochID() ||
		r.BootID != view.BootID() {
		t.Errorf("record %+v", r)
	}
	data, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := claimrecord.Decode("a", data)
	if err != nil || !ledger.SameClaims(got.Claims, p.Claims) || got.Digest != p.Digest || got.QoS != p.QoS {
		t.Errorf("%v: %+v", err, got)
	}
	if p.ChangedGeneration != 1 || r.Generation < p.ChangedGeneration {
		t.Errorf("changed at %d", p.ChangedGeneration)
	}
}

// FuzzDecodeClaimRecord: whatever is in an attribute, reading it neither panics nor
// gives a record that cannot be written again.
func FuzzDecodeClaimRecord(f *testing.F) {
	r := someRecord()
	data, err := r.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data, false)
	f.Add([]byte(`{"format":1,"pod":"a","digest":"d","qos":"BestEffort","epoch":"0123456789abcdef","claims":[]}`), true)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, data []byte, seal bool) {
		if seal { // past the checksum, where the parser is
			data = sealed("a", string(data))
		}
		r, err := claimrecord.Decode("a", data)
		if err != nil {
			if errdefs.ClassOf(err) != errdefs.Corrupt {
				t.Fatalf("class of %v", err)
			}
			return
		}
		again, err := r.Encode()
		if err != nil && errdefs.ClassOf(err) != errdefs.Invalid {
			t.Fatalf("written again: %v", err)
		}
		if err != nil {
			return
		}
		if _, err := claimrecord.Decode("a", again); err != nil {
			t.Fatalf("read again: %v", err)
		}
	})
}

func BenchmarkEncodeClaimRecord(b *testing.B) {
	r := someRecord()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Encode(); err != nil {
			b.Fatal(err)
		}
	}
}

// manyDevices returns a claim on devices with such ids.
func manyDevices(n int, id func(i int) string) ledger.Claim {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = id(i)
	}
	c := ledgertest.Devices("c", "vendor.com/many", ids...)
	c.Owner.Pod = "a"
	for i := range c.Devices.Devices {
		c.Devices.Devices[i].Nodes, c.Devices.Devices[i].Topology = numa.Of(i%2), true
	}
	return c
}

// TestManyDevicesFit: a record has 100,000 devices with numbered ids, on any nodes, with zeros in front or without.
func TestManyDevicesFit(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]func(i int) string{
		"numbers":       func(i int) string { return fmt.Sprintf("GPU-7a1c-_-%d", i) },
		"padded":        func(i int) string { return fmt.Sprintf("mem-%06d", i) },
		"partly padded": func(i int) string { return fmt.Sprintf("mem-%04d", i) },
		"nothing else":  func(i int) string { return fmt.Sprint(i) },
		"two numbers":   func(i int) string { return fmt.Sprintf("gpu-%d-%d", i/10_000, i%10_000) },
		"long numbers":  func(i int) string { return fmt.Sprintf("x%d", 999_999_999_999_950_000+i) },
	} {
		r := someRecord()
		claim := manyDevices(100_000, id)
		for i := range claim.Devices.Devices { // nodes follow the numbers, as memory of a GPU does
			claim.Devices.Devices[i].Nodes = numa.Of(0)
		}
		r.Claims = append(r.Claims, claim)
		data, err := r.Encode()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := claimrecord.Decode("a", data)
		if err != nil || !reflect.DeepEqual(*got, r) {
			t.Errorf("%s: %v, %d claims, %d unlisted", name, err, len(got.Claims), len(got.Unlisted))
		}
		if len(data) > 20<<10 {
			t.Errorf("%s: %d bytes", name, len(data))
		}
	}
}

// TestUnlistedClaims: devices and opaque bytes that do not fit have a digest, the largest first. They are known again
// beside the ledger, and nothing else completes the record.
func TestUnlistedClaims(t *testing.T) {
	t.Parallel()
	r := someRecord()
	large := manyDevices(100_000, func(i int) string { return fmt.Sprintf("%d-x", i*7919) })
	opaque := ledger.Claim{Owner: large.Owner, Provider: "outside", Resource: "vendor.com/opaque", Opaque: bytes.Repeat([]byte{7}, 200<<10)}
	r.Claims = append(r.Claims, large, opaque)
	data, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := claimrecord.Decode("a", data)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Unlisted) != 2 || len(got.Claims) != len(r.Claims)-2 {
		t.Fatalf("%d claims, %d unlisted", len(got.Claims), len(got.Unlisted))
	}
	if claims, whole := got.Completed(r.Claims); !whole || !ledger.SameClaims(claims, r.Claims) {
		t.Errorf("completed: %t, %d claims", whole, len(claims))
	}
	other := opaque
	other.Opaque = []byte("another")
	if claims, whole := got.Completed([]ledger.Claim{large, other}); whole || len(claims) != len(r.Claims)-1 {
		t.Errorf("completed with another claim: %t, %d claims", whole, len(claims))
	}
}

// TestEndlessRanges: a forged record cannot take more memory than a large pod.
func TestEndlessRanges(t *testing.T) {
	t.Parallel()
	for _, ids := range []string{
		`{"prefix":"x","first":0,"last":18446744073709551615}`, `{"prefix":"x","first":0,"last":262144}`,
		`{"prefix":"x","first":0,"last":200000},{"prefix":"y","first":0,"last":200000}`,
		`{"prefix":"x","first":5,"last":4}`, `{"prefix":"x","first":1,"last":1,"width":1000000000}`,
		`{"prefix":"x","first":1,"last":1,"width":-1}`,
	} {
		r := someRecord()
		data, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Replace(string(data), `"ids":["gpu-0"]`, `"ranges":[`+ids+`]`, 1)
		if text == string(data) {
			t.Fatalf("the record has no ids: %s", data)
		}
		if _, err := claimrecord.Decode("a", sealed("a", strings.TrimSuffix(text[strings.Index(text, `"value":`)+len(`"value":`):],
			"}"))); err == nil || !strings.Contains(err.Error(), "devices") {
			t.Errorf("%s: %v", ids, err)
		}
	}
}
