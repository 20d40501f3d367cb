// Package version is the version of this berth. The file VERSION next to it is the only place
// where the number is written down.
package version

import (
	_ "embed" // for the file
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

//go:embed VERSION
var file string

// APIs are those that berth speaks, of its own and of the kubelet's.
const APIs = "berth v1, deviceplugin v1beta1, podresources v1 and v1alpha1"

// Info describes a program.
type Info struct {
	Version string
	// Commit is that of the sources, with + behind it if they were changed since; empty
	// where the Go tool has not recorded it.
	Commit string
	// Go and Platform are as in go1.26.8 and linux/amd64.
	Go, Platform string
}

// Of returns all that is known about this program.
func Of() Info {
	i := Info{Version: strings.TrimSpace(file), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		changed := false
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				i.Commit = s.Value
			case "vcs.modified":
				changed = s.Value == "true"
			}
		}
		if changed && i.Commit != "" {
			i.Commit += "+"
		}
	}
	return i
}

// Line returns it in a line, after the name of the program.
func (i Info) Line(program string) string { return program + " version " + i.whole() }

func (i Info) whole() string {
	commit := "unknown commit"
	if i.Commit != "" {
		commit = "commit " + i.Commit
	}
	return fmt.Sprintf("%s, %s, %s, %s; %s", i.Version, commit, i.Go, i.Platform, APIs)
}

// Command is the verb that prints the line of a program.
func Command(program string) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Long: "Print the version, the commit, the version of Go, the platform, and the APIs that " + program + " speaks.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), Of().Line(program))
			return err
		},
	}
}

// AddFlag gives a program the flag --version, which prints the same.
func AddFlag(root *cobra.Command) {
	// A template of cobra's would do the same, and keep every exported method of every type in the program: templates call methods by name.
	root.Version = Of().whole()
	root.Flags().Bool("version", false, "print the version")
}
