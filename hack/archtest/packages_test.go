package archtest

import (
	"bytes"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxLines is the hard limit of a file; above 300 lines a review requires a reason.
const maxLines = 600

// initFuncs finds the init functions of a file.
func initFuncs(s *source) []string {
	var findings []string
	for _, decl := range s.ast.Decls {
		d, ok := decl.(*ast.FuncDecl)
		if ok && d.Recv == nil && d.Name.Name == "init" {
			findings = append(findings, s.finding(d.Pos(), "func init: state a package needs is built by a constructor"))
		}
	}
	return findings
}

// tooLong reports a file above the hard limit.
func tooLong(s *source) []string {
	if s.lines <= maxLines {
		return nil
	}
	return []string{s.finding(s.ast.Pos(), "%d lines, the limit is %d: one file answers one question", s.lines, maxLines)}
}

// opening is how the package comment of a file's package has to start.
func opening(s *source) string {
	if s.ast.Name.Name == "main" {
		return "Command " + path.Base(s.folder()) + " "
	}
	return "Package " + s.ast.Name.Name + " "
}

// uncommented finds the packages none of whose files has a package comment
// that starts as it should.
func uncommented(files []*source) []string {
	commented := map[string]bool{}
	want := map[string]string{}
	for _, s := range files {
		key := s.folder()
		want[key] = opening(s)
		if s.ast.Doc != nil && strings.HasPrefix(s.ast.Doc.Text(), opening(s)) {
			commented[key] = true
		}
	}
	var findings []string
	for key, start := range want {
		if !commented[key] {
			findings = append(findings, key+": no package comment that starts with \""+strings.TrimSpace(start)+"\"")
		}
	}
	slices.Sort(findings)
	return findings
}

// unfinished are the words that stand for work left undone. They are put
// together here so that this file does not hold them itself.
var unfinished = regexp.MustCompile(`\b(` + strings.Join([]string{"TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"}, "|") + `)\b`)

// prose reports whether a file's words are ours to choose.
func prose(name string) bool {
	switch path.Ext(name) {
	case ".go":
		return !strings.HasSuffix(name, ".pb.go")
	case ".md", ".sh", ".proto", ".yaml", ".yml":
		return true
	}
	return path.Base(name) == "Makefile" || strings.HasPrefix(name, ".ci/")
}

func TestNoInit(t *testing.T) {
	t.Parallel()
	for _, s := range files(t, func(s *source) bool { return !s.generated }) {
		found := initFuncs(s)
		if slices.Contains(onFirstThread, s.path) {
			if len(found) != 1 {
				t.Errorf("%s: %d init functions, expected one", s.path, len(found))
			}
			continue
		}
		report(t, found)
	}
}

// onFirstThread are files with an init function that has no state: nothing else runs on the first thread of a process for certain.
var onFirstThread = []string{"clients/berthlet/builtin/keeper_linux.go", "hack/probe/alone.go"}

func TestFilesAreShort(t *testing.T) {
	t.Parallel()
	for _, s := range files(t, shipped) {
		report(t, tooLong(s))
	}
}

func TestPackagesHaveComments(t *testing.T) {
	t.Parallel()
	report(t, uncommented(files(t, func(s *source) bool { return !s.test })))
}

func TestNothingIsLeftUndone(t *testing.T) {
	t.Parallel()
	seen := 0
	err := walk(func(name string) error {
		if !prose(name) {
			return nil
		}
		seen++
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		for i, line := range bytes.Split(text, []byte("\n")) {
			if word := unfinished.Find(line); word != nil {
				t.Errorf("%s:%d: %s: do it now or open an issue", name, i+1, word)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen == 0 {
		t.Fatal("no file to look at: the rule has lost its subject")
	}
}

func TestChecksOfPackagesObject(t *testing.T) {
	t.Parallel()
	comments := func(s *source) []string { return uncommented([]*source{s}) }
	words := func(s *source) []string {
		var found []string
		for _, group := range s.ast.Comments {
			found = append(found, unfinished.FindAllString(group.Text(), -1)...)
		}
		return found
	}
	tests := []struct {
		name  string
		check func(*source) []string
		text  string
		want  int
	}{
		{"init", initFuncs, "package p\nfunc init() {}\n", 1},
		{"method called init", initFuncs, "package p\ntype t int\nfunc (t) init() {}\n", 0},
		{"long file", tooLong, "package p\n" + strings.Repeat("\n", maxLines), 1},
		{"file at the limit", tooLong, "package p\n" + strings.Repeat("\n", maxLines-1), 0},
		{"no comment", comments, "package p\n", 1},
		{"comment of another form", comments, "// This package is p.\npackage p\n", 1},
		{"comment of another package", comments, "// Package pq is.\npackage p\n", 1},
		{"comment", comments, "// Package p is.\npackage p\n", 0},
		{"command", comments, "// Command p does.\npackage main\n", 0},
		{"command as a package", comments, "// Package main does.\npackage main\n", 1},
		{"undone", words, "package p\n// TO" + "DO: later. FIX" + "ME\n", 2},
		{"done", words, "package p\n// hack/ holds mktemp XXXX" + "XX and HA" + "CKS.\n", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.check(snippet(t, "server/p/p.go", tt.text)); len(got) != tt.want {
				t.Errorf("got %d findings, want %d: %v", len(got), tt.want, got)
			}
		})
	}
}

// exposed finds the packages of server/ that other modules could import.
func exposed(files []*source) []string {
	var findings []string
	for _, s := range files {
		folder := s.folder()
		if strings.HasPrefix(folder, "server/") && !strings.HasPrefix(folder, "server/internal/") && folder != "server/berthd" &&
			folder != "server/observe" && folder != "server/servertest" {
			findings = append(findings, folder+": packages of the server are below server/internal: other modules do not depend on them")
		}
	}
	return slices.Compact(findings)
}

func TestServerIsInternal(t *testing.T) {
	t.Parallel()
	report(t, exposed(files(t, func(*source) bool { return true })))
	bad := snippet(t, "server/p/p.go", "package p")
	good := []*source{snippet(t, "server/internal/p/p.go", "package p"), snippet(t, "server/berthd/p.go", "package main"),
		snippet(t, "api/p/p.go", "package p")}
	if got := exposed(append(good, bad)); len(got) != 1 || !strings.HasPrefix(got[0], "server/p: ") {
		t.Errorf("found %q", got)
	}
}

// unstable is what package comments of managers/ say to other modules.
const unstable = "Other modules may import this package, and every release may change it."

func TestManagersPromiseNoStability(t *testing.T) {
	t.Parallel()
	said := map[string]bool{}
	for _, s := range files(t, func(s *source) bool {
		return !s.test && strings.HasPrefix(s.folder(), "managers/") && !strings.HasPrefix(s.folder(), "managers/internal/")
	}) {
		said[s.folder()] = said[s.folder()] || s.ast.Doc != nil && strings.Contains(strings.Join(strings.Fields(s.ast.Doc.Text()), " "),
			unstable)
	}
	for folder, ok := range said {
		if !ok {
			t.Errorf("%s: the package comment does not say %q", folder, unstable)
		}
	}
	if len(said) < 20 {
		t.Errorf("%d packages", len(said))
	}
}

// The names of the project, which hack/names replaces.
const ownDomain, ownModule = "berthd.github.io", "github.com/berthd/berth"

// berthDomain finds names in domains that look like the project's.
var berthDomain = regexp.MustCompile(`\b(?:berth[a-z]*\.)*berth[a-z]*\.(?:dev|io|org|com|net)/[a-z]+`)

// otherDomain returns a name in a text that looks like the project's and is not.
func otherDomain(text string) string {
	return berthDomain.FindString(strings.NewReplacer(ownDomain+"/", "", ownModule, "").Replace(text))
}

// TestOneDomain: labels, annotations and API groups are in the project's domain.
func TestOneDomain(t *testing.T) {
	t.Parallel()
	for text, bad := range map[string]bool{"berthlet.berth" + ".dev/owner": true, "berth" + ".io/x": true, ownDomain + "/x": false,
		"nri." + ownDomain + "/x": false, ownModule + "/api": false} {
		if (otherDomain(text) != "") != bad {
			t.Errorf("%q", text)
		}
	}
	for _, s := range files(t, func(*source) bool { return true }) {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok {
				if other := otherDomain(lit.Value); other != "" {
					t.Error(s.finding(lit.Pos(), "%s: the project's domain is %s", other, ownDomain))
				}
			}
			return true
		})
	}
}
