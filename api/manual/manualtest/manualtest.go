// Package manualtest checks that the manual of a program is whole.
package manualtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// Check insists that each verb of a program has a page in which each of its flags is, and
// that both describe their purpose.
func Check(t *testing.T, root *cobra.Command, section string) {
	t.Helper()
	dir := t.TempDir()
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: section, Date: &time.Time{}}, dir); err != nil {
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
