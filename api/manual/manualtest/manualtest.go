// Package manualtest checks that the manual of a program is whole.
package manualtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berthd/berth/api/manual"
	"github.com/berthd/berth/api/manual/pages"
)

// Check insists that each verb of a program has a page in which each of its flags is, and
// that both describe their purpose. Every page has the exit codes, and the program's has its environment and files.
func Check(t *testing.T, root *cobra.Command, section string, notes manual.Notes) {
	t.Helper()
	dir := t.TempDir()
	if err := pages.Write(root, section, dir, notes.Roff); err != nil {
		t.Fatal(err)
	}
	pages := 0
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		if !c.IsAvailableCommand() && c != root {
			return // hidden
		}
		pages++
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + "." + section
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("%s has no page: %v", c.CommandPath(), err)
			return
		}
		page := strings.ReplaceAll(string(text), `\`, "")
		for _, title := range []string{"EXIT STATUS", "ENVIRONMENT", "FILES"} {
			if wanted := title == "EXIT STATUS" || c == root; strings.Contains(page, ".SH "+title+"\n") != wanted {
				t.Errorf("%s: the section %s should be there: %v", name, title, wanted)
			}
		}
		if c.Short == "" || !strings.Contains(page, strings.Fields(c.Short)[0]) {
			t.Errorf("%s does not say what it is for", c.CommandPath())
		}
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			switch {
			case f.Hidden:
			case f.Usage == "":
				t.Errorf("%s --%s does not say what it is for", c.CommandPath(), f.Name)
			case !strings.Contains(page, "--"+f.Name):
				t.Errorf("%s lacks --%s", name, f.Name)
			}
		})
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	look(root)
	if files, err := os.ReadDir(dir); err != nil || len(files) < pages || pages < 2 {
		t.Errorf("%d pages for %d verbs, %v", len(files), pages, err)
	}
}
