package command

import (
	"bytes"
	"strings"
	"testing"
)

// TestExpressionsThatPanic: the library of expressions panics on some that it has parsed. They are errors.
func TestExpressionsThatPanic(t *testing.T) {
	t.Parallel()
	document := map[string]any{"x": nil}
	for _, expression := range []string{"{range range .x}{}", "{range .x}{end}{end}"} {
		columns, err := parseColumns("A:" + expression)
		if err != nil {
			continue // it is refused before
		}
		if text, err := cellOf(columns[0].path, document); err == nil && strings.TrimSpace(text) != "" {
			t.Errorf("%s: %q", expression, text)
		}
		path, err := parsePath(expression)
		if err != nil {
			t.Fatal(err)
		}
		_ = execute(path, &bytes.Buffer{}, document) // an error or nothing, and no panic
	}
	columns, err := parseColumns("A:{range range .x}{}")
	if err != nil || len(columns) != 1 {
		t.Fatalf("the expression of the test is refused now: %v", err)
	}
}
