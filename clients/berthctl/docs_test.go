package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
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

// TestOutputPage: the page about data names each verb, and its examples are what berthctl prints.
func TestOutputPage(t *testing.T) {
	t.Parallel()
	const path = "../../docs/cli-output.md"
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if len(cmd.Commands()) == 0 && !strings.Contains(cmd.CommandPath(), " completion") {
			if name := strings.TrimPrefix(cmd.CommandPath(), "berthctl "); !strings.Contains(page, "| `"+name+"` |") {
				t.Errorf("%s does not say what %q prints", path, name)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&ctl{format: formatTable, color: colorAuto}).root())

	socket := (&fake{}).start(t)
	parts := strings.Split(page, "```\n$ berthctl ")
	for i, part := range parts[1:] {
		args, rest, _ := strings.Cut(part, "\n")
		_, after, ends := strings.Cut(rest, "```\n")
		if !ends {
			t.Fatalf("%s: the example %q has no end", path, args)
		}
		r := invoke(t.Context(), socket, "", strings.Fields(args)...)
		parts[i+1] = args + "\n" + r.out + r.err + "```\n" + after
	}
	if len(parts) < 4 {
		t.Errorf("%s has %d examples", path, len(parts)-1)
	}
	compare(t, path, []byte(strings.Join(parts, "```\n$ berthctl ")))
}
