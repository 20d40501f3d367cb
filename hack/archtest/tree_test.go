package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// root is the repository's root as seen from this package's folder, which is
// where go test runs it.
var root = filepath.Join("..", "..")

// source is one parsed Go file.
type source struct {
	path      string // from the root, with slashes
	test      bool
	generated bool
	lines     int
	fset      *token.FileSet
	ast       *ast.File
}

// folder is the file's folder from the root.
func (s *source) folder() string { return path.Dir(s.path) }

// within reports whether the file lies in the folder dir or below it.
func (s *source) within(dir string) bool { return strings.HasPrefix(s.path, dir+"/") }

// finding words one breach at pos.
func (s *source) finding(pos token.Pos, format string, args ...any) string {
	return fmt.Sprintf("%s:%d: %s", s.path, s.fset.Position(pos).Line, fmt.Sprintf(format, args...))
}

// imports gives the file's import paths with their positions.
func (s *source) imports() map[string]token.Pos {
	found := make(map[string]token.Pos, len(s.ast.Imports))
	for _, spec := range s.ast.Imports {
		if name, err := strconv.Unquote(spec.Path.Value); err == nil {
			found[name] = spec.Pos()
		}
	}
	return found
}

// parse reads one Go file whatever its build constraints are: a rule holds for
// the files of every system, not only for those of this one.
func parse(name string, text []byte) (*source, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &source{
		path:      name,
		test:      strings.HasSuffix(name, "_test.go"),
		generated: ast.IsGenerated(tree),
		lines:     strings.Count(string(text), "\n"),
		fset:      fset,
		ast:       tree,
	}, nil
}

// snippet parses a made-up file, so that each rule is also seen to object.
func snippet(t *testing.T, name, text string) *source {
	t.Helper()
	s, err := parse(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// walk calls visit for every file of the repository that people write: folders
// whose name starts with a dot other than .ci, build output, test data and
// Go modules of their own are left out.
func walk(visit func(name string) error) error {
	return filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if !entry.IsDir() {
			return visit(rel)
		}
		base := path.Base(rel)
		switch {
		case rel == ".", base == ".ci":
			return nil
		case strings.HasPrefix(base, "."), base == "bin", base == "testdata":
			return fs.SkipDir
		}
		if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
			return fs.SkipDir
		}
		return nil
	})
}

// tree parses every Go file of the module, once.
var tree = sync.OnceValues(func() ([]*source, error) {
	var files []*source
	err := walk(func(name string) error {
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		s, err := parse(name, text)
		if err != nil {
			return err
		}
		files = append(files, s)
		return nil
	})
	return files, err
})

// files gives the module's Go files that pass keep.
func files(t *testing.T, keep func(*source) bool) []*source {
	t.Helper()
	all, err := tree()
	if err != nil {
		t.Fatal(err)
	}
	var kept []*source
	for _, s := range all {
		if keep(s) {
			kept = append(kept, s)
		}
	}
	if len(kept) == 0 {
		t.Fatal("no file to look at: the rule has lost its subject")
	}
	return kept
}

// shipped reports whether a rule about hand-written product code holds for s.
func shipped(s *source) bool { return !s.test && !s.generated }

// pure reports whether the rules of managers/ hold for s.
func pure(s *source) bool { return shipped(s) && s.within("managers") }

// report fails the test with one line for each finding.
func report(t *testing.T, findings []string) {
	t.Helper()
	for _, f := range findings {
		t.Error(f)
	}
}
