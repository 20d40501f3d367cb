package archtest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var updateParts = flag.Bool("update", false, "write the parts in ARCHITECTURE.md anew")

// part is one part of the kubelet's container manager; several names that one thing
// answers are separated by commas.
type part struct {
	name string
	// answers are the calls, as package.Service.Method, or the files in which berth has it;
	// one that begins with "none" has the reason why there is nothing.
	answers []string
	// tests hold it, as folder.TestName.
	tests []string
}

type partGroup struct {
	name  string
	parts []part
}

// The section of ARCHITECTURE.md is between these lines.
const (
	partsBegin = "<!-- parts: written by go test ./hack/archtest -run TestParts -update -->\n"
	partsEnd   = "<!-- end of parts -->\n"
)

const partsHead = `
## Where is each part of the kubelet's container manager?

This section lists the parts of the kubelet's container manager in Kubernetes 1.37. For each part it names the call or the file in berth,
and the tests. ` + "`go test ./hack/archtest -run TestParts -update`" + ` writes it. The test fails if a call, a file or a test does not exist.
[docs/deviations.md](docs/deviations.md) lists the differences from the kubelet.
`

// partsSection writes the section.
func partsSection(groups []partGroup) string {
	var b strings.Builder
	b.WriteString(partsHead)
	coded := func(all []string) string {
		out := make([]string, len(all))
		for i, s := range all {
			if out[i] = "`" + s + "`"; strings.HasPrefix(s, "none") {
				out[i] = s
			}
		}
		return strings.Join(out, ", ")
	}
	for _, g := range groups {
		fmt.Fprintf(&b, "\n### %s\n\n| Part | In berth | Tests |\n| --- | --- | --- |\n", g.name)
		for _, p := range g.parts {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", p.name, coded(p.answers), coded(p.tests))
		}
	}
	b.WriteString("\n")
	return b.String()
}

// partFindings returns what is wrong with the parts: a name that is there twice, a call, a
// file or a test that is not there, or none of them.
func partFindings(groups []partGroup, hasCall, hasFile, hasTest func(string) bool) (findings []string) {
	seen := map[string]bool{}
	for _, g := range groups {
		for _, p := range g.parts {
			at := g.name + ", " + p.name
			for name := range strings.SplitSeq(p.name, ", ") {
				if key := g.name + ", " + name; seen[key] {
					findings = append(findings, key+": is there twice")
				} else {
					seen[key] = true
				}
			}
			if len(p.answers) == 0 || len(p.tests) == 0 {
				findings = append(findings, at+": nothing answers it, or no test holds it")
			}
			for _, a := range p.answers {
				_, file, named := strings.Cut(a, ": ")
				if !named {
					file = a
				}
				switch {
				case strings.HasPrefix(a, "none: "):
				case strings.HasPrefix(a, "berth."):
					if !hasCall(a) {
						findings = append(findings, at+": no call "+a)
					}
				case !hasFile(file):
					findings = append(findings, at+": no file "+file)
				}
			}
			for _, test := range p.tests {
				if !hasTest(test) {
					findings = append(findings, at+": no test "+test)
				}
			}
		}
	}
	return findings
}

// protoCalls lists the calls of all services, as package.Service.Method.
func protoCalls(t *testing.T) map[string]bool {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^(package|service|  rpc) ([A-Za-z0-9_.]+)`)
	out := map[string]bool{}
	found, err := filepath.Glob(filepath.Join(root, "proto", "berth", "*", "*", "*.proto"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var pkg, service string
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			switch name := m[2]; m[1] {
			case "package":
				pkg = name
			case "service":
				service = name
			default:
				out[pkg+"."+service+"."+name] = true
			}
		}
	}
	return out
}

// TestParts: every part of the kubelet's container manager is answered by something that
// is there, held by tests that are there, and ARCHITECTURE.md says the same.
func TestParts(t *testing.T) {
	t.Parallel()
	calls, tests := protoCalls(t), declaredTests(t)
	report(t, partFindings(partGroups,
		func(call string) bool { return calls[call] },
		func(file string) bool { _, err := os.Stat(filepath.Join(root, file)); return err == nil },
		func(test string) bool { return tests[test] }))
	path := filepath.Join(root, "ARCHITECTURE.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), partsBegin)
	have, after, ends := strings.Cut(rest, partsEnd)
	if !begins || !ends {
		t.Fatalf("ARCHITECTURE.md does not have the lines %q and %q", partsBegin, partsEnd)
	}
	want := partsSection(partGroups)
	if *updateParts {
		if err := os.WriteFile(path, []byte(before+partsBegin+want+partsEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		have = want
	}
	if have != want {
		t.Error("the parts in ARCHITECTURE.md are not what the table says: go test ./hack/archtest -run TestParts -update writes them anew")
	}
}

func TestChecksOfPartsObject(t *testing.T) {
	t.Parallel()
	good := part{"Start", []string{"berth.a.v1.A.Start", "some/file.go"}, []string{"a.TestA"}}
	there := func(name string) bool { return !strings.Contains(name, "gone") && !strings.Contains(name, "Gone") }
	for name, tt := range map[string]struct {
		parts []part
		want  int
	}{
		"good":      {[]part{good, {"Stop", []string{"none: nobody stops it"}, []string{"a.TestB"}}}, 0},
		"twice":     {[]part{good, {"Stop, Start", good.answers, good.tests}}, 1},
		"gone call": {[]part{{"Start", []string{"berth.a.v1.A.Gone"}, good.tests}}, 1},
		"gone file": {[]part{{"Start", []string{"field: gone.go"}, good.tests}}, 1},
		"gone test": {[]part{{"Start", good.answers, []string{"a.TestGone"}}}, 1},
		"no test":   {[]part{{"Start", good.answers, nil}}, 1},
		"no answer": {[]part{{"Start", nil, good.tests}}, 1},
	} {
		if got := partFindings([]partGroup{{"Group", tt.parts}}, there, there, there); len(got) != tt.want {
			t.Errorf("%s: %d findings, want %d: %v", name, len(got), tt.want, got)
		}
	}
}
