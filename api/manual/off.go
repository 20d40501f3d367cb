//go:build !man

package manual

import "github.com/spf13/cobra"

// Add does nothing in a program that is not built for making pages.
func Add(*cobra.Command, string, Notes) {}
