package archtest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// basePath is how .golangci.yml spells the repository's root in a file pattern.
const basePath = "${base-path}/"

// importRule is one rule of the depguard section: either strict with a list of
// what may be imported, or lax with a list of what may not. A rule with both
// is refused, for in the linter an allowed $gostd silently outweighs a denied
// os: it stands for every package of the standard library, os/exec included,
// and the longer entry wins.
type importRule struct {
	Mode  string   `json:"list-mode"`
	Files []string `json:"files"`
	Allow []string `json:"allow"`
	Deny  []struct {
		Package string `json:"pkg"`
	} `json:"deny"`
}

// importRules reads the depguard section of .golangci.yml, by rule name.
func importRules(text []byte) (map[string]importRule, error) {
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]importRule `json:"rules"`
				} `json:"depguard"`
			} `json:"settings"`
		} `json:"linters"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	rules := config.Linters.Settings.Depguard.Rules
	if len(rules) == 0 {
		return nil, errors.New("no depguard rule")
	}
	for name, r := range rules {
		lists := r.Mode == "strict" && len(r.Allow) > 0 && len(r.Deny) == 0 ||
			r.Mode == "lax" && len(r.Allow) == 0 && len(r.Deny) > 0
		if !lists {
			return nil, fmt.Errorf("rule %s: neither strict with only an allow list nor lax with only a deny list", name)
		}
		for _, f := range r.Files {
			if f != "!$test" && !strings.HasPrefix(strings.TrimPrefix(f, "!"), basePath) {
				return nil, fmt.Errorf("rule %s: file pattern %q does not start with %s", name, f, basePath)
			}
		}
	}
	return rules, nil
}

// entries gives the packages that the rule allows or denies.
func (r importRule) entries() []string {
	entries := slices.Clone(r.Allow)
	for _, d := range r.Deny {
		entries = append(entries, d.Package)
	}
	return entries
}

// subjects splits the rule's file patterns, relative to the root, into those
// it holds for and those it excepts.
func (r importRule) subjects() (in, except []string) {
	for _, f := range r.Files {
		switch pattern, negated := strings.CutPrefix(f, "!"); {
		case pattern == "$test":
		case negated:
			except = append(except, braces(strings.TrimPrefix(pattern, basePath))...)
		default:
			in = append(in, braces(strings.TrimPrefix(pattern, basePath))...)
		}
	}
	return in, except
}

// covers reports whether the rule holds for the file.
func (r importRule) covers(s *source) bool {
	if s.test && slices.Contains(r.Files, "!$test") {
		return false
	}
	in, except := r.subjects()
	match := func(pattern string) bool { return matches(pattern, s.path) }
	return (len(in) == 0 || slices.ContainsFunc(in, match)) && !slices.ContainsFunc(except, match)
}

// refuses reports whether the rule forbids to import the package.
func (r importRule) refuses(imported string) bool {
	listed := slices.ContainsFunc(r.entries(), func(entry string) bool { return names(entry, imported) })
	return listed == (r.Mode == "lax")
}

// names reports whether an entry means the package: "x" is x and what is below
// it, "x/" only what is below it, "x$" only x, "$gostd" the standard library.
func names(entry, imported string) bool {
	if entry == "$gostd" {
		first, _, _ := strings.Cut(imported, "/")
		return !strings.Contains(first, ".")
	}
	if exact, ok := strings.CutSuffix(entry, "$"); ok {
		return imported == exact
	}
	return imported == entry || strings.HasPrefix(imported, strings.TrimSuffix(entry, "/")+"/")
}

// braces spells "a/{b,c}/d" as "a/b/d" and "a/c/d".
func braces(pattern string) []string {
	head, rest, ok := strings.Cut(pattern, "{")
	if !ok {
		return []string{pattern}
	}
	list, tail, _ := strings.Cut(rest, "}")
	var spelled []string
	for _, word := range strings.Split(list, ",") {
		spelled = append(spelled, braces(head+word+tail)...)
	}
	return spelled
}

// matches reports whether the path fits the pattern, in which ** stands for any
// text and * for any text within one folder.
func matches(pattern, name string) bool {
	quoted := regexp.QuoteMeta(pattern)
	quoted = strings.ReplaceAll(quoted, `\*\*`, `.*`)
	quoted = strings.ReplaceAll(quoted, `\*`, `[^/]*`)
	return regexp.MustCompile(`^` + quoted + `$`).MatchString(name)
}

// breaches finds the imports of the file that a rule forbids.
func breaches(rules map[string]importRule, s *source) []string {
	var findings []string
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		rule := rules[name]
		if !rule.covers(s) {
			continue
		}
		for imported, pos := range s.imports() {
			if rule.refuses(imported) {
				findings = append(findings, s.finding(pos, "imports %s against the rule %q (ARCHITECTURE.md)", imported, name))
			}
		}
	}
	return findings
}

// stale finds outdated rules: a file pattern that no file matches, or a package that
// exists reports as missing.
func stale(rules map[string]importRule, paths []string, exists func(pkg string) bool) []string {
	var findings []string
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		rule := rules[name]
		in, except := rule.subjects()
		for _, pattern := range slices.Concat(in, except) {
			if !slices.ContainsFunc(paths, func(p string) bool { return matches(pattern, p) }) {
				findings = append(findings, fmt.Sprintf("rule %q: no file fits %s", name, pattern))
			}
		}
		for _, entry := range rule.entries() {
			if entry != "$gostd" && !exists(entry) {
				findings = append(findings, fmt.Sprintf("rule %q: %s is neither in the tree nor in a module of go.mod", name, entry))
			}
		}
	}
	return findings
}

// known gets the packages that the entries of the rules mean from the go command. A
// module counts when go.mod requires it, whether or not it is imported yet.
func known(t *testing.T, rules map[string]importRule) func(entry string) bool {
	t.Helper()
	// A pattern can match modules that only others need; go list then wants to add them to go.mod.
	mod := filepath.Join(t.TempDir(), "go.mod")
	for from, to := range map[string]string{"go.mod": mod, "go.sum": strings.TrimSuffix(mod, "mod") + "sum"} {
		text, err := os.ReadFile(filepath.Join(root, from))
		if err == nil {
			err = os.WriteFile(to, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"list", "-mod=mod", "-modfile=" + mod, "-e", "-find", "-f", "{{if not .Error}}{{.ImportPath}}{{end}}"}
	for _, rule := range rules {
		for _, entry := range rule.entries() {
			if entry != "$gostd" {
				args = append(args, strings.TrimRight(entry, "$/")+"/...")
			}
		}
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	var complaints strings.Builder // what matches nothing is warned of, and found below
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, complaints.String())
	}
	packages := strings.Fields(string(out))
	return func(entry string) bool {
		return slices.ContainsFunc(packages, func(p string) bool { return names(entry, p) })
	}
}

// archRules reads the rules of the repository.
func archRules(t *testing.T) map[string]importRule {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := importRules(text)
	if err != nil {
		t.Fatalf(".golangci.yml: %v", err)
	}
	return rules
}

func TestImports(t *testing.T) {
	t.Parallel()
	rules := archRules(t)
	for _, s := range files(t, func(*source) bool { return true }) {
		report(t, breaches(rules, s))
	}
}

// TestImportRulesHaveReasons: ARCHITECTURE.md has a row for each rule, and none for another.
func TestImportRulesHaveReasons(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Rules of imports\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var rows []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\| ..").FindAllStringSubmatch(table, -1) {
		for _, name := range strings.Split(row[1], ", ") {
			rows = append(rows, strings.Trim(name, "`"))
		}
	}
	slices.Sort(rows)
	if rules := slices.Sorted(maps.Keys(archRules(t))); !slices.Equal(rows, rules) {
		t.Errorf("the table has rows for %q, the rules are %q", rows, rules)
	}
}

func TestImportRulesAreAlive(t *testing.T) {
	t.Parallel()
	rules := archRules(t)
	var paths []string
	for _, s := range files(t, func(*source) bool { return true }) {
		paths = append(paths, s.path)
	}
	report(t, stale(rules, paths, known(t, rules)))
}
