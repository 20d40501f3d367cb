package archtest

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// clock names what reads a clock, waits for one, or reads the machine's time
// zone. Types, constants and arithmetic of package time are free to use.
var clock = map[string][]string{
	"time": {
		"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick",
		"NewTimer", "NewTicker", "Timer", "Ticker", "Local", "LoadLocation",
	},
	"context": {"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause", "AfterFunc"},
}

// clockUses finds the uses of clock in a file.
func clockUses(s *source) []string {
	local := map[string]string{} // name in the file -> import path
	var findings []string
	for name, pos := range s.imports() {
		if _, watched := clock[name]; !watched {
			continue
		}
		local[name] = name
		for _, spec := range s.ast.Imports {
			if spec.Pos() != pos || spec.Name == nil {
				continue
			}
			delete(local, name)
			local[spec.Name.Name] = name
			if spec.Name.Name == "." {
				findings = append(findings, s.finding(pos, "dot import of %s hides the use of a clock", name))
			}
		}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if ok && slices.Contains(clock[local[x.Name]], sel.Sel.Name) {
			findings = append(findings, s.finding(sel.Pos(),
				"%s.%s: managers/ has no clock, take the time as an argument", x.Name, sel.Sel.Name))
		}
		return true
	})
	return findings
}

// goroutines finds the go statements of a file.
func goroutines(s *source) []string {
	var findings []string
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if stmt, ok := n.(*ast.GoStmt); ok {
			findings = append(findings, s.finding(stmt.Pos(), "go statement: managers/ starts no goroutine"))
		}
		return true
	})
	return findings
}

// undocumented finds the exported names of a file that have no comment:
// functions, methods of exported types, types, methods of interfaces,
// constants and variables (one comment above a group will do). What an error's
// methods Error and Unwrap are for is known.
func undocumented(s *source) []string {
	var findings []string
	note := func(pos token.Pos, name string) {
		findings = append(findings, s.finding(pos, "exported %s has no comment", name))
	}
	for _, decl := range s.ast.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			known := d.Recv != nil && (d.Name.Name == "Error" || d.Name.Name == "Unwrap")
			if d.Doc == nil && !known && d.Name.IsExported() && ast.IsExported(receiver(d)) {
				note(d.Pos(), d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch v := spec.(type) {
				case *ast.TypeSpec:
					if v.Name.IsExported() && v.Doc == nil && (d.Doc == nil || d.Lparen.IsValid()) {
						note(v.Pos(), v.Name.Name)
					}
					for _, m := range bareMethods(s, v) {
						note(m.Pos(), v.Name.Name+"."+m.Name)
					}
				case *ast.ValueSpec:
					for _, name := range v.Names {
						if name.IsExported() && v.Doc == nil && v.Comment == nil && d.Doc == nil {
							note(name.Pos(), name.Name)
						}
					}
				}
			}
		}
	}
	return findings
}

// bareMethods gives the methods without a comment of an exported interface.
// The interface's own comment will do for its only method, and for all of them
// where a package of test helpers declares what it needs of *testing.T.
func bareMethods(s *source, v *ast.TypeSpec) []*ast.Ident {
	iface, ok := v.Type.(*ast.InterfaceType)
	if !ok || !v.Name.IsExported() || iface.Methods.NumFields() < 2 || strings.HasSuffix(s.folder(), "test") {
		return nil
	}
	var bare []*ast.Ident
	for _, m := range iface.Methods.List {
		if len(m.Names) == 1 && m.Names[0].IsExported() && m.Doc == nil && m.Comment == nil {
			bare = append(bare, m.Names[0])
		}
	}
	return bare
}

// receiver names the type a method belongs to, or a plain function's own name,
// so that the caller can check both for being exported.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return d.Name.Name
	}
	expr := d.Recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}

func TestManagersHaveNoClock(t *testing.T) {
	t.Parallel()
	for _, s := range files(t, pure) {
		report(t, clockUses(s))
	}
}

func TestManagersStartNoGoroutine(t *testing.T) {
	t.Parallel()
	for _, s := range files(t, pure) {
		report(t, goroutines(s))
	}
}

func TestManagersDocumentExportedNames(t *testing.T) {
	t.Parallel()
	for _, s := range files(t, pure) {
		report(t, undocumented(s))
	}
}

func TestChecksOfManagersObject(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		check func(*source) []string
		text  string
		want  int
	}{
		{"clock", clockUses, "package p\nimport \"time\"\nvar t = time.Now()\n", 1},
		{"clock as a value", clockUses, "package p\nimport \"time\"\nvar now = time.Now\n", 1},
		{"clock under another name", clockUses, "package p\nimport tm \"time\"\nfunc f() { tm.Sleep(1); <-tm.After(1) }\n", 2},
		{"clock by dot import", clockUses, "package p\nimport . \"time\"\nvar t Duration\n", 1},
		{"timer of a context", clockUses, "package p\nimport \"context\"\nvar f = context.WithTimeout\n", 1},
		{"types of time", clockUses,
			"package p\nimport \"time\"\nvar d time.Duration = 3 * time.Second\nfunc f(t time.Time) time.Time { return t.Add(d) }\n", 0},
		{"another Now", clockUses, "package p\nvar time struct{ Now int }\nvar n = time.Now\n", 0},
		{"goroutine", goroutines, "package p\nfunc f() { go f() }\n", 1},
		{"call", goroutines, "package p\nfunc f() { f() }\n", 0},
		{"function", undocumented, "package p\nfunc F() {}\n", 1},
		{"method", undocumented, "package p\n// T is.\ntype T[X any] int\nfunc (*T[X]) M() {}\n", 1},
		{"methods of an error", undocumented, "package p\n// E is.\ntype E int\nfunc (E) Error() string { return \"\" }\n", 0},
		{"method of a hidden type", undocumented, "package p\ntype t int\nfunc (t) String() string { return \"\" }\n", 0},
		{"types of a group", undocumented, "package p\n// Group.\ntype (\n\tT int\n\t// U is.\n\tU int\n)\n", 1},
		{"method of an interface", undocumented, "package p\n// I is.\ntype I interface{ M(); N() }\n", 2},
		{"only method of an interface", undocumented, "package p\n// I is.\ntype I interface{ M() }\n", 0},
		{"constants", undocumented, "package p\nconst A = 1\nvar B, c = 1, 2\n", 2},
		{"constants of a group", undocumented, "package p\n// Kinds.\nconst (\n\tA = 1\n\tB = 2\n)\n", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.check(snippet(t, "managers/p/p.go", tt.text)); len(got) != tt.want {
				t.Errorf("got %d findings, want %d: %v", len(got), tt.want, got)
			}
		})
	}
}
