package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func claimFile(uid string, cpus ...string) string {
	var parts []string
	for _, c := range cpus {
		parts = append(parts, fmt.Sprintf(`{\"name\": \"place\", \"numaNode\": 0, \"cpus\": \"%s\"}`, c))
	}
	return fmt.Sprintf(`{"cdiVersion": "0.6.0", "kind": "dra.berthd.github.io/claim", "annotations": {"dra.berthd.github.io/allocation": "{\"uid\": \"%s\", \"parts\": [%s]}"}}`,
		uid, strings.Join(parts, ", "))
}

// TestPreparedCPUs: the CPUs of the claims that are not known. Files that are damaged, links and pipes are reported and hide no
// other file, and files of other programs are not opened.
func TestPreparedCPUs(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	known := func(uid string) bool { return uid == "known" }
	if cpus, err := m.PreparedCPUs(known); !cpus.IsEmpty() || err != nil {
		t.Errorf("without files: %s, %v", cpus, err)
	}
	file := func(uid string) string { return "run/dra.berthd.github.io-" + uid + ".json" }
	m.write(file("a"), claimFile("a", "1,9", "4"))
	m.write("etc/dra.berthd.github.io-b.json", claimFile("b", "12"))
	m.write(file("known"), "{")
	m.write(file("half")+".new", "{")
	m.write("run/gpu.json", "{")
	if cpus, err := m.PreparedCPUs(known); cpus.String() != "1,4,9,12" || err != nil {
		t.Errorf("%s, %v", cpus, err)
	}
	for uid, text := range map[string]string{
		"damaged": "{", "bare": "{}", "other": claimFile("a", "2"), "none": claimFile("none", ""), "wrong": claimFile("wrong", "x"),
		"huge": `{"a": "` + strings.Repeat("x", maxClaim) + `"}`,
	} {
		m.write(file(uid), text)
	}
	m.write("secret", claimFile("link", "3"))
	if err := os.Symlink("../secret", filepath.Join(m.dir, file("link"))); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(m.dir, file("pipe")), 0o644); err != nil {
		t.Fatal(err)
	}
	cpus, err := m.PreparedCPUs(known)
	if cpus.String() != "1,4,9,12" || err == nil {
		t.Fatalf("%s, %v", cpus, err)
	}
	for uid, want := range map[string]string{
		"damaged": "not a CDI specification", "bare": "annotation", "other": `it is of claim "a"`, "none": "expected a list of CPUs",
		"wrong": "expected a list of CPUs", "huge": "larger than 262144", "link": "escapes", "pipe": "no regular file",
	} {
		line := ""
		for _, l := range strings.Split(err.Error(), "\n") {
			if strings.Contains(l, filepath.Base(file(uid))) {
				line = l
			}
		}
		if !strings.Contains(line, want) {
			t.Errorf("%s: %q, want %q", uid, line, want)
		}
	}
	if err := os.Chmod(filepath.Join(m.dir, "run"), 0o777); err != nil {
		t.Fatal(err)
	}
	if cpus, err := m.PreparedCPUs(known); cpus.String() != "12" || err == nil {
		t.Errorf("a directory that others may write to: %s, %v", cpus, err)
	}
}

// TestClaimsAmongMany: however many files other programs have in the directory, every claim is seen. Too many claims are reported.
func TestClaimsAmongMany(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	const claims, others = 2000, maxFiles - 1000
	for i := range others {
		m.write(fmt.Sprintf("run/gpu.example.com-%d.json", i), "")
	}
	for i := range claims {
		m.write(fmt.Sprintf("run/dra.berthd.github.io-%d.json", i), "")
	}
	seen := map[string]bool{}
	if _, err := m.PreparedCPUs(func(uid string) bool { seen[uid] = true; return true }); err != nil || len(seen) != claims {
		t.Errorf("%d of %d claims are seen, %v", len(seen), claims, err)
	}
	for i := range maxFiles - claims + 1 {
		m.write(fmt.Sprintf("run/dra.berthd.github.io-more-%d.json", i), "")
	}
	if _, err := m.PreparedCPUs(func(string) bool { return true }); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("more than %d claims", maxFiles)) {
		t.Error(err)
	}
}

func FuzzParseClaim(f *testing.F) {
	f.Add([]byte(claimFile("a", "1,9", "4")))
	f.Add([]byte(`{"annotations": {"dra.berthd.github.io/allocation": "[]"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if cpus, err := parseClaim(text, "a"); err != nil && !cpus.IsEmpty() {
			t.Errorf("%q is read as %s, %v", text, cpus, err)
		}
	})
}
