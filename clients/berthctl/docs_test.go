package main

import (
	"os"
	"strings"
	"testing"
)

// TestDocumentedSessions: what pages show is what berthctl prints.
func TestDocumentedSessions(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		page, file string
		code       int
	}{
		{"rejected.md", "worker.yaml", exitRejected},
		{"map.md", "pods.yaml", exitDone},
	} {
		text, err := os.ReadFile("../../docs/" + row.page)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, begins := strings.Cut(string(text), "```\n$ berthctl ")
		args, rest, there := strings.Cut(rest, "\n")
		want, _, ends := strings.Cut(rest, "```\n")
		if !begins || !there || !ends {
			t.Fatalf("%s shows no session", row.page)
		}
		r := invoke(t.Context(), "", "", strings.Fields(strings.Replace(args, row.file, "testdata/docs/"+row.file, 1))...)
		if r.out != want || r.err != "" || r.code != row.code {
			t.Errorf("%s: exit code %d, %s\ngot:\n%s\nwant:\n%s", row.page, r.code, r.err, r.out, want)
		}
	}
}
