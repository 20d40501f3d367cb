package store_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/internal/store"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func options(j journal.Journal) journal.Options {
	return journal.Options{
		Journal: j, Rules: ledger.Rules{Machine: machinetest.Build("2s1n8c2t"), ConfigDigest: "one"},
		Epoch:   uint64(noon.UnixMilli()), // as OpenLedger has it at noon
		EpochID: 0xbe57,
	}
}

// pod is the i-th of the pods that these tests admit: three containers, six CPUs
// if i is small enough for the machine, a device, a trace.
func pod(i int) *ledger.Pod {
	uid := fmt.Sprintf("pod-%04d", i)
	p := ledgertest.With(ledgertest.Pod(uid, "init:first", "sidecar:proxy", "main"),
		ledgertest.Devices("main", "vendor.com/gpu", "gpu-"+uid),
		ledgertest.Memory("main", "memory", "0", 1<<20))
	if i < 32 {
		ledgertest.With(p, ledgertest.Exclusive("main", fmt.Sprint(i)))
	}
	p.Trace = &ledger.Trace{AdmissionID: p.AdmissionID, Pod: uid, Admitted: true, Steps: []ledger.Step{
		{Kind: ledger.StepAnswered, Provider: "cpu", Resource: "cpu"}, {Kind: ledger.StepCommitted},
	}}
	return p
}

// fill makes a file with some history and returns its bytes.
func fill(t *testing.T, path string, pods int) []byte {
	t.Helper()
	s := mustOpen(t, path, store.Options{})
	l, _ := ledgertest.Open(t, options(s))
	commit := func(change func(d *ledger.Draft)) {
		d := ledger.NewDraft(l.View())
		change(d)
		if _, err := l.Commit(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	for i := range pods {
		commit(func(d *ledger.Draft) {
			d.PutPod(pod(i))
			d.Bind(ledger.Binding{ID: fmt.Sprintf("cri://%d", i), Owner: ledger.Owner{Pod: fmt.Sprintf("pod-%04d", i), Container: "main"}})
		})
	}
	commit(func(d *ledger.Draft) { d.RemovePod("pod-0000") })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A damaged file is refused as such, kept untouched with a report, and the start goes
// on with every pod that is whole.
func TestDamage(t *testing.T) {
	t.Parallel()
	whole := fill(t, filepath.Join(t.TempDir(), "berth.db"), 4)
	flip := func(offset int) []byte {
		data := bytes.Clone(whole)
		data[offset] ^= 4
		return data
	}
	// Old copies of a page may still be in the file, so all of them are changed.
	flipAll := func(text string, at int) []byte {
		if !bytes.Contains(whole, []byte(text)) {
			t.Fatalf("%q is not in the file", text)
		}
		flipped := []byte(text)
		flipped[at] ^= 4
		return bytes.ReplaceAll(whole, []byte(text), flipped)
	}
	const page = 4096
	for name, c := range map[string]struct {
		data []byte
		want string
		pods int // -1: as many as the layout of the file lets live
	}{
		"garbage":               {bytes.Repeat([]byte("garbage "), 4096), "no meta page", 0},
		"empty":                 {[]byte{}, "the file ends at byte 0", 0},
		"one byte":              {[]byte("x"), "the file ends at byte 1", 0},
		"half a page":           {whole[:page/2], "page 1: the file ends at byte 2048", 0},
		"two pages":             {whole[:2*page], "the file should have", 0},
		"last page lost":        {whole[:len(whole)/page/2*page], "the file should have", -1},
		"zeroes":                {make([]byte, len(whole)), "no meta page", 0},
		"magic of meta 0":       {flip(16), "page 0: this is no meta page", 3},
		"root of meta 0":        {flip(32), "page 0: the meta page's checksum", 3},
		"transaction of meta 1": {flip(page + 16 + 48), "page 1: the meta page's checksum", 3},
		"header of meta 1":      {flip(page), "page 1: the meta page's header", 3},
		"value of a pod":        {flipAll(`"digest":"digest-pod-0002"`, 20), "pods/pod-0002: checksum is", 2},
		"key of a pod":          {flipAll(`pod-0003{"crc"`, 7), "pods/pod-0007: checksum is", 2},
		"text that is no JSON":  {flipAll(`{"crc"`, 0), "no checksum", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "berth.db")
			if err := os.WriteFile(path, c.data, 0o600); err != nil {
				t.Fatal(err)
			}
			s := mustOpen(t, path, store.Options{})
			defer s.Close()
			if _, _, err := journal.Open(t.Context(), options(s)); errdefs.ClassOf(err) != errdefs.Corrupt ||
				!strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("open a damaged ledger: %v, want %q", err, c.want)
			}
			l, _, damage, err := s.OpenLedger(t.Context(), options(nil), noon)
			if err != nil || damage == nil {
				t.Fatalf("start on a damaged ledger: %v, damage %v", err, damage)
			}
			if n := l.View().NumPods(); n != c.pods && c.pods >= 0 || l.View().EpochID() != 0xbe57 {
				t.Errorf("the new ledger has %d pods, epoch %s", l.View().NumPods(), l.View().EpochID())
			}
			if want := path + ".damaged-20261120T120000Z"; damage.SetAside != want || damage.File != path || !damage.Time.Equal(noon) {
				t.Errorf("damage is %+v, want it set aside as %s", damage, want)
			}
			if kept, err := os.ReadFile(damage.SetAside); err != nil || !bytes.Equal(kept, c.data) {
				t.Errorf("the file that was set aside has %d bytes (%v), want the %d it had", len(kept), err, len(c.data))
			}
			all, err := store.Damages(path)
			if err != nil || len(all) != 1 || !strings.Contains(all[0].Error, c.want) {
				t.Errorf("reports: %+v, %v", all, err)
			}
			d := ledger.NewDraft(l.View())
			d.PutPod(pod(20))
			if _, err := l.Commit(t.Context(), d); err != nil {
				t.Errorf("commit to the new ledger: %v", err)
			}
			ledgertest.Check(t, l)
		})
	}
}

// Whatever single byte is wrong: the ledger either is what it was (the byte
// means nothing) and continues, or is refused as corrupt. It never panics, hangs,
// or opens as something else. The stride reaches every offset within a page
// header, an element and a word.
func TestFlippedBytes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := fill(t, filepath.Join(dir, "berth.db"), 6)
	s := mustOpen(t, filepath.Join(dir, "berth.db"), store.Options{ReadOnly: true})
	defer s.Close()
	want, _ := ledgertest.Open(t, options(s))
	refused, same := 0, 0
	for offset := 0; offset < len(whole); offset += 23 {
		if from := max(offset-64, 0); allZero(whole[from:min(offset+64, len(whole))]) {
			continue // in the middle of nothing
		}
		data := bytes.Clone(whole)
		data[offset] ^= 1 << (offset % 8)
		got, err := view(t, filepath.Join(dir, "flipped.db"), data)
		switch {
		case err == nil:
			same++
			ledgertest.SameView(t, got, want.View())
		case errdefs.ClassOf(err) == errdefs.Corrupt:
			refused++
		default:
			t.Errorf("%v", err)
		}
		if t.Failed() {
			t.Fatalf("with byte %d of %d flipped", offset, len(whole))
		}
	}
	if refused == 0 || same == 0 {
		t.Errorf("%d flips refused, %d without meaning: the test has lost its subject", refused, same)
	}
}

func allZero(data []byte) bool { return len(bytes.Trim(data, "\x00")) == 0 }

// view opens data as a ledger's file. If that is possible it also commits to the
// ledger and opens it once more, and takes what it committed back.
func view(t *testing.T, path string, data []byte) (*ledger.View, error) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, path, store.Options{})
	defer func() { s.Close() }()
	l, _, err := journal.Open(t.Context(), options(s))
	if err != nil {
		return nil, err
	}
	found := l.View()
	lease := ledger.Lease{ID: "lease", Provider: "nobody"}
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutLease(lease); return nil }); err != nil {
		t.Errorf("commit: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	s = mustOpen(t, path, store.Options{})
	again, _, err := journal.Open(t.Context(), options(s))
	if err != nil {
		t.Errorf("open again: %v", err)
		return found, nil
	}
	ledgertest.SameView(t, again.View(), l.View())
	return found, nil
}

// FuzzOpen: no file brings the process down, and every file either opens or is
// refused with a class.
func FuzzOpen(f *testing.F) {
	f.Add([]byte("damaged"))
	f.Add(make([]byte, 4*4096))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "berth.db")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s := mustOpen(t, path, store.Options{ReadOnly: true})
		defer s.Close()
		_, _, err := journal.Open(t.Context(), options(s))
		if err != nil && errdefs.ClassOf(err) != errdefs.Corrupt && errdefs.ClassOf(err) != errdefs.Unsupported {
			t.Errorf("%v", err)
		}
	})
}

// A file of a newer berth is neither damaged nor touched.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	s := mustOpen(t, path, store.Options{})
	defer s.Close()
	if err := s.Commit(t.Context(), 1, []journal.Entry{newerSchema(t)}); err != nil {
		t.Fatal(err)
	}
	_, _, damage, err := s.OpenLedger(t.Context(), options(nil), noon)
	if damage != nil || err == nil || errdefs.ClassOf(err) != errdefs.Unsupported {
		t.Errorf("open a newer ledger: damage %v, %v", damage, err)
	}
}

// Two files damaged in the same second keep names of their own.
func TestSetAsideTwice(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	for range 2 {
		if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		s := mustOpen(t, path, store.Options{})
		if _, _, damage, err := s.OpenLedger(t.Context(), options(nil), noon); err != nil || damage == nil {
			t.Fatalf("%v, %v", damage, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	all, err := store.Damages(path)
	if err != nil || len(all) != 2 || all[0].SetAside == all[1].SetAside {
		t.Errorf("reports: %+v, %v", all, err)
	}
}

// A report that is damaged itself does not hide the file that it is about.
func TestUnreadableReport(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	aside := path + ".damaged-20261120T120000Z"
	for _, name := range []string{aside, aside + ".json", path + ".damaged-20261120T130000Z.json"} {
		if err := os.WriteFile(name, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := store.Damages(path)
	if err != nil || len(all) != 1 || all[0].SetAside != aside || !strings.Contains(all[0].Error, "cannot be read") {
		t.Errorf("reports: %+v, %v", all, err)
	}
}

// Readers leave a damaged file as it is.
func TestReadOnlyDamage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, path, store.Options{ReadOnly: true})
	defer s.Close()
	if _, _, damage, err := s.OpenLedger(t.Context(), options(nil), noon); errdefs.ClassOf(err) != errdefs.Precondition || damage != nil {
		t.Errorf("set aside while reading: damage %v, %v", damage, err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "damaged" {
		t.Errorf("the file is %q, %v", data, err)
	}
}

// newerSchema is the schema entry of a berth from the future. The checksum is
// that of the text; see the schema in package ledger.
func newerSchema(t *testing.T) journal.Entry {
	t.Helper()
	value := []byte("2000000")
	sum := crc32.Checksum(append([]byte("meta\x00schema\x00"), value...), crc32.MakeTable(crc32.Castagnoli))
	return journal.Entry{Bucket: "meta", Key: "schema", Value: fmt.Appendf(nil, `{"crc":"%08x","value":%s}`, sum, value)}
}

// TestOpenStrict: a strict open returns what a start would keep, and the
// file stays as it is.
func TestOpenStrict(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	whole := fill(t, path, 4)
	for name, data := range map[string][]byte{
		"a value": bytes.ReplaceAll(whole, []byte(`"digest":"digest-pod-0002"`), []byte(`"digest":"digest-pod-0003"`)),
		"a page":  append(bytes.Clone(whole[:4096+16]), bytes.Repeat([]byte("x"), len(whole)-4096-16)...),
		"nothing": whole,
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s := mustOpen(t, path, store.Options{})
		l, report, err := s.OpenStrict(t.Context(), options(nil), noon)
		switch name {
		case "nothing":
			if err != nil || l.View().NumPods() != 3 {
				t.Errorf("%s: %v", name, err)
			}
		case "a value":
			if errdefs.ClassOf(err) != errdefs.Corrupt || report.Whole != 2 ||
				!strings.Contains(fmt.Sprint(err), "2 pods are whole, 1 are lost (pod-0002)") {
				t.Errorf("%s: %v, report %+v", name, err, report)
			}
		default:
			if errdefs.ClassOf(err) != errdefs.Corrupt || !strings.Contains(fmt.Sprint(err), "0 pods are whole; others may be missing") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if kept, err := os.ReadFile(path); err != nil || !bytes.Equal(kept, data) {
			t.Errorf("%s: the file has changed: %v", name, err)
		}
	}
}
