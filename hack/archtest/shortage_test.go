package archtest

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// shortageFindings lists the places of a file that read the amounts of a shortage, as one does to put it into words.
func shortageFindings(s *source) (findings []string) {
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && (sel.Sel.Name == "GetNeed" || sel.Sel.Name == "GetWithheld") {
			findings = append(findings, s.finding(sel.Pos(), "a shortage has one text, ledger.Shortage.Text: use the trace's missing"))
		}
		return true
	})
	return findings
}

// TestShortagesHaveOneText: programs, the page and events repeat the words that the engine has put into the trace.
func TestShortagesHaveOneText(t *testing.T) {
	t.Parallel()
	for _, s := range files(t, func(s *source) bool {
		return !s.test && !s.generated && !s.within("api/convert") && !s.within("managers")
	}) {
		for _, f := range shortageFindings(s) {
			t.Error(f)
		}
	}
	scripts, err := filepath.Glob(filepath.Join(root, "api/page/static/*.js"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%d scripts of the page, %v", len(scripts), err)
	}
	for _, path := range scripts {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// need.js draws the amounts, and has no words for them.
		if filepath.Base(path) != "need.js" && regexp.MustCompile(`\.need\b`).Match(text) {
			t.Errorf("%s: a shortage has one text: show the trace's missing", path)
		}
	}
	if len(shortageFindings(snippet(t, "clients/x.go", "package x\n\nvar _ = s.GetNeed()\n"))) != 1 {
		t.Error("words of a client's own are not found")
	}
}
