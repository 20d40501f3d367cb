//go:build man

package manual

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// made is the date on the pages, which does not depend on when they are made.
var made = time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)

// Add gives a program the verb that writes its pages, one for each of its verbs, of a
// section of the manual.
func Add(root *cobra.Command, section string) {
	root.AddCommand(&cobra.Command{
		Use: "manual DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			root.DisableAutoGenTag = true
			root.InitDefaultCompletionCmd()
			return doc.GenManTree(root, &doc.GenManHeader{Section: section, Source: "berth", Manual: "berth", Date: &made}, args[0])
		},
	})
}
