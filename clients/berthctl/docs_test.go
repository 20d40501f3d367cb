package main

import (
	"os"
	"strings"
	"testing"
)

// TestDocumentedRejection: what docs/rejected.md shows is what berthctl prints.
func TestDocumentedRejection(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/rejected.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, begins := strings.Cut(string(text), "```\n$ berthctl ")
	args, rest, there := strings.Cut(rest, "\n")
	want, _, ends := strings.Cut(rest, "```\n")
	if !begins || !there || !ends {
		t.Fatal("there is no session in it")
	}
	r := invoke(t.Context(), "", "", strings.Fields(strings.Replace(args, "worker.yaml", "testdata/docs/worker.yaml", 1))...)
	if r.out != want || r.err != "" || r.code != exitRejected {
		t.Errorf("exit code %d, %s\ngot:\n%s\nwant:\n%s", r.code, r.err, r.out, want)
	}
}
