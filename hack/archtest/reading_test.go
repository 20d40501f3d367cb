package archtest

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// readers are the files outside api/input that open files to read, or read something to its end, by other means than
// api/input and api/trust, with the reason why nobody can make that endless, huge or silent.
var readers = map[string]string{
	"api/input/input.go":                        "it is the bounded reader",
	"api/ledgerfile/open.go":                    "its callers read at offsets, and check that the file is regular",
	"api/manual/manualtest/manualtest.go":       "for tests",
	"api/podspec/read.go":                       "its callers have bounded the text, and give it from memory",
	"clients/berthlet/builtin/create_linux.go":  "pipes and logs of its own keepers, in its own state directory",
	"clients/berthlet/builtin/files_linux.go":   "files of its own state directory",
	"clients/berthlet/builtin/filter_linux.go":  "a pipe to a program of its own",
	"clients/berthlet/builtin/keeper_linux.go":  "/dev/null",
	"clients/berthlet/builtin/runtime_linux.go": "a pipe of its own keeper, not blocking",
	"clients/nri/end.go":                        "files of the kernel",
	"server/internal/config/beside.go":          "the start of a kubelet's state file, not blocking",
	"server/internal/store/regular.go":          "it checks that the file is regular, and does not block",
	"server/internal/host/disk/sync.go":         "a directory of its own, to sync it",
}

// readingFindings lists the calls in a file that read without a bound, or could wait for another program.
func readingFindings(s *source) (findings []string) {
	ast.Inspect(s.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		bad := false
		switch name := selector(call.Fun); name {
		case "os.ReadFile", "os.Open":
			bad = !kernelPath(call.Args[0])
		case "os.OpenFile":
			flags := words(call.Args[1])
			bad = !slices.Contains(flags, "O_WRONLY") && !slices.Contains(flags, "O_RDWR")
		case "io.ReadAll", "ioutil.ReadAll":
			inner, ok := call.Args[0].(*ast.CallExpr)
			bad = !ok || !slices.Contains([]string{"io.LimitReader", "http.MaxBytesReader", "io.NewSectionReader"}, selector(inner.Fun))
		}
		if bad {
			findings = append(findings,
				s.finding(call.Pos(),
					"%s reads without a bound, or waits for the writer of a pipe: use api/input, or api/trust for what decides",
					selector(call.Fun)))
		}
		return true
	})
	return findings
}

// selector spells a function of a package; empty for others.
func selector(e ast.Expr) string {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	pkg, ok := sel.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return pkg.Name + "." + sel.Sel.Name
}

// words are the names in an expression.
func words(e ast.Expr) (names []string) {
	ast.Inspect(e, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			names = append(names, id.Name)
		}
		return true
	})
	return names
}

// kernelPath reports whether a path is spelled out as one of the kernel's file systems.
func kernelPath(e ast.Expr) bool {
	kernel := false
	ast.Inspect(e, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && !kernel {
			kernel = strings.HasPrefix(lit.Value, `"/proc/`) || strings.HasPrefix(lit.Value, `"/sys/`)
			return kernel
		}
		return true
	})
	return kernel
}

// TestReadersAreBounded: nothing that another user or program gives is read without a bound.
func TestReadersAreBounded(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, s := range files(t, func(s *source) bool {
		return !s.test && (s.within("api") || s.within("clients") || s.within("server"))
	}) {
		found := readingFindings(s)
		if _, ok := readers[s.path]; ok {
			used[s.path] = len(found) > 0
			continue
		}
		for _, f := range found {
			t.Error(f)
		}
	}
	for path := range readers {
		if !used[path] {
			t.Errorf("%s reads nothing by itself: remove it from the table", path)
		}
	}
}

// TestReadingObjects: the rule is seen to object.
func TestReadingObjects(t *testing.T) {
	t.Parallel()
	for call, bad := range map[string]bool{
		`os.ReadFile(path)`: true, `os.ReadFile("/proc/self/status")`: false, `os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))`: false,
		`os.ReadFile("/proc" + path)`: true,
		`os.Open(path)`:               true, `os.OpenFile(path, os.O_RDONLY, 0)`: true,
		`os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0)`: false,
		`io.ReadAll(r)`: true, `io.ReadAll(io.LimitReader(r, 1))`: false, `trust.ReadFile(path, 1)`: false,
	} {
		if got := readingFindings(snippet(t, "clients/a/a.go", "package a\nfunc f() { "+call+" }\n")); (len(got) > 0) != bad {
			t.Errorf("%s: %v", call, got)
		}
	}
}
