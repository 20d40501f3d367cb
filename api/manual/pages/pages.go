// Package pages writes manual pages. Only programs that are built with the tag man are linked with it, and tests.
package pages

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// made is the date on the pages, which does not depend on when they are made.
var made = time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)

const seeAlso = ".SH SEE ALSO"

// Write writes a page for a program and one for each of its verbs into a directory. more has further sections, for the program
// itself or for a verb; they come before the last section.
func Write(root *cobra.Command, section, dir string, more func(whole bool) string) error {
	root.DisableAutoGenTag = true
	var write func(c *cobra.Command) error
	write = func(c *cobra.Command) error {
		if c != root && (!c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand()) {
			return nil
		}
		for _, sub := range c.Commands() {
			if err := write(sub); err != nil {
				return err
			}
		}
		var b bytes.Buffer
		if err := doc.GenMan(c, &doc.GenManHeader{Section: section, Source: "berth", Manual: "berth", Date: &made}, &b); err != nil {
			return fmt.Errorf("page of %s: %w", c.CommandPath(), err)
		}
		text, sections := b.String(), more(c == root)
		if before, after, ok := strings.Cut(text, seeAlso); ok {
			text = before + sections + seeAlso + after
		} else {
			text = strings.TrimRight(text, "\n") + "\n" + sections
		}
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + "." + section
		return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)
	}
	return write(root)
}
