package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// mostFiles is in how many files an admission can be followed.
const mostFiles = 12

// pathStep is a function that an admission comes through.
type pathStep struct{ file, function string }

// pathRow is a row of the table in ARCHITECTURE.md: a file with its functions.
var pathRow = regexp.MustCompile("(?m)^\\| \\d+ \\| `([a-z/]+\\.go)` \\| ([^|]+) \\|")

// readPath reads the table of the files that an admission comes through.
func readPath(page string) (steps []pathStep) {
	for _, row := range pathRow.FindAllStringSubmatch(page, -1) {
		for name := range strings.SplitSeq(row[2], ", ") {
			steps = append(steps, pathStep{row[1], strings.Trim(name, "` ")})
		}
	}
	return steps
}

// pathFindings returns what is wrong with a path: too many files, a function that is not in
// its file, and a function that no earlier one of the path calls, or that its caller calls
// before the function that stands before it.
func pathFindings(steps []pathStep, parse func(file string) (*ast.File, error)) (findings []string) {
	files, bodies := map[string]*ast.File{}, make([]*ast.FuncDecl, len(steps))
	for i, s := range steps {
		if files[s.file] == nil {
			f, err := parse(s.file)
			if err != nil {
				return []string{err.Error()}
			}
			files[s.file] = f
		}
		if bodies[i] = functionIn(files[s.file], s.function); bodies[i] == nil {
			return []string{fmt.Sprintf("%s has no function %s", s.file, s.function)}
		}
	}
	if len(files) > mostFiles {
		findings = append(findings, fmt.Sprintf("%d files, at most %d", len(files), mostFiles))
	}
	// reached is how far the path has come in each function.
	reached := make([]token.Pos, len(steps))
	for i := 1; i < len(steps); i++ {
		called := false
		for by := i - 1; by >= 0 && !called; by-- {
			if at := callIn(bodies[by], steps[i].function, reached[by]); at.IsValid() {
				reached[by], called = at, true
			}
		}
		if !called {
			findings = append(findings, fmt.Sprintf("%s: %s is not called by a function before it", steps[i].file, steps[i].function))
		}
	}
	return findings
}

func functionIn(f *ast.File, name string) *ast.FuncDecl {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == name && fn.Body != nil {
			return fn
		}
	}
	return nil
}

// callIn returns where a function calls another one, after a place in it.
func callIn(in *ast.FuncDecl, name string, after token.Pos) (at token.Pos) {
	ast.Inspect(in.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || at.IsValid() || call.Pos() < after {
			return true
		}
		switch fun := call.Fun.(type) {
		case *ast.Ident:
			ok = fun.Name == name
		case *ast.SelectorExpr:
			ok = fun.Sel.Name == name
		default:
			ok = false
		}
		if ok {
			at = call.Rparen
		}
		return true
	})
	return at
}

// TestAdmissionPath: ARCHITECTURE.md names the files of an admission, from the socket to the
// disk. Its functions exist, and call each other in this order.
func TestAdmissionPath(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	steps := readPath(string(page))
	if len(steps) < mostFiles || steps[0].file != "server/internal/rpc/admission/service.go" ||
		steps[len(steps)-1].file != "server/internal/store/store.go" {
		t.Fatalf("the path goes through %v, not from the socket to the disk", steps)
	}
	fset := token.NewFileSet()
	for _, finding := range pathFindings(steps, func(file string) (*ast.File, error) {
		return parser.ParseFile(fset, filepath.Join(root, filepath.FromSlash(file)), nil, 0)
	}) {
		t.Error(finding)
	}
}

// TestPathFindings: the check of a path finds what can be wrong with it.
func TestPathFindings(t *testing.T) {
	t.Parallel()
	const source = `package p
func first() { second(); x.third(); func() { fourth() }() }
func second() {}
func third() { second() }
func fourth() {}
`
	parse := func(file string) (*ast.File, error) {
		return parser.ParseFile(token.NewFileSet(), file, source, 0)
	}
	path := func(functions ...string) (steps []pathStep) {
		for _, f := range functions {
			steps = append(steps, pathStep{"a.go", f})
		}
		return steps
	}
	many := path("first")
	for i := range mostFiles {
		many = append(many, pathStep{fmt.Sprintf("b%d.go", i), "second"})
	}
	for name, row := range map[string]struct {
		steps []pathStep
		want  string
	}{
		"right":            {path("first", "second", "third", "fourth"), ""},
		"not there":        {path("first", "fifth"), "no function fifth"},
		"not called":       {path("second", "first"), "first is not called"},
		"in another order": {path("first", "fourth", "third"), "third is not called"},
		"too many files":   {many, "13 files"},
	} {
		got := strings.Join(pathFindings(row.steps, parse), "; ")
		if row.want == "" && got != "" || !strings.Contains(got, row.want) {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
	got := readPath("| 1 | `a/b.go` | `one`, `two` | x |\n| 2 | `c.go` | `three` | y |\n")
	if len(got) != 3 || got[1] != (pathStep{"a/b.go", "two"}) {
		t.Errorf("read %v", got)
	}
}
