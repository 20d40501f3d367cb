package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/clients/internal/command"
)

// TestDocumentedSessions: what pages show is what berthctl prints.
func TestDocumentedSessions(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		page string
		code int
	}{
		{"rejected.md", command.ExitRejected},
		{"look.md", command.ExitDone},
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
		r := invoke(t.Context(), "", "", strings.Fields(strings.ReplaceAll(args, " deploy/", " ../../deploy/"))...)
		if r.out != want || r.err != "" || r.code != row.code {
			t.Errorf("%s: exit code %d, %s\ngot:\n%s\nwant:\n%s", row.page, r.code, r.err, r.out, want)
		}
	}
}

// TestDocumentedRoom: the commands of the page about init containers count as many pods as it says.
func TestDocumentedRoom(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"8 more", "1 more"}
	for line := range strings.Lines(string(text)) {
		command, shown := strings.CutSuffix(strings.TrimPrefix(line, "berthctl "), " deploy/examples/pages/warm.yaml\n")
		if !shown {
			continue
		}
		if len(want) == 0 {
			t.Fatalf("the page has another command: %s", line)
		}
		r := invoke(t.Context(), "", "", strings.Fields(command+" ../../deploy/examples/pages/warm.yaml")...)
		if !strings.Contains(r.out, want[0]+" default/warm would fit") {
			t.Errorf("%s: %s%s\nwant %s", line, r.out, r.err, want[0])
		}
		want = want[1:]
	}
	if len(want) > 0 {
		t.Errorf("the page has no command for %q", want)
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
	verbs(func(name string) {
		if !strings.Contains(page, "| `"+name+"` |") {
			t.Errorf("%s does not say what %q prints", path, name)
		}
	})
	examples(t, path, page)
}

// noExample are the verbs without an example, each with the reason.
var noExample = map[string]string{
	"proxy":       "it is for a program on the other side of its streams",
	"version":     "differs from build to build",
	"plugin test": "needs a plugin",
	"check":       "needs a kubelet's node",
	"compare":     "needs a kubelet's node",
	"bundle":      "writes a file",
	"watch":       "does not end",
	"web":         "prints no data",
}

// TestExamplesPage: the page with examples has one for each verb, which is what berthctl prints.
func TestExamplesPage(t *testing.T) {
	t.Parallel()
	const path = "../../docs/cli-examples.md"
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	verbs(func(name string) {
		shown := strings.Contains(page, "```\n$ berthctl "+name+" ")
		if (noExample[name] != "") == shown {
			t.Errorf("%s: an example of %q: %t, a reason against one: %q", path, name, shown, noExample[name])
		}
	})
	if out := examples(t, path, page); strings.Contains(out, `{"error":`) {
		t.Errorf("%s has an example with an error", path)
	}
}

// verbs calls f with each verb that prints something, without its flags.
func verbs(f func(name string)) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if len(cmd.Commands()) == 0 && !strings.Contains(cmd.CommandPath(), " completion") {
			f(strings.TrimPrefix(cmd.CommandPath(), "berthctl "))
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	c := &command.Ctl{Format: command.FormatTable, Color: command.ColorAuto}
	walk(root(c))
}

// files of the examples, and where they are.
var exampleFiles = strings.NewReplacer(
	"web.yaml", "../../deploy/examples/pages/web.yaml",
	"incident.tar.gz", "testdata/docs/incident.tar.gz",
	"-f cpu_manager_state --pods pods", "-f testdata/import/cpu_manager_state --pods testdata/import/pods",
)

// examples runs the examples of a page and compares the page with what they print, which it
// returns.
func examples(t *testing.T, path, page string) string {
	t.Helper()
	usual, withClaims := (&fake{}).start(t), (&fake{claims: true}).start(t)
	parts := strings.Split(page, "```\n$ berthctl ")
	for i, part := range parts[1:] {
		args, rest, _ := strings.Cut(part, "\n")
		_, after, ends := strings.Cut(rest, "```\n")
		if !ends {
			t.Fatalf("%s: the example %q has no end", path, args)
		}
		socket := usual
		if strings.HasPrefix(args, "get claims") {
			socket = withClaims
		}
		r := invoke(t.Context(), socket, "", strings.Fields(exampleFiles.Replace(args))...)
		parts[i+1] = args + "\n" + r.out + r.err + "```\n" + after
	}
	if len(parts) < 4 {
		t.Errorf("%s has %d examples", path, len(parts)-1)
	}
	out := strings.Join(parts, "```\n$ berthctl ")
	compare(t, path, []byte(out))
	return out
}
