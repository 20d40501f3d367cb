package archtest

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

// libraries are the packages that other modules use, besides the messages of api/.
var libraries = []string{"clients/berth", "clients/hintprovider"}

// foreignTypes finds exported declarations whose types are of packages that other modules must not
// name: those of managers/ and server/, and berth's own form of providers.
func foreignTypes(s *source) (findings []string) {
	packages := map[string]string{}
	for _, spec := range s.ast.Imports {
		imported := strings.Trim(spec.Path.Value, `"`)
		name := path.Base(imported)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		packages[name] = imported
	}
	var check func(what string, n ast.Node)
	check = func(what string, n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if st, ok := n.(*ast.StructType); ok {
				for _, f := range st.Fields.List { // other packages see exported and embedded ones
					if len(f.Names) == 0 || slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) {
						check(what, f.Type)
					}
				}
				return false
			}
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok {
				from := packages[x.Name]
				if strings.HasPrefix(from, ownModule+"/managers/") || strings.HasPrefix(from, ownModule+"/server/") ||
					strings.HasSuffix(from, "/hintserver") {
					findings = append(findings,
						s.finding(sel.Pos(), "%s names %s.%s: other modules use this package, so its signatures have types of its own or of api/", what, x.Name, sel.Sel.Name))
				}
			}
			return true
		})
	}
	for _, decl := range s.ast.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && ast.IsExported(receiver(d)) {
				check("func "+d.Name.Name, d.Type)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch v := spec.(type) {
				case *ast.TypeSpec:
					if v.Name.IsExported() {
						check("type "+v.Name.Name, v.Type)
					}
				case *ast.ValueSpec:
					if slices.ContainsFunc(v.Names, (*ast.Ident).IsExported) && v.Type != nil {
						check("var "+v.Names[0].Name, v.Type)
					}
				}
			}
		}
	}
	return findings
}

// TestSignaturesOfLibraries: other modules can use the libraries without packages of managers/.
func TestSignaturesOfLibraries(t *testing.T) {
	t.Parallel()
	checked := map[string]bool{}
	for _, s := range files(t, func(s *source) bool { return shipped(s) && slices.Contains(libraries, s.folder()) }) {
		checked[s.folder()] = true
		report(t, foreignTypes(s))
	}
	for _, l := range libraries {
		if !checked[l] {
			t.Errorf("%s has no files", l)
		}
	}
}

// TestForeignTypes tries the rule.
func TestForeignTypes(t *testing.T) {
	t.Parallel()
	const header = "package p\nimport (\n\t\"github.com/berthd/berth/managers/ledger\"\n\th \"github.com/berthd/berth/managers/hint\"\n\ttypesv1 \"github.com/berthd/berth/api/berth/types/v1\"\n)\n"
	for text, want := range map[string]int{
		"func F(v *ledger.View) {}":                    1,
		"func F() (h.Hint, *ledger.View)":              2,
		"func f(v *ledger.View) {}":                    0,
		"func F(p *typesv1.Pod) {}":                    0,
		"type t int\nfunc (t) M(v *ledger.View) {}":    0,
		"type T int\nfunc (*T) M(v *ledger.View) {}":   1,
		"type T struct { V *ledger.View }":             1,
		"type T struct { v *ledger.View }":             0,
		"type T struct { *ledger.View }":               1,
		"type T interface { M(v *ledger.View) error }": 1,
		"type T = h.Hint":                              1,
		"var V ledger.View":                            1,
		"func F() { var v ledger.View; _ = v }":        0,
	} {
		if got := foreignTypes(snippet(t, "clients/berth/p.go", header+text)); len(got) != want {
			t.Errorf("%s: %q, want %d", text, got, want)
		}
	}
}
