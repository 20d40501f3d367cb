package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestTableOfLoops: the loops and the tests in the table of the package comment exist.
func TestTableOfLoops(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	functions := map[string]bool{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				functions[f.Name.Name] = true
			}
		}
	}
	rows := regexp.MustCompile(`(?m)^//\t(\w+) .* (Test\w+)$`).FindAllStringSubmatch(string(text), -1)
	if len(rows) < 10 {
		t.Errorf("the table has %d rows", len(rows))
	}
	for _, row := range rows {
		for _, name := range row[1:] {
			if !functions[name] {
				t.Errorf("there is no function %s: %s", name, row[0])
			}
		}
	}
}
