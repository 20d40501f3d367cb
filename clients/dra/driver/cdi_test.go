package driver

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// fileOf is a CDI file of the claim "a" with a part of CPUs 1 and 9, after a change.
func fileOf(t testing.TB, change func(c *claim, devices *[]device)) []byte {
	t.Helper()
	c := &claim{UID: "a", Namespace: "default", Name: "claim-a", Parts: []*part{{Name: "place", CPUs: "1,9",
		Resources: map[string]string{"cpu": "2", "memory": "1Gi"}}}}
	devices := []device{{Name: "a:place"}}
	change(c, &devices)
	allocation, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(specification{Version: "0.6.0", Kind: Kind,
		Annotations: map[string]string{allocationKey: string(allocation)}, Devices: devices})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestDamagedFiles: a CDI file that is not as berth-dra writes it is skipped, and the driver starts. Its claim is prepared again.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	second := func(p part) func(*claim, *[]device) {
		return func(c *claim, d *[]device) {
			p.Resources = map[string]string{"memory": "1Gi"}
			c.Parts, *d = append(c.Parts, &p), append(*d, device{Name: c.cdiName(&p)})
		}
	}
	for want, change := range map[string]func(c *claim, devices *[]device){
		"":                       func(*claim, *[]device) {},
		"part 0 is null":         func(c *claim, _ *[]device) { c.Parts[0] = nil },
		"0 parts and 1 devices":  func(c *claim, _ *[]device) { c.Parts = nil },
		"1 parts and 0 devices":  func(_ *claim, d *[]device) { *d = nil },
		`of claim "b"`:           func(c *claim, _ *[]device) { c.UID = "b" },
		"no claim's name":        func(c *claim, _ *[]device) { c.Name = "" },
		`CPUs "1-"`:              func(c *claim, _ *[]device) { c.Parts[0].CPUs = "1-" },
		`CPUs ""`:                func(c *claim, _ *[]device) { c.Parts[0].CPUs = "" },
		"NUMA node 64":           func(c *claim, _ *[]device) { c.Parts[0].Node = 64 },
		`memory "-1"`:            func(c *claim, _ *[]device) { c.Parts[0].Resources["memory"] = "-1" },
		`the device "a:left"`:    func(_ *claim, d *[]device) { (*d)[0].Name = "a:left" },
		"has CPUs 9 of another":  second(part{Name: "right", CPUs: "9-10"}),
		`part "place" has the`:   second(part{Name: "place", CPUs: "2"}),
		`part "" has the device`: second(part{CPUs: "2"}),
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName("a")), fileOf(t, change), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := openFiles(dir)
		if err != nil {
			t.Fatal(err)
		}
		claims, err := f.list()
		if (want == "") != (err == nil) || want != "" && !strings.Contains(fmt.Sprint(err), want) || (len(claims) == 1) != (want == "") {
			t.Errorf("%v, %v, want %q", claims, err, want)
		}
		if err := f.dir.Close(); err != nil {
			t.Fatal(err)
		}
		d, err := New(Config{CDIDirectory: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestPipesAndDirectories: what is no regular file is neither waited for nor read, and does not end the driver.
func TestPipesAndDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{fileName("a"), fileName("b") + unfinished} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, fileName("c")), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := openFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.dir.Close() }()
	claims, err := f.list()
	if claims == nil || len(claims) > 0 || strings.Count(fmt.Sprint(err), "no regular file") != 2 {
		t.Errorf("%v, %v", claims, err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, fileName("a")+unfinished), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.replace(fileName("a"), []byte("{}")); err != nil {
		t.Error(err)
	}
}

// TestFilesOfOthers: files of other drivers do not count, however many there are.
func TestFilesOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 2500 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("other-%d.json", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, fileName("a")), fileOf(t, func(*claim, *[]device) {}), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := openFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.dir.Close() }()
	if claims, err := f.list(); err != nil || len(claims) != 1 {
		t.Errorf("%v, %v", claims, err)
	}
}

// FuzzFile: whatever a CDI file has, the driver starts, and a claim that it takes over is complete.
func FuzzFile(f *testing.F) {
	f.Add(fileOf(f, func(*claim, *[]device) {}))
	f.Add(fileOf(f, func(c *claim, _ *[]device) { c.Parts[0] = nil }))
	f.Add([]byte(`{"annotations":{"dra.berthd.github.io/allocation":"null"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName("a")), text, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := New(Config{CDIDirectory: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for uid, c := range d.prepared {
			if uid != "a" || c.cpus().IsEmpty() || len(c.admission(Owner).GetRunningAllocations()) != len(c.Parts) {
				t.Errorf("%+v of %q", c, text)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestModeOfFiles: other users cannot read the names of namespaces and claims, also after a file with another mode was replaced.
func TestModeOfFiles(t *testing.T) {
	t.Parallel()
	f, err := openFiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.dir.Close()
	path := filepath.Join(f.dir.Name(), fileName("a"))
	if err := os.WriteFile(path, []byte("{}"), 0o644); err != nil { //nolint:gosec // as an earlier program could have
		t.Fatal(err)
	}
	for range 2 {
		if err := f.write(&claim{UID: "a", Namespace: "default", Name: "claim-a",
			Parts: []*part{{Name: "place", CPUs: "1,9"}}}); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		if err := os.Chmod(path, 0o644); err != nil { //nolint:gosec // the content stays
			t.Fatal(err)
		}
	}
}
