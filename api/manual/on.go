//go:build man

package manual

import (
	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/manual/pages"
)

// Add gives a program the verb that writes its pages, one for each of its verbs, of a
// section of the manual.
func Add(root *cobra.Command, section string, notes Notes) {
	root.AddCommand(&cobra.Command{
		Use: "manual DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			root.InitDefaultCompletionCmd()
			return pages.Write(root, section, args[0], notes.Roff)
		},
	})
}
