package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func some() contents {
	return contents{
		programs: []program{{name: "a", version: "v1", parts: []string{"example.com/mit", "std"}}},
		modules: []part{
			{path: "example.com/mit", version: "v1.0.0", sum: "h1:x", licences: []string{"MIT"},
				texts: map[string]string{"LICENSE": "free\n"}},
			{path: "example.com/odd", version: "v1.0.0", texts: map[string]string{"LICENSE": "odd\n"}},
			{path: "std", version: "go1.26.8", licences: []string{"BSD-3-Clause"}},
		},
	}
}

func TestCheck(t *testing.T) {
	for list, want := range map[string]string{
		"MIT\nBSD-3-Clause # fine\nexample.com/odd MIT\n":                "",
		"MIT\nBSD-3-Clause\n":                                            "example.com/odd v1.0.0: no licence was found",
		"BSD-3-Clause\nexample.com/odd MIT\n":                            "example.com/mit v1.0.0: licence MIT is not in the list",
		"MIT\nBSD-3-Clause\nISC\nexample.com/odd MIT\n":                  "no module has licence ISC",
		"MIT\nBSD-3-Clause\nexample.com/odd MIT\nexample.com/gone MIT\n": "the line for module example.com/gone is not needed",
		"MIT\nBSD-3-Clause\nexample.com/odd MIT\nexample.com/mit ISC\n":  "the line for module example.com/mit is not needed",
		"MIT\nBSD-3-Clause\nexample.com/odd GPL-3.0\n":                   "example.com/odd v1.0.0: licence GPL-3.0 is not in the list",
		"MIT BSD-3-Clause ISC\n":                                         "expected a licence",
	} {
		err := some().check(list)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", list, err, want)
		}
	}
}

// TestBOM: the same contents give the same bytes, and every reference leads somewhere.
func TestBOM(t *testing.T) {
	var texts []string
	for _, name := range []string{"a", "b"} {
		path := filepath.Join(t.TempDir(), name)
		if err := some().writeBOM(path); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	if texts[0] != texts[1] {
		t.Error("two of them differ")
	}
	var b struct {
		SerialNumber string
		Components   []struct {
			Ref string `json:"bom-ref"`
		}
		Dependencies []struct {
			Ref       string
			DependsOn []string
		}
	}
	if err := json.Unmarshal([]byte(texts[0]), &b); err != nil {
		t.Fatal(err)
	}
	refs := map[string]bool{"berth": true}
	for _, c := range b.Components {
		refs[c.Ref] = true
	}
	if len(refs) != 5 || len(b.SerialNumber) != len("urn:uuid:")+36 {
		t.Errorf("components %v, serial number %s", refs, b.SerialNumber)
	}
	for _, d := range b.Dependencies {
		for _, r := range append(d.DependsOn, d.Ref) {
			if !refs[r] {
				t.Errorf("%s is no component", r)
			}
		}
	}
}
