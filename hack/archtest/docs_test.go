package archtest

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	deviationRow  = regexp.MustCompile(`^\| ([A-Z][0-9]+) \|`)
	deviationTest = regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)[A-Za-z0-9_]+)`")
)

// deviations finds what is wrong with the rows of docs/deviations.md: an id
// used twice, a cell that is missing or empty, a test that is not there.
func deviations(text string, hasTest func(folder, name string) bool) []string {
	var findings []string
	seen := map[string]bool{}
	for _, line := range strings.Split(text, "\n") {
		row := deviationRow.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		id := row[1]
		if seen[id] {
			findings = append(findings, id+": used twice")
		}
		seen[id] = true
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		if len(cells) != 6 {
			findings = append(findings, id+": a row has six cells")
			continue
		}
		tests := deviationTest.FindAllStringSubmatch(cells[5], -1)
		if len(tests) == 0 && strings.TrimSpace(cells[5]) != "open" {
			findings = append(findings, id+": the last cell names a test as `folder.TestName`, or says open")
		}
		for _, test := range tests {
			if !hasTest(test[1], test[2]) {
				findings = append(findings, id+": no test "+test[0])
			}
		}
	}
	if len(seen) == 0 {
		findings = append(findings, "no row")
	}
	return findings
}

// declaredTests are all tests, as folder.TestName.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	declared := map[string]bool{}
	for _, s := range files(t, func(s *source) bool { return s.test }) {
		for _, decl := range s.ast.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok {
				declared[s.folder()+"."+d.Name.Name] = true
			}
		}
	}
	return declared
}

func TestDeviationsNameTheirTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs", "deviations.md"))
	if err != nil {
		t.Fatal(err)
	}
	declared := declaredTests(t)
	report(t, deviations(string(text), func(folder, name string) bool { return declared[folder+"."+name] }))
}

// testName is a test named in a page, with or without its folder.
var testName = regexp.MustCompile("`((?:[a-z]+/[a-z/]+\\.)?)(Test[A-Z][A-Za-z0-9]+)`")

// TestSecurityNamesItsTests: every test that docs/security.md names exists; one without a folder
// may be in any.
func TestSecurityNamesItsTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	declared := declaredTests(t)
	names := map[string]bool{}
	for full := range declared {
		_, name, _ := strings.Cut(full, ".")
		names[name] = true
	}
	found := testName.FindAllStringSubmatch(string(text), -1)
	if len(found) == 0 {
		t.Fatal("docs/security.md names no test")
	}
	for _, m := range found {
		if folder := m[1]; folder != "" && !declared[folder+m[2]] || folder == "" && !names[m[2]] {
			t.Errorf("docs/security.md names %s%s, which does not exist", folder, m[2])
		}
	}
}

func TestChecksOfDeviationsObject(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		want       int
	}{
		{"good", "| A1 | k | b | w | u | `managers/cpu.TestA`, `managers/cpu.TestB` |\n| A2 | k | b | w | u | open |", 0},
		{"twice", "| A1 | k | b | w | u | open |\n| A1 | k | b | w | u | open |", 1},
		{"cells", "| A1 | k | b | open |", 1},
		{"no test", "| A1 | k | b | w | u | soon |", 1},
		{"gone test", "| A1 | k | b | w | u | `managers/cpu.TestGone` |", 1},
		{"no rows", "| Id | k |", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := deviations(tt.text, func(_, name string) bool { return name != "TestGone" })
			if len(got) != tt.want {
				t.Errorf("got %d findings, want %d: %v", len(got), tt.want, got)
			}
		})
	}
}

// TestFirstPages: the page of each kind of reader has at most 60 lines before a program or its reference, and the first 40 of
// the 100 lines of the README link to it. What the README shows of an answer is what docs/rejected.md has, which is tested.
// docs/README.md links to every page.
func TestFirstPages(t *testing.T) {
	t.Parallel()
	root := "../.."
	lines := func(name string) []string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	}
	readme := lines("README.md")
	if n := len(readme); n > 100 {
		t.Errorf("README.md has %d lines, expected at most 100: move details to a page", n)
	}
	first := strings.Join(readme[:40], "\n")
	_, answer, _ := strings.Cut(first, "```text\nmissing\n")
	answer, _, found := strings.Cut(answer, "\n```")
	rejected := strings.Join(lines("docs/rejected.md"), "\n")
	for line := range strings.SplitSeq(answer, "\n") {
		if !found || !strings.Contains(rejected, line) {
			t.Errorf("README.md shows %q, and docs/rejected.md does not", line)
		}
	}
	for _, page := range []string{"docs/agent.md", "docs/node.md", "docs/plugin.md", "docs/rejected.md"} {
		before, _, _ := strings.Cut(strings.Join(lines(page), "\n"), "\n```go\n")
		before, _, _ = strings.Cut(before, "\n\n## Reference\n")
		if n := strings.Count(before, "\n") + 1; n > 60 {
			t.Errorf("%s has %d lines, and one screen has 60: move details to another page", page, n)
		}
		if !strings.Contains(first, "("+page+")") {
			t.Errorf("the first screen of README.md does not link to %s", page)
		}
	}
	index := strings.Join(lines("docs/README.md"), "\n")
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, path := range pages {
		if page := filepath.Base(path); page != "README.md" && !strings.Contains(index, "("+page+")") {
			t.Errorf("docs/README.md does not link to %s", page)
		}
	}
}

var (
	manifestFlag = regexp.MustCompile(`^.*?(?:-f|--for|--more)[ =]([a-z0-9/-]+\.yaml)`)
	// readersOwn are the manifests that a reader has: the pages are about any pod.
	readersOwn = map[string]string{
		"docs/kubelet.md pod.yaml":      "a pod for the reader's node",
		"docs/kubectl.md pod.yaml":      "a pod for the reader's cluster",
		"docs/live.md big.yaml":         "a pod for the reader's node",
		"docs/berthctl.md web.yaml":     "a manifest with a mistake in it",
		"docs/cli-examples.md web.yaml": "the first lines of the page link to it",
	}
)

// TestManifestsOfPages: each manifest that a command of a page names is on the page, below deploy/examples, or the reader's own.
func TestManifestsOfPages(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	used := map[string]bool{}
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		page := "docs/" + filepath.Base(path)
		in := false
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "```") {
				in = !in
			}
			found := manifestFlag.FindStringSubmatch(line)
			if !in || found == nil {
				continue
			}
			name := found[1]
			own := page + " " + name
			used[own] = true
			onPage := strings.Contains(string(text), "\n# "+name+"\n") || strings.Contains(string(text), "> "+name+" ")
			if onPage || readersOwn[own] != "" {
				continue
			}
			if _, err := os.Stat("../../" + name); err != nil {
				t.Errorf("%s uses %s: show it there as a block that begins with '# %s', or name a file below deploy/examples", page, name, name)
			}
		}
	}
	for own := range readersOwn {
		if !used[own] {
			t.Errorf("%s is used nowhere", own)
		}
	}
}

var (
	commentTest = regexp.MustCompile(`(?:func )?\bTest[A-Z][A-Za-z0-9]+\b`)
	loopRow     = regexp.MustCompile(`(?m)^//\t(?:\w+\.)?(\w+) .* Test\w+,?$`)
)

// TestPackageCommentsNameTheirTests: every test that a package comment names is in its package, and so are the functions of its tables.
func TestPackageCommentsNameTheirTests(t *testing.T) {
	t.Parallel()
	tests, functions := declaredTests(t), map[string]bool{}
	for _, s := range files(t, func(s *source) bool { return !s.test }) {
		for _, decl := range s.ast.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok {
				functions[s.folder()+"."+d.Name.Name] = true
			}
		}
	}
	rows := 0
	for _, s := range files(t, func(s *source) bool { return filepath.Base(s.path) == "doc.go" }) {
		text, err := os.ReadFile(filepath.Join(root, s.path))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range commentTest.FindAllString(string(text), -1) {
			if !strings.HasPrefix(name, "func ") && !tests[s.folder()+"."+name] {
				t.Errorf("%s names %s, which is no test of the package", s.path, name)
			}
		}
		for _, row := range loopRow.FindAllStringSubmatch(string(text), -1) {
			if rows++; !functions[s.folder()+"."+row[1]] {
				t.Errorf("%s names %s, which is no function of the package", s.path, row[1])
			}
		}
	}
	if rows < 30 {
		t.Errorf("the tables have %d rows", rows)
	}
}
