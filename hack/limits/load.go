package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const module = "github.com/berthd/berth/"

// pkg is one package of the product with its types.
type pkg struct {
	path  string // without the module's
	fset  *token.FileSet
	files []*ast.File
	types *types.Package
	info  *types.Info
}

// listed is what `go list` says of a package.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles, CgoFiles       []string
	Module                  *struct{ Main bool }
}

// load reads the packages of this module and checks their types with the export data of what they import. Generated files are
// not part of it, but their types are known.
func load(patterns ...string) ([]pkg, error) {
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,CgoFiles,Module"},
		patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := map[string]string{}
	var own []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var l listed
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the list of packages: %w", err)
		}
		exports[l.ImportPath] = l.Export
		if l.Module != nil && l.Module.Main && len(l.CgoFiles) == 0 {
			own = append(own, l)
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var pkgs []pkg
	for _, l := range own {
		p, err := check(fset, imports, l)
		if err != nil {
			return nil, err
		}
		if len(p.files) > 0 {
			pkgs = append(pkgs, p)
		}
	}
	return pkgs, nil
}

func check(fset *token.FileSet, imports types.Importer, l listed) (pkg, error) {
	p := pkg{path: strings.TrimPrefix(l.ImportPath, module), fset: fset, info: &types.Info{
		Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
	}}
	var all []*ast.File
	for _, name := range l.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(l.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return pkg{}, err
		}
		all = append(all, f)
		if !ast.IsGenerated(f) {
			p.files = append(p.files, f)
		}
	}
	var err error
	p.types, err = (&types.Config{Importer: imports}).Check(l.ImportPath, fset, all, p.info)
	return p, err
}

// file is the name of the file that has a position.
func (p pkg) file(at token.Pos) string { return p.fset.Position(at).Filename }

// longLines measures the widest line of each file of Go that is not generated, and of each page outside of tables, code and
// links.
func longLines() ([]figure, error) {
	out, err := exec.Command("git", "ls-files", "*.go", "*.md").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	var all []figure
	for _, path := range strings.Fields(string(out)) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		widest, err := width(f, strings.HasSuffix(path, ".md"))
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, figure{"width", path, widest})
	}
	return all, nil
}

var (
	generatedGo   = regexp.MustCompile(`^// Code generated .* DO NOT EDIT\.$`)
	generatedPage = regexp.MustCompile(`^This page is generated from `)
	clause        = regexp.MustCompile(`^package `)
	// longText is a string in a line of Go, which stays in one piece, or a pattern in a comment.
	longText = regexp.MustCompile("\"([^\"\\\\]|\\\\.){60,}\"|`[^`]{60,}|^[^`]{60,}`|[^ ]{60,}")
	// unbreakable are rows of tables, headings, the targets of links, indented code, and what has no place to break it.
	unbreakable = regexp.MustCompile(`^\s*(\||#|\[[^]]+\]: )|^    |[^ ]{60,}`)
)

func width(r io.Reader, markdown bool) (widest int, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	code, head := false, true
	for lines.Scan() {
		line := lines.Text()
		if markdown && generatedPage.MatchString(line) || !markdown && head && generatedGo.MatchString(line) {
			return 0, nil
		}
		head = head && !clause.MatchString(line)
		if markdown && strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		}
		if code || markdown && unbreakable.MatchString(line) || !markdown && longText.MatchString(line) {
			continue
		}
		widest = max(widest, len([]rune(strings.ReplaceAll(line, "\t", "    "))))
	}
	return widest, lines.Err()
}
