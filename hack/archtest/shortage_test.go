package archtest

import (
	"go/ast"
	"os"
	"path/filepath"
	"strings"
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
	page := filepath.Join(root, "api/page/static/app.js")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "shortages") || !strings.Contains(string(text), "t.missing") {
		t.Error("api/page/static/app.js: a shortage has one text: show the trace's missing")
	}
	if len(shortageFindings(snippet(t, "clients/x.go", "package x\n\nvar _ = s.GetNeed()\n"))) != 1 {
		t.Error("words of a client's own are not found")
	}
}
